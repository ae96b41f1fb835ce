"""Models as real exporters and tools write them, each with the truth about its head."""
