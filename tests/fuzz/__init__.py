"""Harnesses that feed damaged input to every reader: each says what may be raised, and anything else is a finding.

`python -m tests.fuzz.models --cases 20000` and `python -m tests.fuzz.data --cases 20000` run for as long as asked and
print counts; the tests run a few.
"""
