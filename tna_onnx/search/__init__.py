"""The search for a weight: tilted and averaged class vectors, scored and chosen. No files, no graphs."""
