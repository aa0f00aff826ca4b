"""Flags that jobs share, and functions that load the models and pairs that flags name."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg
from transformers.utils import CONFIG_NAME

import modeling_aiayn

from ..saved.folders import find_file, load_config
from ..saved.languages import (
    DEFAULT_LANGUAGES,
    choose_languages,
    iso_639,
    known_language,
    languages_of,
    saved_languages,
)
from ..saved.loading import BUNDLED_MODEL, BUNDLED_MODELS, find_model, load_checked
from ..saved.tokenizers import load_tokenizer
from ..translation.letter_case import natural_case
from ..translation.options import SearchOptions
from ..translation.pools import BATCH_SIZE, MAX_TOKENS_PER_BATCH
from ..translation.processes import default_device, translate_in_processes
from ..translation.translate_file import PARTIAL
from ..translation.translator import DTYPES, Translation, Translator

logger = logging.getLogger(__name__)

DEVICE_HELP = "cpu, cuda, ... Default: a GPU if there is one."
PAIRS_HELP = (
    "Sentence pairs: a .tsv, .jsonl, .tmx, .csv, .json or .parquet, or the prefix of two files "
    "(data/test.en and .de)."
)


@dataclass
class ModelFlags:
    model: list[str] = HfArg(
        default_factory=lambda: [BUNDLED_MODEL],
        help="Folder of a model, or a bundled model: aiayn-en-de (the default) or aiayn-de-en. "
        "Several translation models with the same vocabulary form an ensemble.",
    )
    hub: bool = HfArg(default=False, help="The model is a repository on the Hub.")
    dtype: str = HfArg(
        default="auto",
        help="Type of the weights. int8 is the fastest on a CPU, and only for translating.",
        metadata={"choices": DTYPES},
    )
    device: str | None = HfArg(default=None, help=DEVICE_HELP)


@dataclass
class EngineFlags:
    engine: Literal["torch", "ctranslate2"] = HfArg(
        default="torch", help="ctranslate2: for a folder of export-ctranslate2."
    )
    shortlist: str | None = HfArg(default=None, help="File of make-shortlist, for speed.")
    glossary: str | None = HfArg(
        default=None,
        help="File of terms: TERM<tab>TRANSLATION. TERM<tab>= keeps it, <tab>=X writes exactly X.",
    )
    memory: str | None = HfArg(
        default=None,
        help="File of pairs, such as .tmx or .tsv. Sentences in it get its translations.",
    )


@dataclass
class BatchFlags:
    batch_size: int = HfArg(default=BATCH_SIZE, help="Maximum number of sentences in a batch.")
    max_tokens_per_batch: int = HfArg(
        default=MAX_TOKENS_PER_BATCH, help="Maximum number of source tokens, padding included."
    )


def _search_flags(name: str, *left_out: str) -> Any:
    """Make a dataclass with a flag for each search option; a flag that is not given is None."""
    flags = []
    for option in fields(SearchOptions):
        default = option.metadata["default_help"] or option.default
        text = f"{option.metadata['help']} Default: {default}."
        metadata = {"help": text, "choices": option.metadata["choices"] or None}
        if option.name not in left_out:
            kind: Any = option.type
            flags.append((option.name, kind | None, HfArg(default=None, metadata=metadata)))
    return make_dataclass(name, flags)


SearchFlags = _search_flags("SearchFlags")
# For jobs that use only the best translation of each sentence.
OneBestFlags = _search_flags("OneBestFlags", "nbest")


def given_options(search: Any) -> dict[str, Any]:
    """Return the search options that flags set; for others, the model's defaults apply."""
    return {name: value for name, value in vars(search).items() if value is not None}


@dataclass
class LanguageFlags:
    source_lang: str = HfArg(default=None, help="Source language. Default: the model's, or en.")
    target_lang: str = HfArg(default=None, help="Target language. Default: the model's, or de.")


