"""Where labelled samples come from, one kind a file."""
