"""Harnesses that feed damaged input to every reader; each says what may be raised. Anything else is a finding."""
