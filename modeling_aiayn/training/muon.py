"""Muon for the matrices of the layers, and Adam for everything else.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) takes the running mean of a
matrix's gradients and makes it orthogonal. So an update moves the matrix by the same amount in all
directions, not only in the few in which its gradients are large. As in Liu et al. 2025
(arXiv:2502.16982), updates are scaled to the size of Adam's, so that both have one learning rate.

Departs from the paper: section 5.3 has Adam for all parameters.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer
from transformers import Trainer

from .failures import check_whole_weights


def layer_matrices(model: nn.Module) -> list[nn.Parameter]:
    """The trained weights of the linear layers in a model's stacks; not those of its heads."""
    weights = {
        linear.weight
        for stack in model.modules()
        if isinstance(stack, nn.ModuleList)
        for linear in stack.modules()
        if isinstance(linear, nn.Linear)
    }
    return [each for each in model.parameters() if each in weights and each.requires_grad]


def muon_optimizer(trainer: Trainer) -> "MuonAndAdam":
    """The optimiser of a trainer whose arguments have optim="muon".

    Raises:
        ValueError: The model has no stack of linear layers to train, processes hold parts of its
            weights, or DeepSpeed flattens them.
    """
    model, args = trainer.model, trainer.args
    check_whole_weights(trainer, "optim='muon'")
    if trainer.is_deepspeed_enabled:
        raise ValueError(
            "optim='muon' does not work with DeepSpeed, which flattens matrices. Pass "
            "optim='adamw_torch'."
        )
    matrices = layer_matrices(model)
    if not matrices:
        raise ValueError(
            "optim='muon' is for linear layers in an nn.ModuleList, and this "
            f"{type(model).__name__} has none that are trained. Pass optim='adamw_torch'."
        )
    by_muon, decayed = set(matrices), set(trainer.get_decay_parameter_names(model))
    with_decay: list[nn.Parameter] = []
    without: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter not in by_muon:
            (with_decay if name in decayed else without).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": with_decay},
        {"params": without, "weight_decay": 0.0},
    ]
    rates: dict[str, Any] = {"lr": args.learning_rate, "weight_decay": args.weight_decay}
    return MuonAndAdam(
        torch.optim.Muon(matrices, **rates, adjust_lr_fn="match_rms_adamw"),
        AdamW(
            groups,
            **rates,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_epsilon,
        ),
    )


class MuonAndAdam(Optimizer):
    """Two optimisers of different parameters as one: the library saves and schedules one."""

    def __init__(self, muon: Optimizer, adam: Optimizer) -> None:
        self.muon, self.adam = muon, adam
        # Some schedules read the peak rate among the defaults.
        super().__init__([*muon.param_groups, *adam.param_groups], {"lr": adam.defaults["lr"]})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters; the closure, if given, computes their gradients and the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        of_muon = len(self.muon.param_groups)
        # Loading a state replaces the groups and the state of this object.
        self.muon.param_groups = self.param_groups[:of_muon]
        self.adam.param_groups = self.param_groups[of_muon:]
        self.muon.state = self.adam.state = self.state
        self.muon.step()
        self.adam.step()
        return loss
