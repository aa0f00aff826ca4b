r"""Write a teacher's translations as training pairs for a small, fast student (distillation).

aiayn distill --model runs/teacher --file data/train --output data/distilled.jsonl --num_beams 8
aiayn train-translation student.yaml --train_file data/distilled.jsonl data/train \
    --validation_file data/valid --output_dir runs/student

Of the hypotheses of each search (all beams, or --nbest N), the one nearest to the reference is
written.
"""

import json
from dataclasses import asdict, dataclass, replace

from datasets import concatenate_datasets
from transformers.hf_argparser import HfArg

from ..translation.evaluation import nearest
from ..translation.translate_file import translate_file
from ..translation.translator import Translation
from .command_line import parse_arguments
from .flags import (
    PAIRS_HELP,
    BatchFlags,
    EngineFlags,
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
    file: list[str] = HfArg(help=f"{PAIRS_HELP} Several are concatenated.")


def main() -> None:
    model, engine, batch, search, pair_flags, stream, flags = parse_arguments(
        __doc__,
        *(ModelFlags, EngineFlags, BatchFlags, SearchFlags, PairFlags, StreamFlags),
        DistillFlags,
    )
    if not (stream.output or "").removesuffix(".gz").endswith(".jsonl"):
        raise ValueError(f"--output must end in .jsonl or .jsonl.gz, got {stream.output}.")
    columns, files = find_pairs(pair_flags, model, *flags.file)
    if columns.source_lang == columns.target_lang:  # they are the keys of a pair
        raise ValueError(f"source_lang and target_lang must differ, got {columns.source_lang!r}.")
    check_outputs({"--output": stream.output}, [*files, engine.shortlist])
    pairs = concatenate_datasets([read_pairs_of(columns, file) for file in flags.file])
    references = list(pairs["target"])
    translator = load_translator(model, engine, columns)
    options = translator.search_options(**given_options(search))
    if search.nbest is None and not options.do_sample:
        options = replace(options, nbest=options.num_beams)

    def lines(number: int, translations: list[Translation]) -> list[str]:
        text = nearest(translations, references[number])
        pair = {columns.source_lang: translations[0].source, columns.target_lang: text}
        return [json.dumps(pair, ensure_ascii=False)]

    translate_file(
        translator,
        pairs["source"],
        stream.output,
        options,
        resume=stream.resume is not None,
        translate_pools=several_processes(model, engine, columns, stream),
        format_lines=lines,
        inputs=files,
        settings=asdict(columns),
        **asdict(batch),
    )
