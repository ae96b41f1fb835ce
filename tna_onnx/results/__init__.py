"""What comes back: frozen values, and how they become JSON."""
