"""Flags of all jobs that use a translation model: which one, and the size of batches."""

from dataclasses import dataclass
from typing import Any

from transformers.hf_argparser import HfArg

from ..translation.pools import BATCH_SIZE, MAX_TOKENS_PER_BATCH
from ..translation.translator import Translator
from .saved_model import default_device

# Help of --model where the bundled model is the default.
MODEL_OR_BUNDLED = (
    "Folder of a trained model, or a bundled model: aiayn-en-de (the default) or aiayn-de-en. With "
    "--hub, a repository. Several models with the same vocabulary form an ensemble."
)
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")


@dataclass
class ModelFlags:
    """Which model to load."""

    model: list[str] = HfArg(
        help="Folder of a trained model; with --hub, a repository. Several models with the same "
        "vocabulary form an ensemble."
    )
    hub: bool = HfArg(default=False, help="Load the model from the Hub.")
    engine: str = HfArg(
        default="torch",
        help="torch: this package's decoder. ctranslate2: for a folder that export-ctranslate2 "
        "wrote.",
        metadata={"choices": ["torch", "ctranslate2"]},
    )
    dtype: str = HfArg(
        default="auto",
        help="auto, float32, bfloat16, float16 or int8. On a CPU, float16 stores the weights in "
        "float16 and computes in float32; int8 is the fastest there.",
    )
    device: str | None = HfArg(
        default=None,
        help="cpu, cuda, ... Default: a GPU if there is one; with ctranslate2, the CPU.",
    )

    def __post_init__(self) -> None:
        if self.engine == "torch" and self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")

    def load(self, **options: Any) -> Translator:
        """Load the translator; options are further ones of `Translator.from_pretrained`."""
        if self.engine == "ctranslate2":
            options |= {} if self.dtype == "auto" else {"dtype": self.dtype}
            return Translator.from_pretrained(
                self.model,
                engine="ctranslate2",
                hub=self.hub,
                device=self.device or "cpu",
                **options,
            )
        return Translator.from_pretrained(
            self.model,
            hub=self.hub,
            dtype=self.dtype,
            device=default_device(self.device),
            **options,
        )


@dataclass
class BatchFlags(ModelFlags):
    """Which model to load, and the size of batches."""

    batch_size: int = HfArg(default=BATCH_SIZE, help="Maximum number of sentences in a batch.")
    max_tokens_per_batch: int = HfArg(
        default=MAX_TOKENS_PER_BATCH,
        help="Maximum number of source tokens in a batch, padding included.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "max_tokens_per_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

    @property
    def batch_options(self) -> dict[str, int]:
        """The size of batches, as arguments of a `Translator`."""
        return {
            "batch_size": self.batch_size,
            "max_tokens_per_batch": self.max_tokens_per_batch,
        }


@dataclass
class TranslatorFlags(BatchFlags):
    """Which model to load to translate with, and the size of batches."""

    shortlist: str | None = HfArg(
        default=None,
        help="File of make-shortlist: compute only likely translations of the source tokens in a "
        "batch. Default: the whole vocabulary.",
    )

    def load(self, **options: Any) -> Translator:
        """Load the translator with its shortlist."""
        return super().load(shortlist=self.shortlist, **options)
