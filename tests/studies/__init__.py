"""Studies: numbers against their definitions on small data."""
