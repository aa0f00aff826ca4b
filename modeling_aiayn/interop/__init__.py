"""Import of weights from other systems, and export to other engines."""
