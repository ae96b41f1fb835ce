"""What can be called: one typed function a file, each named like its command."""
