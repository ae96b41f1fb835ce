"""Logits of feature tables, and where they are computed; scores of whole models."""
