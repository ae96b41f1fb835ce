"""How features come out of a model, and how they are kept."""
