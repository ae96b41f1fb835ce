"""`guard`: decisions with guarantees as further outputs of a model."""
