"""Flags that several jobs share. A job composes these dataclasses, which only hold values."""

from dataclasses import dataclass, fields, make_dataclass
from typing import Any

from transformers.hf_argparser import HfArg

from ..saved.loading import BUNDLED_MODEL
from ..translation.options import SearchOptions
from ..translation.pools import BATCH_SIZE, MAX_TOKENS_PER_BATCH
from ..translation.translator import DTYPES

DEVICE_HELP = "cpu, cuda, ... Default: a GPU if there is one."
PAIRS_HELP = (
    "Sentence pairs: a .tsv or .jsonl file, or the common prefix of two line-aligned files "
    "(data/test for data/test.en and data/test.de). Each may end in .gz."
)


@dataclass
class ModelFlags:
    """Which model to load."""

    model: list[str] = HfArg(
        default_factory=lambda: [BUNDLED_MODEL],
        help="Folder of a trained model, or a bundled model: aiayn-en-de (the default) or "
        "aiayn-de-en. With --hub, a repository. Several translation models with the same "
        "vocabulary form an ensemble.",
    )
    hub: bool = HfArg(default=False, help="Load the model from the Hub.")
    dtype: str = HfArg(
        default="auto",
        help="Type of the weights. On a CPU, float16 stores the weights in float16 and computes in "
        "float32; int8 is for translating, and the fastest there.",
        metadata={"choices": DTYPES},
    )
    device: str | None = HfArg(default=None, help=DEVICE_HELP)


@dataclass
class EngineFlags:
    """What translates."""

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


@dataclass
class BatchFlags:
    """The size of batches."""

    batch_size: int = HfArg(default=BATCH_SIZE, help="Maximum number of sentences in a batch.")
    max_tokens_per_batch: int = HfArg(
        default=MAX_TOKENS_PER_BATCH,
        help="Maximum number of source tokens in a batch, padding included.",
    )


def _search_flags(name: str, *left_out: str) -> Any:
    """A dataclass with a flag for each option of a search; a flag that is not given is None."""
    flags = []
    for option in fields(SearchOptions):
        default = option.metadata["default_help"] or option.default
        metadata = {"help": f"{option.metadata['help']} Default: {default}."}
        if option.metadata["choices"]:
            metadata["choices"] = option.metadata["choices"]
        if option.name not in left_out:
            kind: Any = option.type
            flags.append((option.name, kind | None, HfArg(default=None, metadata=metadata)))
    return make_dataclass(name, flags)


SearchFlags = _search_flags("SearchFlags")
# For jobs that use only the best translation of each sentence.
OneBestFlags = _search_flags("OneBestFlags", "nbest")


def given_options(search: Any) -> dict[str, Any]:
    """The options of a search that flags give; others follow the model."""
    return {name: value for name, value in vars(search).items() if value is not None}


@dataclass
class SourceFlags:
    """The language of the source, and its letters."""

    source_lang: str = HfArg(
        default=None,
        help="Language of the input (an ISO 639 code): its rules split whole texts into sentences. "
        "Default: the model's, or en.",
    )
    restore_case: bool = HfArg(
        default=False,
        help="Translate a sentence IN CAPITALS or In Title Case as if only its first letter were a "
        "capital.",
    )


@dataclass
class PairFlags:
    """How to read files of sentence pairs."""

    source_lang: str = HfArg(default=None, help="Source language. Default: the model's, or en.")
    target_lang: str = HfArg(default=None, help="Target language. Default: the model's, or de.")
    columns: str | None = HfArg(
        default=None,
        help="Languages of the two columns of a .tsv file, as in en,de. Default: the source "
        "language, then the target language.",
    )


@dataclass
class StreamFlags:
    """The file to write translations to, and the processes that translate."""

    output: str | None = HfArg(
        default=None,
        help="File to write, plain or .gz; first as OUTPUT.partial. Default: stdout.",
    )
    resume: str | None = HfArg(
        default=None,
        help="auto: if OUTPUT.partial holds lines of a stopped run of the same command, keep them, "
        "and translate the rest.",
        metadata={"choices": ["auto"]},
    )
    processes: int = HfArg(
        default=1,
        help="Processes that translate, each with its own model in memory. With GPUs, each "
        "process takes the next one.",
    )
    threads: int | None = HfArg(
        default=None,
        help="Threads of each process, for the engine torch. Default: all cores in equal parts.",
    )


@dataclass
class OutputFlags:
    """The folder to write."""

    output: str = HfArg(help="Folder to write.")


@dataclass
class SentenceFlags:
    """Sentences to compare an exported model on."""

    file: str | None = HfArg(
        default=None,
        help="File of sentences to compare on, plain or .gz. Default: 100 sentences of the "
        "built-in grammar.",
    )


@dataclass
class ServerFlags:
    """The address and the bounds of a server."""

    host: str = HfArg(
        default="127.0.0.1",
        help="Address to listen on. 127.0.0.1: only this machine can connect. 0.0.0.0: other "
        "machines can connect too.",
    )
    port: int = HfArg(default=5000, help="Port to listen on.")
    max_characters: int = HfArg(default=5000, help="Maximum number of characters in a request.")
    max_waiting: int = HfArg(
        default=2000, help="Maximum number of waiting sentences; further requests are refused."
    )
