"""Documents with markup, translated without losing it."""
