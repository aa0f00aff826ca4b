"""What the scripts that load a trained model are told."""

from dataclasses import dataclass, field
from typing import Any

import torch

from .translator import Translator


@dataclass
class TranslatorArguments:
    """Which model to load, and how to search."""

    model: str = field(metadata={"help": "A trained model's folder; with --hub, a repository."})
    hub: bool = field(default=False, metadata={"help": "Load the model from the Hub."})
    num_beams: int = field(default=4, metadata={"help": "Beams; 1 is greedy search."})
    length_penalty: float = field(
        default=1.0, metadata={"help": "Exponent of the length that beam scores are divided by."}
    )
    batch_size: int = field(default=32, metadata={"help": "Sentences at a time."})
    dtype: str = field(default="auto", metadata={"help": "auto, float32, bfloat16 or float16."})
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, ...; default: a GPU where there is one."}
    )

    def __post_init__(self) -> None:
        for name in ("num_beams", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    def load(self) -> Translator:
        """The translator that the arguments name.

        Raises:
            OSError: There is no such model.
        """
        translator = Translator.from_pretrained(self.model, hub=self.hub, dtype=self.dtype)
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        translator.model.to(device)
        return translator

    @property
    def generation_options(self) -> dict[str, Any]:
        """What goes to generate; the length penalty has a meaning for beams alone."""
        if self.num_beams == 1:
            return {"num_beams": 1}
        return {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
