"""Measure the preparation of a large corpus: time and memory until the first update.

    python benchmarks/benchmark_data.py --pairs 20000 2000000

The corpora are made from seeds, and each is prepared twice: the second start finds a cache. The
memory is the most that all processes of a start have of their own together, without the pages of
files: Pss_Anon and Pss_Shmem of Linux.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import datasets
import psutil
from synthetic_corpus import write_corpus
from transformers.hf_argparser import HfArg

from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.training import AiaynTrainer, AiaynTrainingArguments
from modeling_aiayn.training.data import DataArguments
from modeling_aiayn.training.prepared_data import prepare_data_once
from modeling_aiayn.training.setup import ModelArguments, NewModel

HELD_OUT = 500
TRAINING = (
    *("--preset", "tiny", "--vocab_size", "32000", "--max_tokens_per_batch", "4096"),
    *("--warmup_steps", "1", "--max_steps", "1", "--save_steps", "1", "--save_strategy", "steps"),
    *("--eval_strategy", "no", "--report_to", "none", "--use_cpu", "true"),
)


@dataclass
class BenchmarkArguments:
    """Sizes of the corpora."""

    pairs: list[int] = HfArg(
        default_factory=lambda: [20_000, 2_000_000], help="Numbers of training pairs to prepare."
    )
    folder: str | None = HfArg(
        default=None, help="Folder of corpora and caches. Default: one that is deleted at the end."
    )
    flags: str = HfArg(
        default="--preprocessing_num_workers 2", help="More flags of train-translation."
    )


def main() -> None:
    """Measure, and print a table."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(exist_ok=True)
        write_corpus(folder / "validation", HELD_OUT, seed=2)
        sys.stdout.write(
            "| pairs | start | seconds to the first update | megabytes |\n|---|---|---|---|\n"
        )
        for pairs in arguments.pairs:
            train = folder / f"train-{pairs}"
            if not Path(f"{train}.en").exists():
                write_corpus(train, pairs, seed=1)
            for start in ("first", "second"):
                seconds, megabytes = measure_start(folder, train, arguments.flags.split())
                sys.stdout.write(f"| {pairs:,} | {start} | {seconds:.1f} | {megabytes:,.0f} |\n")
                sys.stdout.flush()
        speed = loader_speed(folder, train, workers=2)
        sys.stdout.write(
            f"\nBatches of 25,000 tokens, by 2 workers: {speed:,.0f} tokens a second\n"
        )


def loader_speed(folder: Path, train: Path, workers: int, seconds: float = 20) -> float:
    """Tokens a second of the training batches alone, without padding."""
    datasets.config.HF_DATASETS_CACHE = folder / "cache" / "datasets"
    files = {"train_file": [str(train)], "validation_file": [str(folder / "validation")]}
    data = DataArguments(**files, preprocessing_num_workers=2)
    start = NewModel(ModelArguments(preset="tiny", vocab_size=32_000))
    with tempfile.TemporaryDirectory() as output:
        args = AiaynTrainingArguments(
            output_dir=output,
            use_cpu=True,
            max_tokens_per_batch=25_000,
            dataloader_num_workers=workers,
            disable_tqdm=True,
        )
        prepared = prepare_data_once(args, data, start.tokenizers)
        source, target = prepared.source_tokenizer, prepared.target_tokenizer
        splits = prepared.splits
        trainer = AiaynTrainer(
            model=start.build(source, target),
            args=args,
            train_dataset=splits["train"],
            eval_dataset=splits["validation"],
            processing_class=source,
        )
        batches = iter(trainer.get_train_dataloader())
        next(batches)
        tokens, started = 0, time.perf_counter()
        while (passed := time.perf_counter() - started) < seconds:
            batch = next(batches)
            tokens += int(batch["attention_mask"].sum() + (batch["labels"] != -100).sum())
    return tokens / passed


def measure_start(folder: Path, train: Path, flags: list[str]) -> tuple[float, float]:
    """Seconds until a run has saved its first update, and the memory of its processes."""
    data = ("--train_file", str(train), "--validation_file", str(folder / "validation"))
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "modeling_aiayn", "train-translation", *TRAINING, *data]
        process = subprocess.Popen(
            [*command, "--output_dir", output, *flags],
            env=os.environ | {"HF_HOME": str(folder / "cache")},
            stderr=(folder / "log").open("a"),
        )
        started, megabytes = time.perf_counter(), 0.0
        while process.poll() is None and not Path(output, "checkpoint-1").is_dir():
            megabytes = max(megabytes, _own_megabytes(process.pid))
            time.sleep(0.5)
        seconds = time.perf_counter() - started
        process.send_signal(signal.SIGTERM)
        process.wait()
    return seconds, megabytes


def _own_megabytes(pid: int) -> float:
    kilobytes = 0
    parent = psutil.Process(pid)
    for process in [parent, *parent.children(recursive=True)]:
        try:
            memory = Path(f"/proc/{process.pid}/smaps_rollup").read_text("utf-8")
        except OSError:  # it has ended
            continue
        kilobytes += sum(map(int, re.findall(r"Pss_(?:Anon|Shmem): *(\d+) kB", memory)))
    return kilobytes / 1024


if __name__ == "__main__":
    run_command(main)
