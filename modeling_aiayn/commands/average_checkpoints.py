"""Average the weights of several checkpoints into one model (section 6.1).

aiayn average-checkpoints --run runs/wmt14 --last 5 --output runs/average
aiayn average-checkpoints --run runs/mine --best 5 --metric loss --output mean
aiayn average-checkpoints --checkpoints runs/a runs/b --output average

The output is a model folder with the tokenizers and the configuration of the last checkpoint.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from transformers.hf_argparser import HfArg

from ..training.averaging import best_checkpoints, last_checkpoints, write_average
from ..training.ignored_flags import reject_ignored
from .command_line import parse_arguments


@dataclass
class AverageFlags:
    """The checkpoints to average, and the folder to write."""

    output: str = HfArg(help="Folder to write.")
    run: str | None = HfArg(default=None, help="Output folder of a training run.")
    last: int | None = HfArg(
        default=None, help="Average this many of the run's newest checkpoints."
    )
    best: int | None = HfArg(
        default=None,
        help="Average this many of the evaluated checkpoints, those with the best --metric.",
    )
    metric: str = HfArg(default="loss", help="With --best, the metric: loss, bleu, chrf, ...")
    checkpoints: list[str] | None = HfArg(
        default=None, help="Folders to average, instead of a run's checkpoints."
    )
    dtype: str | None = HfArg(
        default=None,
        help="Type of the written weights; float16 halves the file. Default: unchanged.",
        metadata={"choices": ["float32", "bfloat16", "float16"]},
    )

    def __post_init__(self) -> None:
        ways = [self.last, self.best, self.checkpoints]
        if sum(way is not None for way in ways) != 1:
            raise ValueError("Give exactly one of --last, --best and --checkpoints.")
        reject_ignored(self, "metric", "needs --best", is_ignored=self.best is None)
        if (self.run is None) != (self.checkpoints is not None):
            raise ValueError(
                "--last and --best need --run; --checkpoints must be given without --run."
            )

    def choose_checkpoints(self) -> list[Path]:
        """The folders of the checkpoints to average."""
        if self.checkpoints is not None:
            return [Path(checkpoint) for checkpoint in self.checkpoints]
        run = Path(str(self.run))
        if self.last is not None:
            return last_checkpoints(run, self.last)
        return best_checkpoints(run, int(self.best or 0), self.metric)


def main() -> None:
    """Choose, average, write."""
    (flags,) = parse_arguments(__doc__, AverageFlags)
    folders = flags.choose_checkpoints()
    write_average(folders, Path(flags.output), flags.dtype)
    names = ", ".join(str(folder) for folder in folders)
    sys.stdout.write(f"{flags.output}: the mean of {names}\n")
