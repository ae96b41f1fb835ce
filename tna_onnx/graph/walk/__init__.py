"""The walk from a graph output back to the linear layer that makes its scores."""
