"""Model folders: load, check, write atomically, and publish."""
