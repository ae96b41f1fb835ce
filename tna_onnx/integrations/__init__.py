"""The package as a part of other tools; each module imports the tool that it is for."""
