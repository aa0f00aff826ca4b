"""Time a training step of our model beside MarianMTModel's, at the same sizes and in one run.

    python benchmarks/training_step.py --rounds 5

Forward and backward of each contender in turn, round by round; medians, and ratios to ours.
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from tqdm import tqdm
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from modeling_aiayn import AiaynConfig, AiaynForConditionalGeneration
from modeling_aiayn.command_line import parse_arguments, run_script


@dataclass
class BenchmarkArguments:
    """What to time."""

    preset: str = field(default="base", metadata={"help": "tiny, base or big."})
    batch_size: int = field(default=64, metadata={"help": "Sentence pairs."})
    length: int = field(default=32, metadata={"help": "Tokens of each source and target."})
    rounds: int = field(default=5, metadata={"help": "Steps of each contender."})
    device: str = field(default="cpu", metadata={"help": "cpu or cuda."})


def contenders(preset: str) -> dict[str, PreTrainedModel]:
    """Ours under eager, Marian under eager and sdpa; the same sizes, dropout and activation."""
    config = AiaynConfig.from_preset(preset, attn_implementation="eager")
    names = (
        *("vocab_size", "d_model", "encoder_layers", "decoder_layers", "dropout"),
        *("encoder_attention_heads", "decoder_attention_heads"),
        *("encoder_ffn_dim", "decoder_ffn_dim", "pad_token_id", "eos_token_id"),
    )
    shared = {name: getattr(config, name) for name in names}
    models = {"ours, eager": AiaynForConditionalGeneration(config)}
    for implementation in ("eager", "sdpa"):
        marian = MarianConfig(
            **shared,
            activation_function="relu",
            scale_embedding=True,
            decoder_start_token_id=config.decoder_start_token_id,
            attn_implementation=implementation,
        )
        models[f"Marian, {implementation}"] = MarianMTModel(marian)
    return models


def time_step(model: PreTrainedModel, batch: dict[str, torch.Tensor], bf16: bool) -> float:
    """Seconds of one forward and backward."""
    device = batch["input_ids"].device
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    model.zero_grad()
    wait()
    start = time.perf_counter()
    with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
        loss = model(**batch).loss
    loss.backward()
    wait()
    return time.perf_counter() - start


def main() -> None:
    """Time each contender in turn, and print medians and ratios."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    torch.manual_seed(0)
    models = {
        name: model.train().to(arguments.device)
        for name, model in contenders(arguments.preset).items()
    }
    vocab_size = models["ours, eager"].config.vocab_size
    shape = (arguments.batch_size, arguments.length)
    batch = {
        name: torch.randint(4, vocab_size, shape, device=arguments.device)
        for name in ("input_ids", "labels")
    }
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    for precision in ("float32", "bfloat16 autocast"):
        bf16 = precision != "float32"
        times: dict[str, list[float]] = {name: [] for name in models}
        for model in models.values():
            time_step(model, batch, bf16)
        for _ in tqdm(range(arguments.rounds), desc=precision, unit="round"):
            for name, model in models.items():
                times[name].append(time_step(model, batch, bf16))
        ours = statistics.median(times["ours, eager"])
        for name, seconds in times.items():
            median = statistics.median(seconds)
            sys.stdout.write(f"{precision:<18} {name:<14} {median:8.3f} s {median / ours:6.2f}\n")


if __name__ == "__main__":
    run_script(main)
