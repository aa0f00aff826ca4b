"""Compare greedy translation in int8 with CTranslate2, on one core: sentences per second.

python benchmarks/benchmark_one_core.py --model runs/student --file data/multi30k/test_2016_flickr \
    --shortlist runs/student/shortlist.safetensors --join 2 --sentences 2000

Texts go in and come out, so tokenization counts. Both engines have the same weights, and with
--shortlist the same candidates. Each runs in a process of its own, and they take turns.
"""

import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.corpus import read_pairs
from modeling_aiayn.interop.ctranslate2_export import export_ctranslate2
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.shortlist import Shortlist

# CTranslate2's file of candidates: a source token, a tab, and target tokens.
VMAP = "vmap.txt"


@dataclass
class BenchmarkArguments:
    """The model, the sentences and the repetitions."""

    model: str = field(metadata={"help": "Folder of a trained model."})
    file: str = field(metadata={"help": "Sentence pairs whose sources are translated."})
    source_lang: str = field(default="en", metadata={"help": "Source language."})
    target_lang: str = field(default="de", metadata={"help": "Target language."})
    shortlist: str | None = field(default=None, metadata={"help": "A file of make-shortlist."})
    join: int = field(default=1, metadata={"help": "Join so many sentences into a longer one."})
    sentences: int = field(default=1000, metadata={"help": "Number of sentences, repeated."})
    rounds: int = field(default=5, metadata={"help": "Rounds to measure, after one to warm up."})


class WithVmap:
    """A translator of CTranslate2 that uses its file of candidates.

    Args:
        translator: The translator.
    """

    def __init__(self, translator: Any) -> None:
        self.translator = translator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.translator, name)

    def translate_batch(self, *arguments: Any, **options: Any) -> Any:
        """Translate with the candidates.

        Args:
            *arguments: As for the translator.
            **options: As for the translator.

        Returns:
            Its results.
        """
        return self.translator.translate_batch(*arguments, use_vmap=True, **options)


def write_vmap(shortlist: Shortlist, translator: Translator, folder: Path) -> None:
    """Write a shortlist as CTranslate2's file of candidates.

    Args:
        shortlist: The shortlist.
        translator: The exported model.
        folder: The folder that it was exported to.
    """
    engine: Any = translator.engine
    lines = [("", shortlist.always)]
    for number, token in enumerate(engine.source_tokens):
        start, end = shortlist.starts[number : number + 2]
        lines.append((token, shortlist.ids[start:end]))
    text = "".join(
        f"{token}\t{' '.join(engine.target_tokens[each] for each in ids)}\n" for token, ids in lines
    )
    (folder / VMAP).write_text(text, "utf-8")


def serve(requests: Connection, folder: str, shortlist: str | None, is_ctranslate2: bool) -> None:
    """Translate texts in one thread until the connection is closed.

    Args:
        requests: Sends texts each time, and receives their translations.
        folder: The model.
        shortlist: A file of make-shortlist; for CTranslate2, whether to use its own.
        is_ctranslate2: Whether the folder is an export.
    """
    torch.set_num_threads(1)
    if is_ctranslate2:
        translator = Translator.from_pretrained(folder, engine="ctranslate2")
        engine: Any = translator.engine
        engine.translator = engine.translator if shortlist is None else WithVmap(engine.translator)
    else:
        translator = Translator.from_pretrained(folder, dtype="int8", shortlist=shortlist)
    requests.send("ready")
    while True:
        try:
            requests.send(translator(requests.recv(), num_beams=1))
        except EOFError:
            return


def start(folder: Path | str, shortlist: str | None, is_ctranslate2: bool) -> Connection:
    """Start a process that translates; it ends with this one.

    Args:
        folder: As for `serve`.
        shortlist: As for `serve`.
        is_ctranslate2: As for `serve`.

    Returns:
        The connection to it.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    arguments = (theirs, str(folder), shortlist, is_ctranslate2)
    context.Process(target=serve, args=arguments, daemon=True).start()
    theirs.close()
    ours.recv()  # the process is ready
    return ours


def measure(contenders: dict[str, Connection], texts: Sequence[str], rounds: int) -> str:
    """Let all translate the texts in turn.

    Args:
        contenders: Their processes by name, ours first.
        texts: The texts.
        rounds: Measured rounds, after one to warm up.

    Returns:
        A line for each: sentences per second, the ratio to ours, and identical translations.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    found: dict[str, list[str]] = {}
    for number in tqdm(range(rounds + 1), unit="round"):
        for name, process in contenders.items():
            before = time.perf_counter()
            process.send(list(texts))
            found[name] = process.recv()
            if number:
                seconds[name].append(time.perf_counter() - before)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    ours = next(iter(medians))
    lines = [f"{'':<28}{'sentences/s':>12}{'ours':>8}{'identical':>11}"]
    for name, median in medians.items():
        same = sum(a == b for a, b in zip(found[name], found[ours], strict=True))
        rate, ratio = len(texts) / median, median / medians[ours]
        lines.append(f"{name:<28}{rate:>12,.0f}{ratio:>7.2f}x{same:>11,}")
    return "\n".join(lines)


def main() -> None:
    """Export, measure, and print a table."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that translate
    languages = (arguments.source_lang, arguments.target_lang)
    sources = cycle(read_pairs(arguments.file, *languages)["source"])
    texts = [" ".join(islice(sources, arguments.join)) for _ in range(arguments.sentences)]
    words = sum(len(text.split()) for text in texts) / len(texts)
    with tempfile.TemporaryDirectory() as folder:
        export = Path(folder) / "ctranslate2"
        export_ctranslate2(Translator.from_pretrained(arguments.model), export, "int8")
        contenders = {
            "Translator int8": start(arguments.model, None, False),
            "CTranslate2 int8": start(export, None, True),
        }
        if arguments.shortlist is not None:
            with_vmap = shutil.copytree(export, Path(folder) / "with_vmap")
            exported = Translator.from_pretrained(export, engine="ctranslate2")
            write_vmap(Shortlist.read(arguments.shortlist), exported, with_vmap)
            contenders = {
                "Translator int8, shortlist": start(arguments.model, arguments.shortlist, False),
                "CTranslate2 int8, vmap": start(with_vmap, arguments.shortlist, True),
            } | contenders
        table = measure(contenders, texts, arguments.rounds)
    heading = f"{len(texts):,} sentences of {words:.1f} words on average, greedy, one thread"
    sys.stdout.write(f"{heading}\n{table}\n")


if __name__ == "__main__":
    run_command(main)
