"""Section 6.1: translating, and scoring translations."""

from .pipeline import AiaynTranslationPipeline
from .translator import Translator

__all__ = ["AiaynTranslationPipeline", "Translator"]
