"""Language models of characters or bytes, which are the decoder without an encoder."""
