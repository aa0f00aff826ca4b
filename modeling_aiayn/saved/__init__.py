"""Model folders: load, check, write whole, and publish."""
