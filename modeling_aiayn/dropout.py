"""Section 5.4: dropout."""

import torch
from torch import Tensor
from torch.nn import functional


def drop(states: Tensor, rate: float, training: bool = True) -> Tensor:
    """Set a share of the states to zero, and scale the others so that the mean stays.

    On a CPU torch makes a random number of 24 bits for each state, on one core: a tenth of a whole
    training step. Here four states share one of 64 bits, so the rate is rounded to a multiple of
    2^-16, and the scale is that of the rounded rate.

    Args:
        states: Numbers, [...].
        rate: Share that is dropped, from 0 to 1.
        training: Whether to drop at all.

    Returns:
        The states that are left, [...].

    Raises:
        ValueError: There is no such share.
    """
    if not training or rate == 0:
        return states
    threshold = round(rate * 2**16)
    is_ours = states.device.type == "cpu" and not torch.compiler.is_compiling()
    if not is_ours or not 0 < threshold < 2**16:
        return functional.dropout(states, rate)
    words = torch.empty(-(-states.numel() // 4), dtype=torch.int64, device=states.device)
    words.random_(-(2**63), None)
    draws = words.view(torch.int16)[: states.numel()].view(states.shape)
    kept = (draws >= threshold - 2**15).to(states.dtype)
    return states * kept.mul_(2**16 / (2**16 - threshold))
