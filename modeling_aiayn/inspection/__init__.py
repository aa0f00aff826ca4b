"""Inspection of a model: attention maps, word alignment and position encodings."""
