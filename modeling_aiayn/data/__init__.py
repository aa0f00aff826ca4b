"""Data: corpora, the built-in grammar, noise, and scores of translations."""
