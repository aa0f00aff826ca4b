"""Text that goes in: corpora, the built-in grammar, noise, and scores of text."""
