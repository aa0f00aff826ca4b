"""Compare translation in int8 with CTranslate2, on one core: sentences per second.

python benchmarks/benchmark_one_core.py --model aiayn-en-de runs/student \
    --shortlist bundled.safetensors student.safetensors \
    --file data/multi30k/test_2016_flickr --join 2 --sentences 2000

Texts go in and come out, so tokenization counts. Both engines have the same weights, and with
--shortlist the same candidates. Each runs in a process of its own, and they take turns.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import torch
from own_process import OwnProcess, translate_in_turn
from transformers import AutoTokenizer
from transformers.hf_argparser import HfArg

from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.tokenization import SOURCE_TOKENIZER_FOLDER
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.shortlist import Shortlist

# CTranslate2's file of candidates: a source token, a tab, and target tokens.
VMAP = "vmap.txt"

Translate = Callable[[list[str]], list[str]]


@dataclass
class BenchmarkArguments:
    """The models, the sentences and the repetitions."""

    model: list[str] = HfArg(help="Folders of trained models of one direction.")
    file: str = HfArg(help="Sentence pairs whose sources are translated.")
    source_lang: str = HfArg(default="en", help="Source language.")
    target_lang: str = HfArg(default="de", help="Target language.")
    shortlist: list[str] | None = HfArg(
        default=None, help="A file of make-shortlist for each model."
    )
    join: int = HfArg(default=1, help="Join so many sentences into a longer one.")
    sentences: int = HfArg(default=1000, help="Number of sentences, repeated.")
    num_beams: int = HfArg(default=1, help="Number of beams.")
    rounds: int = HfArg(default=5, help="Rounds to measure, after one to warm up.")


def with_vmap(translator: Any) -> SimpleNamespace:
    """A translator of CTranslate2 that uses its file of candidates."""
    return SimpleNamespace(
        translate_batch=partial(translator.translate_batch, use_vmap=True),
        score_batch=translator.score_batch,
    )


def write_vmap(shortlist: Shortlist, translator: Translator, folder: Path) -> None:
    """Write a shortlist as CTranslate2's file of candidates; translator is the model in folder."""
    engine: Any = translator.engine
    lines = [("", shortlist.always)]
    for number, token in enumerate(engine.source_tokens):
        start, end = shortlist.starts[number : number + 2]
        lines.append((token, shortlist.ids[start:end]))
    text = "".join(
        f"{token}\t{' '.join(engine.target_tokens[each] for each in ids)}\n" for token, ids in lines
    )
    (folder / VMAP).write_text(text, "utf-8")


def make_contenders(
    model: str, shortlist: str | None, folder: Path, num_beams: int
) -> dict[str, OwnProcess]:
    """Export a model, and start a process for each engine, with and without a shortlist.

    Args:
        model: Folder of the model.
        shortlist: A file of make-shortlist for it, or None.
        folder: An empty folder for the exports.
        num_beams: Number of beams.
    """
    export = folder / "ctranslate2"
    export_ctranslate2(Translator.from_pretrained(model), export, "int8")
    jobs = {}
    if shortlist is not None:
        listed = Path(shutil.copytree(export, folder / "with_vmap"))
        exported = Translator.from_pretrained(export, engine="ctranslate2")
        write_vmap(Shortlist.read(shortlist), exported, listed)
        jobs = {
            "Translator, shortlist": partial(translate_by_us, model, shortlist, num_beams),
            "CTranslate2, vmap": partial(translate_by_ctranslate2, listed, True, num_beams),
        }
    jobs |= {
        "Translator": partial(translate_by_us, model, None, num_beams),
        "CTranslate2": partial(translate_by_ctranslate2, export, False, num_beams),
        "CTranslate2, used directly": partial(translate_directly, export, num_beams),
    }
    return {f"{model}: {name}": OwnProcess(job) for name, job in jobs.items()}


