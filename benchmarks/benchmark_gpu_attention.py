"""Compare our Triton kernels on a GPU with equation 1, torch's kernels and FlexAttention.

    python benchmarks/benchmark_gpu_attention.py --lengths 512 8192

One update's forward and backward pass through attention alone, in bfloat16, with all
implementations in turn. The table gives the milliseconds of torch's FlashAttention, and how many
times as fast the others are. FlashAttention takes no padding mask: there the milliseconds are those
of `sdpa`, torch's own choice.
"""

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from benchmark_attention import Attention
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa
from tqdm import tqdm
from transformers.hf_argparser import HfArg

from modeling_aiayn.attention import additive_mask, scaled_dot_product_attention
from modeling_aiayn.attention_kernels.blockwise_operation import blockwise_attention_forward
from modeling_aiayn.commands.command_line import parse_arguments, run_command

# Calls between two events of a measurement.
CALLS = 10


@dataclass
class BenchmarkArguments:
    """Sizes and repetitions of the benchmark."""

    lengths: list[int] = HfArg(
        default_factory=lambda: [512, 1024, 2048, 4096, 8192],
        help="Queries and keys of a sentence.",
    )
    tokens: int = HfArg(default=32_768, help="Tokens of a batch.")
    heads: int = HfArg(default=8, help="Number of heads.")
    head_dim: int = HfArg(default=64, help="Width of a head.")
    rounds: int = HfArg(default=7, help="Rounds to measure, after one to warm up.")


