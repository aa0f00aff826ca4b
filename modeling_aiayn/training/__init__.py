"""Training (section 5) of all models: arguments, trainer, and runs that resume exactly."""

from .arguments import AiaynTrainingArguments
from .trainer import AiaynTrainer

__all__ = ["AiaynTrainer", "AiaynTrainingArguments"]
