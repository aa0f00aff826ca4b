"""Flags of all jobs that use a translation model: which one, and the size of batches."""

from dataclasses import dataclass
from typing import Any, ClassVar

from transformers.hf_argparser import HfArg

from ..translation.pools import BATCH_SIZE, MAX_TOKENS_PER_BATCH
from ..translation.translator import DTYPES, Translator
from .freed_memory import keep_freed_memory
from .saved_model import DEVICE_HELP, default_device

# Help of --model where the bundled model is the default.
MODEL_OR_BUNDLED = (
    "Folder of a trained model, or a bundled model: aiayn-en-de (the default) or aiayn-de-en. With "
    "--hub, a repository. Several models with the same vocabulary form an ensemble."
)


@dataclass
class ModelFlags:
    """Which model to load."""

    model: list[str] = HfArg(
        help="Folder of a trained model, or a bundled model; with --hub, a repository. translate, "
        "serve, distill and evaluate-translation take several models with the same vocabulary, an "
        "ensemble."
    )
    hub: bool = HfArg(default=False, help="Load the model from the Hub.")
    dtype: str = HfArg(
        default="auto",
        help="auto, float32, bfloat16, float16 or int8. On a CPU, float16 stores the weights in "
        "float16 and computes in float32; int8 is the fastest there.",
    )
    device: str | None = HfArg(default=None, help=DEVICE_HELP)
    takes_ensembles: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}.")
        if len(self.model) > 1 and not self.takes_ensembles:
            raise ValueError(f"This command takes one --model, got {len(self.model)}.")

    def check_not_int8(self, advice: str) -> None:
        """Check that --dtype is not int8, in which only translating computes.

        Raises:
            ValueError: It is int8; the message ends with the advice.
        """
        if self.dtype == "int8":
            raise ValueError(f"--dtype int8 is for translating only. {advice}")

    def load(self, **options: Any) -> Translator:
        """Load the translator; options are further ones of `Translator.from_pretrained`."""
        keep_freed_memory()
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
    """Which model and engine to translate with, and the size of batches."""

    engine: str = HfArg(
        default="torch",
        help="torch: this package's decoder. ctranslate2: for a folder that export-ctranslate2 "
        "wrote; --device is then the CPU by default.",
        metadata={"choices": ["torch", "ctranslate2"]},
    )
    shortlist: str | None = HfArg(
        default=None,
        help="File of make-shortlist: compute only likely translations of the source tokens in a "
        "batch. Default: the whole vocabulary.",
    )
    takes_ensembles: ClassVar[bool] = True

    def load(self, **options: Any) -> Translator:
        """Load the translator with its engine and shortlist."""
        options |= {"shortlist": self.shortlist}
        if self.engine == "torch":
            return super().load(**options)
        options |= {} if self.dtype == "auto" else {"dtype": self.dtype}
        device = self.device or "cpu"
        return Translator.from_pretrained(
            self.model, engine="ctranslate2", hub=self.hub, device=device, **options
        )
