"""Compare attention in blocks with equation 1 and with torch's own kernel: time and memory.

    python benchmarks/benchmark_attention.py --lengths 512 2048

One update's forward and backward pass through attention alone, with all implementations in turn.
Peak memory is measured in a process for each.
"""

import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from peak_memory import process_peak_megabytes
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm
from transformers.hf_argparser import HfArg

from modeling_aiayn.attention import scaled_dot_product_attention
from modeling_aiayn.attention_kernels.blockwise_operation import blockwise_attention_forward
from modeling_aiayn.commands.command_line import parse_arguments, run_command


@dataclass
class BenchmarkArguments:
    """Sizes and repetitions of the benchmark."""

    lengths: list[int] = HfArg(
        default_factory=lambda: [128, 256, 512, 1024, 2048, 4096],
        help="Queries and keys of a sentence.",
    )
    tokens: int = HfArg(default=4096, help="Tokens of a batch.")
    heads: int = HfArg(default=8, help="Number of heads.")
    head_dim: int = HfArg(default=64, help="Width of a head.")
    rounds: int = HfArg(default=7, help="Rounds to measure, after one to warm up.")
    memory_length: int = HfArg(default=4096, help="Length in the memory test.")


class Attention(nn.Module):
    """The module that calls an implementation of attention, which reads `is_causal` from it."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal


def eager(inputs: tuple[Tensor, Tensor, Tensor], dropout: float, is_causal: bool) -> Tensor:
    """Equation 1, with the mask that the library makes for it."""
    mask = None
    if is_causal:
        mask = torch.full((inputs[0].size(2), inputs[1].size(2)), torch.finfo(torch.float32).min)
        mask = mask.triu(1)
    return scaled_dot_product_attention(*inputs, mask, dropout)[0]


def sdpa(inputs: tuple[Tensor, Tensor, Tensor], dropout: float, is_causal: bool) -> Tensor:
    """Torch's own kernel; on a CPU with dropout it is torch's plain form."""
    return functional.scaled_dot_product_attention(*inputs, None, dropout, is_causal)


def blocks(inputs: tuple[Tensor, Tensor, Tensor], dropout: float, is_causal: bool) -> Tensor:
    """Our attention in blocks."""
    return blockwise_attention_forward(Attention(is_causal), *inputs, None, dropout)[0]


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {"eager": eager, "sdpa": sdpa, "blocks": blocks}


def random_inputs(batch_size: int, heads: int, length: int, width: int) -> tuple[Tensor, ...]:
    """Queries, keys and values, [B, H, T, K] each."""
    return tuple(torch.randn(batch_size, heads, length, width, requires_grad=True) for _ in "qkv")


def medians(
    inputs: tuple[Tensor, ...], dropout: float, is_causal: bool, rounds: int
) -> dict[str, float]:
    """Median seconds of forward and backward of each implementation, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
    for number in range(rounds + 1):
        for name, attend in IMPLEMENTATIONS.items():
            start = time.perf_counter()
            attend(inputs, dropout, is_causal).sum().backward()
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def speed_table(arguments: BenchmarkArguments) -> str:
    """Milliseconds of equation 1, and how many times faster the others are."""
    cases = [(causal, dropout) for causal in (False, True) for dropout in (0.1, 0.0)]
    lines = [f"{'length':>6} {'mask':<7}{'dropout':>7}{'eager':>10}{'sdpa':>8}{'blocks':>8}"]
    for length in tqdm(arguments.lengths, unit="length"):
        batch_size = max(1, arguments.tokens // length)
        inputs = random_inputs(batch_size, arguments.heads, length, arguments.head_dim)
        for is_causal, dropout in cases:
            seconds = medians(inputs, dropout, is_causal, arguments.rounds)
            eager = seconds["eager"]
            ratios = "".join(f"{eager / seconds[name]:7.2f}x" for name in ("sdpa", "blocks"))
            mask = "causal" if is_causal else "none"
            lines.append(f"{length:>6} {mask:<7}{dropout:>7}{1000 * eager:>7.0f} ms{ratios}")
    return "\n".join(lines)


def peak_memory(name: str, sizes: tuple[int, int, int]) -> float:
    """MB that forward and backward of one sentence need beyond the inputs, in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_memory, (name, sizes))


def _peak_memory(name: str, sizes: tuple[int, int, int]) -> float:
    inputs = random_inputs(1, *sizes)
    before = process_peak_megabytes()
    IMPLEMENTATIONS[name](inputs, 0.1, False).sum().backward()
    return process_peak_megabytes() - before


def main() -> None:
    """Measure, and print tables."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    sys.stdout.write(f"{speed_table(arguments)}\n\n")
    sizes = (arguments.heads, arguments.memory_length, arguments.head_dim)
    for name in IMPLEMENTATIONS:
        megabytes = peak_memory(name, sizes)
        sys.stdout.write(f"{name:<8}{megabytes:>8,.0f} MB at {arguments.memory_length:,} tokens\n")


if __name__ == "__main__":
    run_command(main)
