"""Texts into classes by the encoder: what is read, how it is trained, how it is scored."""
