"""Reduce over chunks of data. Here: on this machine, one chunk after the other."""
