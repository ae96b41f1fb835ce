"""From image files to the model's input: decoding and preprocessing."""