@dataclass
class SourceFlags(LanguageFlags):
    restore_case: bool = HfArg(default=False, help="Translate CAPITALS and Titles as normal text.")


@dataclass
class PairFlags(LanguageFlags):
    columns: str | None = HfArg(default=None, help="Columns of a .tsv file: en,de.")


@dataclass
class StreamFlags:
    output: str | None = HfArg(default=None, help="File, plain or .gz. Default: stdout.")
    resume: Literal["auto"] | None = HfArg(
        default=None, help="auto: keep the lines of OUTPUT.partial, and translate the rest."
    )
    processes: int = HfArg(default=1, help="Processes that translate, on GPUs in turn if any.")
    threads: int | None = HfArg(default=None, help="Threads of each process. Default: all cores.")


@dataclass
class OutputFlags:
    output: str = HfArg(help="Folder to write.")


@dataclass
class ServerFlags:
    host: str = HfArg(default="127.0.0.1", help="Address. 0.0.0.0: other machines can connect.")
    port: int = HfArg(default=5000, help="Port to listen on.")
    max_characters: int = HfArg(default=5000, help="Maximum number of characters in a request.")
    max_waiting: int = HfArg(default=2000, help="Maximum number of waiting sentences.")


def load_translator(
    model: ModelFlags,
    engine: EngineFlags | None = None,
    languages: LanguageFlags | None = None,
    process: int = 0,
) -> Translator:
    """Load a translator in the process with this number. Jobs without an engine use one model."""
    if engine is None and len(model.model) > 1:
        raise ValueError(f"This command takes one --model, got {len(model.model)}.")
    engine = engine or EngineFlags()
    options: dict[str, Any] = {"hub": model.hub, "shortlist": engine.shortlist}
    if engine.engine == "torch":
        options |= {"dtype": model.dtype, "device": default_device(model.device, process)}
    else:
        options |= {} if model.dtype == "auto" else {"dtype": model.dtype}
        options |= {"engine": engine.engine, "device": model.device or "cpu"}
    translator = Translator.from_pretrained(model.model, **options)
    # If users type the model's tags into sources, the sources of pairs already have them.
    is_written = isinstance(languages, PairFlags) and not translator.needs_languages
    if translator.languages and is_written:
        logger.warning("The sources of pairs must have the model's tags: none is added.")
    elif translator.languages and languages is not None:
        translator.set_languages(languages.source_lang, languages.target_lang)
    elif isinstance(languages, SourceFlags):
        _check_direction(translator, model.model[0], languages)
    if engine.glossary is not None:
        translator.use_glossary(engine.glossary)
    if engine.memory is not None:
        from ..data.corpus import stream_rows  # imports datasets, which takes half a second

        source, target = (x or y for x, y in zip(translator.codes, DEFAULT_LANGUAGES, strict=True))
        rows = stream_rows([engine.memory], source, target)
        translator.use_memory(
            {x["source"]: x["target"] for x in rows if x["source"] and x["target"]}
        )
    return translator


def _check_direction(translator: Translator, name: str, given: LanguageFlags) -> None:
    """Check that languages match a model of one direction, if its folder names languages."""
    saved = languages_of(translator.source_tokenizer)
    wanted = (given.source_lang, given.target_lang)
    for mine, flag in zip(saved, wanted, strict=True):
        if mine and flag and not known_language(flag, (mine,)):
            source, target = wanted
            others = [x for x in BUNDLED_MODELS if x != name and name in BUNDLED_MODELS]
            is_reverse = {*wanted} - {None} <= {*saved} and others
            hint = f"--model {others[0]}" if is_reverse else "a model of that direction"
            raise ValueError(
                f"{name} translates from {saved[0]} to {saved[1]}, got --source_lang {source} and "
                f"--target_lang {target}. Use {hint}."
            )


