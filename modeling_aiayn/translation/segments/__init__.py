"""Separate the text to translate from parts to copy, and place these in the translation."""
