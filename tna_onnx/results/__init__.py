"""Results as frozen values, and their form as JSON."""
