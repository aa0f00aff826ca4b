"""Average the weights of a run's last or best checkpoints, or of any list of them (section 6.1).

    python scripts/average_checkpoints.py --run runs/wmt14 --last 5 --output runs/average
    python scripts/average_checkpoints.py --run runs/mine --best 5 --metric loss --output mean
    python scripts/average_checkpoints.py --checkpoints runs/a runs/b --output average

The output is a model like any other; its tokenizers and configuration are the last checkpoint's.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from modeling_aiayn.command_line import parse_arguments, run_script
from modeling_aiayn.training.averaging import best_checkpoints, last_checkpoints, write_average


@dataclass
class AverageArguments:
    """Which checkpoints, and where to."""

    output: str = field(metadata={"help": "The folder to make."})
    run: str | None = field(default=None, metadata={"help": "A run's folder."})
    last: int | None = field(default=None, metadata={"help": "So many of its newest."})
    best: int | None = field(
        default=None, metadata={"help": "So many of its best, of those kept and evaluated."}
    )
    metric: str = field(
        default="loss", metadata={"help": "What is best: loss, bleu, chrf, as it was evaluated."}
    )
    checkpoints: list[str] | None = field(
        default=None, metadata={"help": "These, in place of run."}
    )

    dtype: str | None = field(
        default=None,
        metadata={
            "help": "Type of the weights written: float16 is half as large. Default: as they are.",
            "choices": ["float32", "bfloat16", "float16"],
        },
    )

    def __post_init__(self) -> None:
        ways = [self.last, self.best, self.checkpoints]
        if sum(way is not None for way in ways) != 1:
            raise ValueError("Give one of last, best and checkpoints.")
        if (self.run is None) != (self.checkpoints is not None):
            raise ValueError("last and best need a run; checkpoints have their own folders.")

    def chosen(self) -> list[Path]:
        """The checkpoints' folders."""
        if self.checkpoints is not None:
            return [Path(checkpoint) for checkpoint in self.checkpoints]
        run = Path(str(self.run))
        if self.last is not None:
            return last_checkpoints(run, self.last)
        return best_checkpoints(run, int(self.best or 0), self.metric)


def main() -> None:
    """Choose, average, write."""
    (arguments,) = parse_arguments(__doc__, AverageArguments)
    folders = arguments.chosen()
    write_average(folders, Path(arguments.output), arguments.dtype)
    names = ", ".join(str(folder) for folder in folders)
    sys.stdout.write(f"{arguments.output}: the mean of {names}\n")


if __name__ == "__main__":
    run_script(main)
