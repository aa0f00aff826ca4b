r"""Write a teacher's translations as training pairs for a small, fast student (distillation).

aiayn distill --model runs/teacher --file data/train --output data/distilled.jsonl --num_beams 8
aiayn train-translation student.yaml --train_file data/distilled.jsonl data/train \
    --validation_file data/valid --output_dir runs/student

Of the hypotheses of each search (all beams, or --nbest N), the one nearest to the reference is
written. With --input, sources without references, the best one is written.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import concatenate_datasets
from transformers.hf_argparser import HfArg

from ..data.lines import stream_lines
from ..translation.evaluation import nearest
from ..translation.translate_file import translate_file
from ..translation.translator import Translation
from .command_line import parse_arguments
from .flags import (
    PAIRS_HELP,
    BatchFlags,
    EngineFlags,
    LanguageFlags,
    ModelFlags,
    PairFlags,
    SearchFlags,
    StreamFlags,
    check_outputs,
    find_pairs,
    given_options,
    load_translator,
    read_pairs_of,
    several_processes,
)


@dataclass
class DistillFlags:
    file: list[str] | None = HfArg(default=None, help=f"{PAIRS_HELP} Several are concatenated.")
    input: list[str] | None = HfArg(
        default=None, help="Files of sources, a sentence per line, plain or .gz, instead of pairs."
    )

    def __post_init__(self) -> None:
        if (self.file is None) == (self.input is None):
            raise ValueError("Give either --file or --input.")


def main() -> None:
    write_pairs(__doc__)


def write_pairs(description: str, **defaults: Any) -> None:
    """Run the job of this command; defaults override the default values of flags."""
    model, engine, batch, search, pair_flags, stream, flags = parse_arguments(
        description,
        *(ModelFlags, EngineFlags, BatchFlags, SearchFlags, PairFlags, StreamFlags),
        DistillFlags,
        **defaults,
    )
    if not (stream.output or "").removesuffix(".gz").endswith(".jsonl"):
        raise ValueError(f"--output must end in .jsonl or .jsonl.gz, got {stream.output}.")
    columns, files = find_pairs(pair_flags, model, *(flags.file or ()))
    files += map(Path, flags.input or ())
    if columns.source_lang == columns.target_lang:  # they are keys of a written pair
        raise ValueError(f"source_lang and target_lang must differ, got {columns.source_lang!r}.")
    check_outputs({"--output": stream.output}, [*files, engine.shortlist])
    # If users type language tags, the sources of pairs already have them.
    given = (pair_flags.source_lang, pair_flags.target_lang)
    languages = columns if flags.file else LanguageFlags(*given)
    translator = load_translator(model, engine, languages)
    if translator.needs_languages:  # with --input, the model may lack the default languages
        translator.direction()
    options = translator.search_options(**given_options(search))
    references: Sequence[str] | None = None
    if flags.file:
        pairs = concatenate_datasets([read_pairs_of(columns, file) for file in flags.file])
        sources, references = pairs["source"], list(pairs["target"])
        if search.nbest is None and not options.do_sample:
            options = replace(options, nbest=options.num_beams)
    else:
        sources = chain.from_iterable(map(stream_lines, flags.input))

    def lines(number: int, translations: list[Translation]) -> list[str]:
        text = translations[0].text
        if references is not None:
            text = nearest(translations, references[number])
        pair = {columns.source_lang: translations[0].source, columns.target_lang: text}
        return [json.dumps(pair, ensure_ascii=False)]

    translate_file(
        translator,
        sources,
        stream.output,
        options,
        resume=stream.resume is not None,
        translate_pools=several_processes(model, engine, languages, stream),
        format_lines=lines,
        inputs=files,
        settings=asdict(columns),
        **asdict(batch),
    )