def several_processes(
    model: ModelFlags, engine: EngineFlags, languages: Any, stream: StreamFlags
) -> Callable[..., Iterator[list[Translation]]] | None:
    """Set the number of threads; return a function for several processes, or None for one."""
    if stream.threads is not None:
        torch.set_num_threads(stream.threads)
    if stream.processes == 1:
        return None
    threads = stream.threads or max(1, torch.get_num_threads() // stream.processes)
    load = partial(load_translator, model, engine, languages)
    return partial(translate_in_processes, load, stream.processes, threads)


def sentence_preparation(source: SourceFlags, model: ModelFlags) -> tuple[str, Callable[..., str]]:
    """Return the source language, and a function that prepares a sentence for the model.

    For a multilingual model, the function also accepts the language of the sentence.
    """
    saved = saved_languages(model.model[0], model.hub)
    language = source.source_lang or (saved or DEFAULT_LANGUAGES)[0]
    if source.restore_case:
        code = iso_639(language)  # imports langcodes, which takes a quarter of a second
        return language, lambda sentence, language=code: natural_case(sentence, language)
    return language, lambda sentence, _="": sentence


def saved_architecture(path: str | Path, hub: bool = False) -> str:
    """Return the class that a model was saved as; "" for an adapter, which names none."""
    path = path if hub else find_model(path)
    is_whole = Path(path, CONFIG_NAME).is_file()
    if not (is_whole or (hub and find_file(path, CONFIG_NAME, {}) is not None)):
        return ""
    return next(iter(load_config(path, hub=hub).architectures or []), "")


def load_with_tokenizer(
    architecture: str, path: str | Path, hub: bool = False, **options: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model as a class of this package or of transformers, and its tokenizer."""
    saved_as = load_config(path, hub=hub).architectures or ["none"]
    if architecture not in saved_as:  # a translation model's decoder is not a language model
        raise ValueError(f"{path} must hold a model saved as {architecture}, got {saved_as[0]}.")
    library = modeling_aiayn if hasattr(modeling_aiayn, architecture) else transformers
    model = load_checked(getattr(library, architecture), path, hub=hub, **options)
    return model, load_tokenizer(path, trust_remote_code=False, local_files_only=not hub)


def find_pairs(pairs: PairFlags, model: ModelFlags, *paths: str) -> tuple[PairFlags, list[Path]]:
    """Take languages that flags do not give from the model; also return the files of paths."""
    from ..data.corpus import files_of  # imports datasets, which takes half a second

    name = next(iter(model.model or []), None)
    languages = choose_languages(pairs.source_lang, pairs.target_lang, name, model.hub)
    files = [file for path in paths for file in files_of(path, *languages)]
    return replace(pairs, source_lang=languages[0], target_lang=languages[1]), files


def read_pairs_of(pairs: PairFlags, path: str) -> Any:
    from ..data.corpus import parse_columns, read_pairs

    return read_pairs(path, pairs.source_lang, pairs.target_lang, parse_columns(pairs.columns))


def check_outputs(outputs: dict[str, str | None], inputs: Iterable[str | Path | None]) -> None:
    """Check that each flag's output can be written, and is not an input or another output."""
    read = [Path(path) for path in inputs if path is not None and Path(path).is_file()]
    given = {flag: Path(output) for flag, output in outputs.items() if output is not None}
    for flag, output in given.items():
        if output.is_dir():
            raise IsADirectoryError(f"{flag} must be a file, got the folder {output}.")
        if not output.exists() and not os.access(output.resolve().parent, os.W_OK):
            raise OSError(f"{flag} {output}: the folder does not exist, or cannot be written.")
        for name in (output, Path(f"{output.resolve()}{PARTIAL}")):
            if name.exists() and any(name.samefile(path) for path in read):
                raise ValueError(f"{flag} would overwrite {name}, an input. Pass another file.")
    if len({output.resolve() for output in given.values()}) < len(given):
        raise ValueError(f"{' and '.join(given)} must be different files.")
