"""Section 5.4: dropout."""

import torch
from torch import Tensor
from torch.nn import functional


def is_transformed() -> bool:
    """Whether a compiler or torch.func, such as vmap, is running. Then values cannot be read."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._functorch.maybe_current_level() is not None


def drop(states: Tensor, rate: float, training: bool = True) -> Tensor:
    """Set a share of the states, [...], to zero, and scale the others to keep the mean.

    On a CPU, torch draws one random number for each state on a single core, which is slow. Here
    four states share one 64-bit number. So the rate is rounded to a multiple of 2^-16, and the
    scale fits the rounded rate.

    Args:
        states: Numbers, [...].
        rate: Share to drop, from 0 to 1. torch raises a ValueError for other values.
        training: Whether to drop at all.
    """
    if not training or rate == 0:
        return states
    threshold = round(rate * 2**16)
    is_ours = states.device.type == "cpu" and not is_transformed()
    if not is_ours or not 0 < threshold < 2**16:
        return functional.dropout(states, rate)
    return states * draw_factors(states, threshold)


def draw_factors(
    states: Tensor, threshold: int, generator: torch.Generator | None = None
) -> Tensor:
    """Draw a factor for each of the states, [...]: 0 drops the state, the scale keeps it.

    Args:
        states: Tensor whose shape, [...], dtype and device the factors get.
        threshold: Share to drop, times 2^16; less than 2^16.
        generator: Source of the random numbers. None: torch's own.
    """
    words = torch.empty(-(-states.numel() // 4), dtype=torch.int64, device=states.device)
    words.random_(-(2**63), None, generator=generator)
    draws = words.view(torch.int16)[: states.numel()].view(states.shape)
    kept = (draws >= threshold - 2**15).to(states.dtype)
    return kept.mul_(2**16 / (2**16 - threshold))
