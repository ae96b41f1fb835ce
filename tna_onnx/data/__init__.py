"""Labelled samples for a model: what a team has is opened, its labels are checked, and it is read in batches."""