@dataclass(frozen=True)
class Case:
    """Queries, keys and values, [B, T, H, K] in memory, and what hides keys."""

    inputs: tuple[Tensor, Tensor, Tensor]
    lengths: Tensor
    mask: str
    dropout: float

    @property
    def is_causal(self) -> bool:
        """Whether queries attend to no later keys."""
        return self.mask == "causal"

    @cached_property
    def block_mask(self) -> BlockMask | None:
        """The mask as FlexAttention takes it."""
        if self.mask == "none":
            return None

        def causal(_sentence: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return row >= column

        def padding(sentence: Tensor, _head: Tensor, _row: Tensor, column: Tensor) -> Tensor:
            return column < self.lengths[sentence]

        batch, _, length, _ = self.inputs[0].shape
        function, sentences = (causal, None) if self.is_causal else (padding, batch)
        return create_block_mask(function, sentences, None, length, length, self.lengths.device)

    @property
    def padding(self) -> Tensor | None:
        """True at real keys, [B, 1, 1, T]."""
        if self.mask != "padding":
            return None
        places = torch.arange(self.inputs[0].size(2), device=self.lengths.device)
        return (places < self.lengths[:, None])[:, None, None]


def eager(case: Case) -> Tensor:
    """Equation 1."""
    query, key, value = case.inputs
    visible = case.padding
    if case.is_causal:
        size = (query.size(2), key.size(2))
        visible = torch.ones(size, dtype=torch.bool, device=query.device).tril()
    mask = None if visible is None else additive_mask(visible, query.dtype)
    return scaled_dot_product_attention(query, key, value, mask, case.dropout)[0]


def torch_choice(case: Case) -> Tensor:
    """The kernel that torch chooses by itself."""
    return sdpa(*case.inputs, case.padding, case.dropout, case.is_causal)


def flash(case: Case) -> Tensor:
    """Torch's FlashAttention."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(*case.inputs, None, case.dropout, case.is_causal)


@cache
def _flex_attention() -> Callable[..., Tensor]:
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
    return compiled


def flex(case: Case) -> Tensor:
    """FlexAttention, compiled; it has no dropout."""
    return _flex_attention()(*case.inputs, block_mask=case.block_mask)


def blocks(case: Case) -> Tensor:
    """Our kernels."""
    module = Attention(case.is_causal)
    return blockwise_attention_forward(module, *case.inputs, case.padding, case.dropout)[0]


IMPLEMENTATIONS = {
    "eager": eager, "sdpa": torch_choice, "flash": flash, "flex": flex, "blocks": blocks,
}  # fmt: skip


def implementations(case: Case) -> dict[str, Callable[[Case], Tensor]]:
    """The implementations that can compute a case."""
    missing = {"flex"} if case.dropout else set()
    if case.mask == "padding":
        missing.add("flash")
    return {name: each for name, each in IMPLEMENTATIONS.items() if name not in missing}


def random_case(arguments: BenchmarkArguments, length: int, mask: str, dropout: float) -> Case:
    """Sentences of random numbers; under a padding mask, of half the length and more."""
    sizes = (max(1, arguments.tokens // length), length, arguments.heads, arguments.head_dim)
    query, key, value = (
        torch.randn(sizes, device="cuda", dtype=torch.bfloat16).transpose(1, 2).requires_grad_()
        for _ in "qkv"
    )
    lengths = torch.randint(length // 2, length + 1, sizes[:1], device="cuda")
    return Case((query, key, value), lengths, mask, dropout)


def medians(case: Case, rounds: int) -> dict[str, float]:
    """Median milliseconds of forward and backward of each implementation, in turn."""
    torch.compiler.reset()  # FlexAttention is compiled for eight cases at most
    attends = implementations(case)
    milliseconds: dict[str, list[float]] = {name: [] for name in attends}
    for number in range(rounds + 1):
        for name, attend in attends.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
            gradient = torch.randn_like(attend(case))
            start.record()
            for _ in range(CALLS):
                torch.autograd.grad(attend(case), case.inputs, gradient)
            end.record()
            end.synchronize()
            if number:
                milliseconds[name].append(start.elapsed_time(end) / CALLS)
    return {name: statistics.median(each) for name, each in milliseconds.items()}


def megabytes(case: Case, attend: Callable[[Case], Tensor]) -> float:
    """Peak memory of forward and backward beyond the inputs and their gradients."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = attend(case)
    torch.autograd.grad(output, case.inputs, torch.randn_like(output))
    gradients = sum(each.numel() * each.element_size() for each in case.inputs)
    return (torch.cuda.max_memory_allocated() - before - gradients) / 1e6


def table_line(case: Case, rounds: int) -> str:
    """A line of the table: milliseconds of the yardstick, and speeds relative to it."""
    found = medians(case, rounds)
    yardstick = found.get("flash", found["sdpa"])
    ratios = "".join(
        f"{yardstick / found[name]:>7.2f}x" if name in found else f"{'-':>8}"
        for name in IMPLEMENTATIONS
    )
    length = case.inputs[0].size(2)
    return f"{length:>6} {case.mask:<8}{case.dropout:>7}{yardstick:>9.3f} ms{ratios}"


def main() -> None:
    """Measure, and print tables."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    if (
        not torch.cuda.is_available()
        or "modeling_aiayn.attention_kernels.triton_attention" not in sys.modules
    ):
        raise ValueError("This benchmark needs a GPU that torch can use, and triton 3.4 or newer.")
    torch.manual_seed(0)
    names = "".join(f"{name:>8}" for name in IMPLEMENTATIONS)
    lines = [f"{'length':>6} {'mask':<8}{'dropout':>7}{'yardstick':>12}{names}"]
    for length in tqdm(arguments.lengths, unit="length"):
        for mask in ("none", "causal", "padding"):
            for dropout in (0.0, 0.1):
                case = random_case(arguments, length, mask, dropout)
                lines.append(table_line(case, arguments.rounds))
    sys.stdout.write(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    sys.stdout.write("\n".join(lines) + "\n\n")
    case = random_case(arguments, max(arguments.lengths), "causal", 0.1)
    for name, attend in implementations(case).items():
        sys.stdout.write(
            f"{name:<8}{megabytes(case, attend):>8,.0f} MB at {max(arguments.lengths):,} tokens\n"
        )


if __name__ == "__main__":
    run_command(main)
