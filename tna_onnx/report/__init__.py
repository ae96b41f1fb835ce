"""A frozen report, and its faces: text, JSON."""
