"""Section 5: training."""

from .arguments import AiaynTrainingArguments
from .trainer import AiaynTrainer

__all__ = ["AiaynTrainer", "AiaynTrainingArguments"]
