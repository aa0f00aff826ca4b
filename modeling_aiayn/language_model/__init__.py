"""Language models of characters or bytes: the decoder alone."""
