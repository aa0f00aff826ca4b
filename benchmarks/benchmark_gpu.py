"""Training and translation on a GPU, beside Marian, CTranslate2 and generate(); 8 minutes.

    python benchmarks/benchmark_gpu.py
    python benchmarks/benchmark_gpu.py --presets tiny --max_tokens 800 --vocab_size 500 \
        --pairs 2000 --batches 4 --rounds 2 --peak 1e12   # a try on a CPU

Made-up pairs with 27 words a side, as in WMT14; random weights. Each contender runs in a process of
its own, and they take turns. The profile shows where the time of a step of the search goes.
"""

import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch
from datasets import Dataset
from decoding_speed import decoding_contenders, decoding_table, engine_decode
from decoding_speed import measure as measure_decoding
from own_process import OwnProcess
from peers import marian
from synthetic_corpus import write_corpus
from torch.profiler import ProfilerActivity, profile
from training_speed import measure, our_updates, peer_updates, speed_table
from transformers import PreTrainedTokenizerBase
from transformers.hf_argparser import HfArg

from modeling_aiayn import AiaynConfig
from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.tokenization import train_bpe_tokenizer
from modeling_aiayn.training.data import encode_pairs

# Updates of the paper's models, their tokens (source and target), and GPUs.
PAPER = {"base": 100_000, "big": 300_000}
PAPER_TOKENS, PAPER_GPUS = 50_000, 8
TOKENS_OF_A_PAIR = 80


@dataclass
class BenchmarkArguments:
    """Sizes and repetitions of the benchmark."""

    presets: list[str] = HfArg(default_factory=lambda: ["base", "big"], help="Sizes to train.")
    max_tokens: int = HfArg(default=25_000, help="Tokens in a batch, source plus target.")
    vocab_size: int = HfArg(default=37_000, help="Size of the vocabulary.")
    pairs: int = HfArg(default=30_000, help="Number of made-up pairs.")
    batches: list[int] = HfArg(default_factory=lambda: [32, 256], help="Sentences to decode.")
    rounds: int = HfArg(default=10, help="Updates or batches to measure, after one to warm up.")
    peak: float = HfArg(
        default=989e12, help="Multiplications and additions a second in bfloat16; of an H200."
    )


def main() -> None:
    """Measure, and print tables."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder) / "pairs", arguments.pairs, seed=0)
        pairs = read_pairs(f"{folder}/pairs", "en", "de")
    tokenizer = train_bpe_tokenizer([*pairs["source"], *pairs["target"]], arguments.vocab_size)
    rows = encode_pairs(pairs, tokenizer, tokenizer, 256, "train")
    rows = rows.select_columns(["input_ids", "labels"])
    for preset in arguments.presets:
        compare_training(preset, rows, tokenizer, arguments, device)
    config = AiaynConfig.from_preset(arguments.presets[0], vocab_size=len(tokenizer))
    sources = rows["input_ids"][:1000]
    contenders = decoding_contenders(config, tokenizer, ["bfloat16"], device=device)
    for batch_size in arguments.batches:
        measure_decoding(contenders, sources, batch_size, 4, arguments.rounds, steady=True)
        sys.stdout.write(f"\n{batch_size} sentences, 4 beams\n")
        sys.stdout.write(f"{decoding_table(contenders, batch_size)}\n")
    for contender in contenders:
        contender.decode.close()
    decode = engine_decode(config, "bfloat16", device)
    decode(sources[:32], 4)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        decode(sources[:32], 4)
    times = recorded.key_averages()
    sys.stdout.write(f"\n32 steps, 32 sentences, 4 beams\n{times.table('cpu_time_total', 25)}\n")


def compare_training(
    preset: str,
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    arguments: BenchmarkArguments,
    device: str,
) -> None:
    """Print the speed of our trainer with each attention, and of Marian in the library's."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"output_dir": folder, "bf16": True, "disable_tqdm": True}
        options |= {"use_cpu": device == "cpu", "dataloader_pin_memory": device != "cpu"}
        jobs = {}
        for attention in ("eager", "sdpa", "aiayn_blockwise"):
            config = AiaynConfig.from_preset(preset, vocab_size=len(tokenizer))
            config._attn_implementation = attention
            ours = partial(our_updates, config, rows, tokenizer, arguments.max_tokens)
            jobs[f"ours, {attention}"] = partial(ours, options)
        jobs["ours, aiayn_blockwise, compiled"] = partial(ours, options | {"torch_compile": True})
        grouped = options | {"train_sampling_strategy": "group_by_length"}
        grouped["per_device_train_batch_size"] = max(arguments.max_tokens // TOKENS_OF_A_PAIR, 1)
        model = partial(marian, implementation="sdpa")
        jobs["Marian, sdpa"] = partial(peer_updates, model, config, rows, tokenizer, grouped)
        programs = {name: OwnProcess(job) for name, job in jobs.items()}
        updates, _ = measure(programs, torch.bfloat16, device, arguments.rounds)
        for program in programs.values():
            program.close()
    sys.stdout.write(f"\n{preset}, products relative to the given peak\n")
    sys.stdout.write(f"{speed_table(updates, arguments.peak)}\n")
    rate = median(each.tokens / each.seconds for each in updates["ours, eager"])
    if preset in PAPER:
        hours = PAPER[preset] * PAPER_TOKENS / rate / PAPER_GPUS / 3600
        sys.stdout.write(f"The paper's updates on 8 such GPUs, without loss: {hours:.1f} hours\n")


if __name__ == "__main__":
    run_command(main)
