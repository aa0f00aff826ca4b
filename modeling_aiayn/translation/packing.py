"""Linear layers whose weights lie as the processor's kernels read them."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ..chunked_loss import is_plain_linear

# Rows that the layout is made for; measured to be no worse for 4 or 256 of them.
ROWS = 128


class PackedLinear(nn.Module):
    """nn.Linear for decoding on a CPU: its weight is laid out once instead of at each call.

    A step of decoding multiplies few rows by large matrices, and laying those out takes as long as
    the product. torch has no public name for this; its compiler does it to frozen weights.

    Args:
        linear: The layer, which stays as it is.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self.bias = linear.bias

    def forward(self, hidden_states: Tensor) -> Tensor:
        """W x + b, [..., out], of states, [..., in]."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            hidden_states, self.packed, self.bias, "none", [], ""
        )
        return product


def packed_copy(model: Any) -> Any:
    """A model that shares its parameters, but for linear layers on a CPU, which are packed.

    Args:
        model: Any model. It is left as it is; what is done to its weights later does not reach
            the packed ones.

    Returns:
        The copy.
    """
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    # torch leaves it unannotated.
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return copied
    for module in list(copied.modules()):
        for name, child in list(module.named_children()):
            if is_plain_linear(child) and _can_be_packed(child.weight):
                setattr(module, name, PackedLinear(child))
    return copied


def _can_be_packed(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
