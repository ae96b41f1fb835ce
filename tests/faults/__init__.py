"""What a run leaves behind when the system refuses something: signals, limits, places that cannot be written."""
