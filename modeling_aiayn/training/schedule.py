"""Section 5.3: the learning rate."""

from functools import partial

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def noam_rate(update: int, d_model: int, warmup_updates: int) -> float:
    """Equation 3: d_model^-0.5 * min(update^-0.5, update * warmup_updates^-1.5), updates from 1."""
    return float(d_model**-0.5 * min(update**-0.5, update * warmup_updates**-1.5))


def noam_schedule(optimizer: Optimizer, d_model: int, warmup_updates: int) -> LambdaLR:
    """Equation 3 as a torch schedule, multiplied by the optimizer's learning rate.

    Raises:
        ValueError: warmup_updates is below 1.
    """
    if warmup_updates < 1:
        raise ValueError(
            f"lr_scheduler_type='noam' needs warmup_steps of at least 1, got {warmup_updates}."
        )
    return LambdaLR(optimizer, partial(_rate_after, d_model, warmup_updates))


def _rate_after(d_model: int, warmup_updates: int, updates_done: int) -> float:
    """Torch counts updates from 0, the paper from 1."""
    return noam_rate(updates_done + 1, d_model, warmup_updates)
