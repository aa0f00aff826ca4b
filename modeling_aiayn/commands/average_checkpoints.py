"""Average the weights of several checkpoints into one model (section 6.1).

aiayn average-checkpoints --run runs/wmt14 --last 5 --output runs/average
aiayn average-checkpoints --run runs/mine --best 5 --metric loss --output mean
aiayn average-checkpoints --checkpoints runs/a runs/b --output average
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from transformers.hf_argparser import HfArg

from ..training.averaging import best_checkpoints, last_checkpoints, write_average
from .command_line import parse_arguments


@dataclass
class AverageFlags:
    output: str = HfArg(help="Folder to write.")
    run: str | None = HfArg(default=None, help="Output folder of a training run.")
    last: int | None = HfArg(default=None, help="Average so many of the newest checkpoints.")
    best: int | None = HfArg(default=None, help="Average so many, those with the best --metric.")
    metric: str = HfArg(default="loss", help="With --best, the metric: loss, bleu, chrf, ...")
    checkpoints: list[str] | None = HfArg(default=None, help="Folders to average.")
    dtype: Literal["float32", "bfloat16", "float16"] | None = HfArg(
        default=None, help="Type of the written weights. Default: unchanged."
    )


def choose_checkpoints(flags: AverageFlags) -> list[Path]:
    if [flags.last, flags.best, flags.checkpoints].count(None) != 2:
        raise ValueError("Give exactly one of --last, --best and --checkpoints.")
    if flags.checkpoints is not None:
        return [Path(checkpoint) for checkpoint in flags.checkpoints]
    if flags.run is None:
        raise ValueError("--last and --best need --run, the output folder of a training run.")
    if flags.last is not None:
        return last_checkpoints(Path(flags.run), flags.last)
    return best_checkpoints(Path(flags.run), int(flags.best or 0), flags.metric)


def main() -> None:
    (flags,) = parse_arguments(__doc__, AverageFlags)
    folders = choose_checkpoints(flags)
    write_average(folders, Path(flags.output), flags.dtype)
    sys.stdout.write(f"{flags.output}: the mean of {', '.join(map(str, folders))}\n")
