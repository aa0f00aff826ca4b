"""Section 6.1: translating, and scoring translations."""

from .translator import Translator

__all__ = ["Translator"]
