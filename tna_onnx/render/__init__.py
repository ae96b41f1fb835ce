"""Presentation of results: text for a terminal, figures, HTML, model cards."""
