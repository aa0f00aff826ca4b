"""Looking inside: what attention looks at."""
