"""What happens inside `shift`: which class frequencies, and how they get into a model."""
