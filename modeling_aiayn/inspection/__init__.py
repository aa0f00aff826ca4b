"""Inspect a model: attention maps, word alignment and position encodings."""
