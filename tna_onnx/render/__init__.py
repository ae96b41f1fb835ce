"""How results look: text for a terminal, figures, HTML, a run of MLflow."""
