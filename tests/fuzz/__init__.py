"""Readers of foreign bytes, fed with mutated files: each may raise errors of this package, and nothing else.

`python -m tests.fuzz.data --cases 20000` runs for as long as asked and prints counts by family; the tests run a few.
"""
