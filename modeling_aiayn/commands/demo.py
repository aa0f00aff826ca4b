"""Train a small English-German model on a built-in grammar, and try it. Takes a few minutes.

aiayn demo
"""

import importlib
import shlex
import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from .command_line import parse_arguments

SENTENCES = (
    "Today the old man gives a red book to the child.",
    "The girls have seen my black cat because the dog can hear the horse.",
    "We must bring these flowers to a friend in the small garden.",
)


@dataclass
class DemoFlags:
    output_dir: str = HfArg(default="runs/demo", help="New or empty folder for all results.")


def main() -> None:
    (flags,) = parse_arguments(__doc__, DemoFlags)
    folder = flags.output_dir
    _run_step("train-translation", "demo.yaml", "--output_dir", folder)
    _run_step("translate", "--model", folder, "--text", *SENTENCES)
    picture = f"{folder}/attention.png"
    _run_step("show-attention", "--model", folder, "--text", SENTENCES[0], "--output", picture)
    _run_step("check-reload", "--model", folder, "--text", *SENTENCES)
    sys.stdout.write(f"Trained model, scores, card and pictures are in {folder}.\n")


def _run_step(job: str, *arguments: str) -> None:
    sys.stdout.write(f"\n$ aiayn {job} {shlex.join(arguments)}\n")
    sys.stdout.flush()
    sys.argv = [f"aiayn {job}", *arguments]
    importlib.import_module(f".{job.replace('-', '_')}", __package__).main()
