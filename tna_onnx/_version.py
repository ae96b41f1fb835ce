"""The version of the package, where modules of any layer can read it."""

__version__ = "0.1.0"
