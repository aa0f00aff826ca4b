"""Import weights from other systems, and export models to other engines."""
