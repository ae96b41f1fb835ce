"""The arithmetic and the steps of `shift`: estimating class frequencies, and writing them into a model."""
