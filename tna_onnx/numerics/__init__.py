"""Arrays in, arrays out: metrics, fits and the tilt. No file, graph, log or global randomness."""
