"""Harnesses that feed damaged input to every reader: each says what may be raised, and anything else is a finding.

`python -m tests.fuzz` runs all of them for as long as asked, each case in a child process, and prints counts; the tests
run a few.
"""
