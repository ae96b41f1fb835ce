"""Which weight: the search over tilted and averaged class vectors. Pure."""
