"""Text classification with the encoder: reading data, training, scores."""
