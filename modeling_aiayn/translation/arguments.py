"""What the scripts that translate are told."""

import gzip
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from datasets import Dataset

from ..command_line import default_device
from ..corpus import parse_columns, read_rows, stream_lines
from ..loading import check_package
from .translator import BATCH_SIZE, MAX_TOKENS_PER_BATCH, Translator

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass
class TranslatorArguments:
    """Which model to load, and how much to translate at a time."""

    model: list[str] = field(
        metadata={
            "help": "A trained model's folder; with --hub, a repository. Several: models of one "
            "vocabulary, which vote at each token."
        }
    )
    hub: bool = field(default=False, metadata={"help": "Load the model from the Hub."})
    batch_size: int = field(default=BATCH_SIZE, metadata={"help": "Sentences at a time, at most."})
    max_tokens_per_batch: int = field(
        default=MAX_TOKENS_PER_BATCH,
        metadata={"help": "Source tokens at a time, at most, padding counted."},
    )
    engine: str = field(
        default="torch",
        metadata={
            "help": "torch, our own decoder, or ctranslate2 for a folder that was exported to it.",
            "choices": ["torch", "ctranslate2"],
        },
    )
    dtype: str = field(
        default="auto",
        metadata={
            "help": "auto, float32, bfloat16 or float16; a CPU keeps weights in float16 and "
            "computes in float32."
        },
    )
    device: str | None = field(
        default=None,
        metadata={
            "help": "cpu, cuda, ...; default: a GPU where there is one; with ctranslate2 cpu."
        },
    )

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_tokens_per_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.engine == "torch" and self.dtype not in DTYPES:
            raise ValueError(f"dtype must be {', '.join(DTYPES)}, got {self.dtype!r}.")

    @property
    def batch_options(self) -> dict[str, int]:
        """How much to translate at a time."""
        return {
            "batch_size": self.batch_size,
            "max_tokens_per_batch": self.max_tokens_per_batch,
        }

    def load(self) -> Translator:
        """The translator that the arguments name.

        Raises:
            OSError: There is no such model.
        """
        if self.engine == "ctranslate2":
            options = {"dtype": self.dtype} if self.dtype != "auto" else {}
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
        )


@dataclass
class ModelOrHypotheses(TranslatorArguments):
    """Which model to load, or which translations to read in its place."""

    model: list[str] = field(
        default_factory=list, metadata={"help": "A trained model's folder, as for translate.py."}
    )
    hypotheses: str | None = field(
        default=None, metadata={"help": "A file of translations; nothing is translated then."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.model) == (self.hypotheses is not None):
            raise ValueError("Give either --model or --hypotheses.")


@dataclass
class PairArguments:
    """What to score on, and where to put the outcome."""

    file: str = field(
        metadata={
            "help": "A .tsv or .jsonl file, or what two line-aligned files have in common: "
            "data/test for data/test.en and data/test.de; each plain or .gz."
        }
    )
    source_lang: str = field(default="en", metadata={"help": "Language to translate from."})
    target_lang: str = field(default="de", metadata={"help": "Language to translate to."})
    columns: str | None = field(
        default=None,
        metadata={"help": "Languages of a .tsv file's columns: en,de. Default: source,target."},
    )
    moses: bool = field(
        default=False,
        metadata={"help": "Also BLEU of lower-cased Moses tokens, as papers on Multi30k print it."},
    )
    scores: str | None = field(default=None, metadata={"help": "A JSON file for the scores."})
    translations: str | None = field(
        default=None, metadata={"help": "A file for the translations."}
    )

    def __post_init__(self) -> None:
        if self.moses:
            check_package("sacremoses", "interop")

    def rows(self) -> Dataset:
        """The file's rows, those with an empty side too.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is not what it should be.
        """
        columns = parse_columns(self.columns)
        return read_rows(self.file, self.source_lang, self.target_lang, columns)


@dataclass
class TextArguments:
    """What to translate, and where to put it."""

    text: list[str] | None = field(default=None, metadata={"help": "Sentences to translate."})
    input: str | None = field(
        default=None, metadata={"help": "A file of sentences, plain or .gz; default: stdin."}
    )
    output: str | None = field(
        default=None, metadata={"help": "A file, plain or .gz; default: stdout."}
    )
    prefixes: str | None = field(
        default=None, metadata={"help": "A file: what each translation begins with."}
    )
    phrases: str | None = field(
        default=None, metadata={"help": "A file: what each contains, phrases between tabs."}
    )
    scores: bool = field(default=False, metadata={"help": "A column with each one's score."})
    alignment: str | None = field(
        default=None,
        metadata={
            "help": "A column of links between words, source-target, read off the attention of a "
            "layer, or of a layer and head (2 or 2,5), or off the mean of all (mean)."
        },
    )

    def __post_init__(self) -> None:
        for name in ("input", "prefixes", "phrases"):
            read = getattr(self, name)
            if (
                None not in (read, self.output)
                and Path(read).resolve() == Path(str(self.output)).resolve()
            ):
                raise ValueError(f"--output would overwrite --{name}, {read}: name another file.")

    @property
    def is_dialogue(self) -> bool:
        """Whether somebody types sentences and waits for each translation."""
        return self.text is None and self.input is None and sys.stdin.isatty()

    @property
    def is_compressed(self) -> bool:
        """Whether the output is a .gz file."""
        return self.output is not None and self.output.endswith(".gz")

    def opened_output(self) -> AbstractContextManager[BinaryIO]:
        """Where translations go: stdout, or a file, compressed where its name ends in .gz.

        Raises:
            OSError: It cannot be written.
        """
        if self.output is None:
            return nullcontext(sys.stdout.buffer)
        opened: Any = gzip.open if self.is_compressed else open
        file: BinaryIO = opened(self.output, "wb")
        return file

    def lines(self) -> Iterator[str]:
        """The sentences.

        Raises:
            ValueError: They are given in two ways.
        """
        if self.text is not None and self.input is not None:
            raise ValueError("Give either --text or --input, not both.")
        if self.text is not None:
            return iter(self.text)
        return stream_lines(self.input or sys.stdin.buffer)
