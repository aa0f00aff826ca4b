"""Compare training with MarianMTModel and nn.Transformer: tokens per second, FLOP/s, memory.

    python benchmarks/benchmark_training.py --file data/multi30k/train --rounds 5

Each contender runs in a process of its own, and they take turns. A rate is that of the median
update and does not count padding.
"""

import sys
import tempfile
from dataclasses import dataclass

import torch
from training_speed import PRODUCT_SIZE, contenders, measure, memory_table, speed_table
from transformers.hf_argparser import HfArg

from modeling_aiayn import AiaynConfig
from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.tokenization import train_bpe_tokenizer
from modeling_aiayn.training.data import encode_pairs

PRECISIONS = ("bfloat16", "float32")


@dataclass
class BenchmarkArguments:
    """Data, sizes and repetitions of the benchmark."""

    file: str = HfArg(help="Sentence pairs, as for train-translation.")
    source_lang: str = HfArg(default="en", help="Source language.")
    target_lang: str = HfArg(default="de", help="Target language.")
    preset: str = HfArg(default="base", help="tiny, base or big.")
    vocab_size: int = HfArg(default=8000, help="Size of the BPE vocabulary.")
    max_tokens: int = HfArg(default=8192, help="Tokens in a batch of this package.")
    rounds: int = HfArg(default=5, help="Updates to measure, after one to warm up.")
    precisions: list[str] = HfArg(
        default_factory=lambda: list(PRECISIONS),
        help="Precisions to measure; bfloat16 means autocast.",
        metadata={"choices": PRECISIONS},
    )
    memory_vocab_size: int = HfArg(default=37_000, help="Vocabulary size of the memory test.")
    memory_length: int = HfArg(default=32, help="Tokens per sentence in the memory test.")


def main() -> None:
    """Measure, and print tables."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    pairs = read_pairs(arguments.file, arguments.source_lang, arguments.target_lang)
    tokenizer = train_bpe_tokenizer([*pairs["source"], *pairs["target"]], arguments.vocab_size)
    encoded = encode_pairs(pairs, tokenizer, tokenizer, 256, "train")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AiaynConfig.from_preset(arguments.preset, vocab_size=len(tokenizer))
    for precision in arguments.precisions:
        with tempfile.TemporaryDirectory() as folder:
            options = {
                "output_dir": folder,
                "bf16": precision == "bfloat16",
                "dataloader_pin_memory": device != "cpu",
                "disable_tqdm": True,
                "use_cpu": device == "cpu",
            }
            programs = contenders(config, encoded, tokenizer, arguments.max_tokens, options)
            updates, rate = measure(programs, getattr(torch, precision), device, arguments.rounds)
            for contender in programs.values():
                contender.close()
        sys.stdout.write(f"\n{precision}: {PRODUCT_SIZE}^3 products at {rate / 1e9:.0f} GFLOP/s\n")
        sys.stdout.write(f"{speed_table(updates, rate)}\n")
    base = AiaynConfig.from_preset("base", vocab_size=arguments.memory_vocab_size)
    table = memory_table(base, arguments.max_tokens, arguments.memory_length)
    sys.stdout.write(f"\n{table}\n")


if __name__ == "__main__":
    run_command(main)
