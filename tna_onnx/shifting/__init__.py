"""New class frequencies for a model: how they are found, and how they are written."""
