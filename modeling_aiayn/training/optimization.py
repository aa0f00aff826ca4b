"""Section 5.3: the learning rate; Muon as an alternative to Adam; and the dtypes to train in.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) takes the running mean of a
matrix's gradients and makes it orthogonal. So an update moves the matrix by the same amount in all
directions, not only in the few in which its gradients are large. As in Liu et al. 2025
(arXiv:2502.16982), updates are scaled to the size of Adam's, so that both have one learning rate.

torch.optim.Muon computes in bfloat16, one matrix after the other. On a CPU without bfloat16
instructions, it takes several times as long as the rest of an update. So on such CPUs, products
here are in float32. Matrices of the same shape are computed together.

Departs from the paper: section 5.3 has Adam for all parameters.
"""

import logging
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainingArguments

from .parallel import check_whole_weights

logger = logging.getLogger(__name__)

MOMENTUM = 0.95
# Jordan et al. 2024: each iteration replaces a singular value s by a s + b s^3 + c s^5.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
SMALLEST_NORM = 1e-7
# Liu et al. 2025, equation 4: the root mean square of Adam's updates, as a share of the rate.
RMS_OF_ADAM = 0.2


def noam_rate(update: int, d_model: int, warmup_updates: int) -> float:
    """Equation 3: d_model^-0.5 * min(update^-0.5, update * warmup_updates^-1.5), updates from 1."""
    return float(d_model**-0.5 * min(update**-0.5, update * warmup_updates**-1.5))


def noam_schedule(optimizer: Optimizer, d_model: int, warmup_updates: int) -> LambdaLR:
    """Equation 3 as a torch schedule, multiplied by the optimizer's learning rate."""
    # torch counts updates from 0, the paper from 1.
    return LambdaLR(optimizer, lambda done: noam_rate(done + 1, d_model, warmup_updates))


def orthogonalized(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring all singular values of matrices, [n, rows, columns], near 1; compute in dtype."""
    a, b, c = COEFFICIENTS
    is_tall = matrices.size(1) > matrices.size(2)
    norms = torch.linalg.matrix_norm(matrices, keepdim=True).clamp_min(SMALLEST_NORM)
    wide = (matrices / norms).to(dtype)
    wide = wide.mT if is_tall else wide
    for _ in range(ITERATIONS):
        gram = wide @ wide.mT
        wide = torch.baddbmm(wide, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.mT if is_tall else wide


def with_momentum(gradient: Tensor, state: dict[str, Any]) -> Tensor:
    """Add a gradient to a matrix's running mean, and look one step ahead (Nesterov)."""
    if "momentum_buffer" not in state:
        state["momentum_buffer"] = torch.zeros_like(gradient)
    state["momentum_buffer"].lerp_(gradient, 1 - MOMENTUM)
    return gradient.lerp(state["momentum_buffer"], MOMENTUM)


def layer_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained weights of the linear layers in a model's stacks, without its heads."""
    weights = {
        linear.weight
        for stack in model.modules()
        if isinstance(stack, nn.ModuleList)
        for linear in stack.modules()
        if isinstance(linear, nn.Linear)
    }
    return [weight for weight in model.parameters() if weight in weights and weight.requires_grad]


def muon_optimizer(trainer: Trainer) -> "MuonAndAdam":
    """The optimizer of a trainer whose arguments have optim="muon"."""
    model, args = trainer.model, trainer.args
    check_whole_weights(trainer, "optim='muon'")
    matrices = layer_matrices(model)
    by_muon, decayed = set(matrices), set(trainer.get_decay_parameter_names(model))
    with_decay: list[nn.Parameter] = []
    without: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter not in by_muon:
            (with_decay if name in decayed else without).append(parameter)
    groups: list[dict[str, Any]] = [{"params": with_decay}, {"params": without, "weight_decay": 0}]
    rates: dict[str, Any] = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    betas = (args.adam_beta1, args.adam_beta2)
    adam = AdamW(groups, **rates, betas=betas, eps=args.adam_epsilon)
    return MuonAndAdam(matrices, adam, **rates)


class MuonAndAdam(Optimizer):
    """Muon for the matrices of the first group, and adam for other parameters, as one optimizer."""

    def __init__(
        self, matrices: list[nn.Parameter], adam: Optimizer, lr: float, weight_decay: float
    ) -> None:
        self.adam = adam
        group = {"params": matrices, "lr": lr, "weight_decay": weight_decay}
        # Some schedules read the peak rate from the defaults.
        super().__init__([group, *adam.param_groups], {"lr": lr})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters; the closure, if given, computes their gradients and the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Loading a state replaces the groups and the state of this object.
        self.adam.param_groups = self.param_groups[1:]
        self.adam.state = self.state
        self._update_matrices(**self.param_groups[0])
        self.adam.step()
        return loss

    @torch.no_grad()
    def _update_matrices(
        self, params: list[nn.Parameter], lr: float, weight_decay: float, **_: Any
    ) -> None:
        alike = defaultdict(list)
        for matrix in params:
            if matrix.grad is not None:
                gradient = with_momentum(matrix.grad, self.state[matrix])
                alike[matrix.shape, matrix.device].append((matrix, gradient))
        for (shape, device), pairs in alike.items():
            gradients = torch.stack([gradient for _, gradient in pairs])
            is_fast = has_bfloat16_instructions(device.type)
            updates = orthogonalized(gradients, torch.bfloat16 if is_fast else torch.float32)
            rate = lr * RMS_OF_ADAM * max(shape) ** 0.5
            for (matrix, _gradient), update in zip(pairs, updates, strict=True):
                matrix.mul_(1 - lr * weight_decay).add_(update, alpha=-rate)


@lru_cache
def has_bfloat16_instructions(device_type: str) -> bool:
    """Whether products in bfloat16 are fast: on a CPU, whether oneDNN has kernels for them.

    On other CPUs torch multiplies number by number, up to 100 times slower than in float32.
    """
    if device_type != "cpu":
        return True
    try:
        # The function has no public name. torch's compiler calls it, too.
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch without oneDNN, as on a Mac
        return False


def warn_of_slow_training(args: TrainingArguments) -> None:
    """Warn if bf16 is set on a CPU that has no instructions for it."""
    if args.bf16 and not has_bfloat16_instructions(args.device.type):
        logger.warning(
            "This CPU has no fast products in bfloat16: with bf16, training is many times slower "
            "than in float32. Leave out bf16 (--bf16 true)."
        )


def check_trained_dtype(model: nn.Module) -> None:
    """Check that no parameter in float16 is trained: its updates would ruin the model."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype == torch.float16:
            raise ValueError(
                f"Parameters in float16 cannot be trained, and {name} is in float16. Load the "
                "model with dtype=torch.float32. For speed, train with bf16=True (--bf16 true)."
            )
