"""Section 6.1: translate, and score translations."""

from .pipeline import AiaynTranslationPipeline
from .translator import Translator

__all__ = ["AiaynTranslationPipeline", "Translator"]