def translate_by_us(folder: Path | str, shortlist: str | None, num_beams: int) -> Translate:
    """Translate by our engine, in one thread, with a file of make-shortlist if given."""
    translator = Translator.from_pretrained(folder, dtype="int8", shortlist=shortlist)
    return partial(translator, num_beams=num_beams)


def translate_by_ctranslate2(folder: Path, use_vmap: bool, num_beams: int) -> Translate:
    """Translate by CTranslate2 in our Translator, by its file of candidates if use_vmap is true."""
    translator = Translator.from_pretrained(folder, engine="ctranslate2")
    engine: Any = translator.engine
    if use_vmap:
        engine.translator = with_vmap(engine.translator)
    return partial(translator, num_beams=num_beams)


def translate_directly(folder: Path, num_beams: int) -> Translate:
    """Translate by CTranslate2 and the tokenizer, without this package."""
    translator = ctranslate2.Translator(str(folder), compute_type="int8", intra_threads=1)
    tokenizer = AutoTokenizer.from_pretrained(folder / SOURCE_TOKENIZER_FOLDER)
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    ids = {token: index for index, token in enumerate(tokens)}

    def translate(texts: list[str]) -> list[str]:
        sources = [[tokens[index] for index in row] for row in tokenizer(texts).input_ids]
        results = translator.translate_batch(
            sources, beam_size=num_beams, batch_type="tokens", max_batch_size=1024
        )
        rows = [[ids[token] for token in result.hypotheses[0]] for result in results]
        return tokenizer.batch_decode(rows, skip_special_tokens=True)

    return translate


def one_core_table(contenders: Mapping[str, Translate], texts: list[str], rounds: int) -> str:
    """Let all translate the texts in turn.

    Args:
        contenders: Contenders by name.
        texts: The texts.
        rounds: Measured rounds, after one to warm up.

    Returns:
        A line for each: sentences per second, how many times as fast the first one is, and how many
        of its translations equal those of the first one.
    """
    medians, translations = translate_in_turn(contenders, texts, rounds)
    first, width = next(iter(medians)), max(map(len, medians))
    lines = [f"{'':<{width}}{'sentences/s':>13}{'first row':>11}{'identical':>11}"]
    for name, median in medians.items():
        same = sum(a == b for a, b in zip(translations[name], translations[first], strict=True))
        rate, ratio = len(texts) / median, median / medians[first]
        lines.append(f"{name:<{width}}{rate:>13,.0f}{ratio:>10.2f}x{same:>11,}")
    return "\n".join(lines)


def main() -> None:
    """Export, measure, and print a table.

    Raises:
        ValueError: There are shortlists, but not one for each model.
    """
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    shortlists = arguments.shortlist or [None] * len(arguments.model)
    if len(shortlists) != len(arguments.model):
        raise ValueError(
            f"--shortlist needs a file for each of the {len(arguments.model)} models, "
            f"got {len(shortlists)}."
        )
    # The processes that translate inherit both.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    languages = (arguments.source_lang, arguments.target_lang)
    sources = cycle(read_pairs(arguments.file, *languages)["source"])
    texts = [" ".join(islice(sources, arguments.join)) for _ in range(arguments.sentences)]
    words = sum(len(text.split()) for text in texts) / len(texts)
    with tempfile.TemporaryDirectory() as folder:
        contenders: dict[str, OwnProcess] = {}
        for number, each in enumerate(zip(arguments.model, shortlists, strict=True)):
            place = Path(folder) / str(number)
            contenders |= make_contenders(*each, place, arguments.num_beams)
        table = one_core_table(contenders, texts, arguments.rounds)
        for contender in contenders.values():
            contender.close()
    size = f"{len(texts):,} sentences of {words:.1f} words on average"
    heading = f"{size}, {arguments.num_beams} beams, int8, one thread"
    sys.stdout.write(f"{heading}\n{table}\n")


if __name__ == "__main__":
    run_command(main)
