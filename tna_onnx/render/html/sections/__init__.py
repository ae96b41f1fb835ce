"""The sections of the report on a calibration, one a file."""
