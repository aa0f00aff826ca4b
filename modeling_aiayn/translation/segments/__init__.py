"""What of a text is translated, what is kept, and where kept parts stand in the translation."""
