"""Section 5.3: the learning rate."""

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def noam_rate(update: int, d_model: int, warmup_updates: int) -> float:
    """Equation 3: d_model^-0.5 * min(update^-0.5, update * warmup_updates^-1.5), updates from 1."""
    return float(d_model**-0.5 * min(update**-0.5, update * warmup_updates**-1.5))


def noam_schedule(optimizer: Optimizer, d_model: int, warmup_updates: int) -> LambdaLR:
    """Equation 3 as a torch schedule, multiplied by the optimizer's learning rate."""
    # torch counts updates from 0, the paper from 1.
    return LambdaLR(optimizer, lambda done: noam_rate(done + 1, d_model, warmup_updates))
