"""Outputs of the original module, to check an import.

Weights do not show fields such as norm_first or the number of heads. Only outputs prove them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..modeling_aiayn import AiaynForConditionalGeneration
from .pickled import read_mapping

# Largest difference, as a share of the largest logit, from outputs in each type.
TOLERANCES = {torch.float64: 1e-4, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Examples:
    """Inputs of the original module, in evaluation mode, and its outputs.

    Args:
        input_ids: Sources, [N, S].
        decoder_input_ids: Targets as the decoder reads them, start token first, [N, T].
        logits: The module's outputs, before a softmax, [N, T, V].
        attention_mask: 1 for real source tokens and 0 for padding, [N, S]. None: no padding.
    """

    input_ids: Tensor
    decoder_input_ids: Tensor
    logits: Tensor
    attention_mask: Tensor | None = None

    @classmethod
    def read(cls, source: str | Path | Mapping[str, Tensor]) -> "Examples":
        """Read a dictionary of these tensors, or a file of it.

        Raises:
            OSError: The file is missing or damaged.
            ValueError: A tensor is missing, or has the wrong shape.
        """
        tensors = read_mapping(source)
        names = ("input_ids", "decoder_input_ids", "logits", "attention_mask")
        given = {name: tensors[name] for name in names if isinstance(tensors.get(name), Tensor)}
        for name, dimensions in zip(names, (2, 2, 3), strict=False):
            if name not in given or given[name].dim() != dimensions:
                raise ValueError(
                    f"Examples must hold a tensor {name} with {dimensions} dimensions, got "
                    f"{'none' if name not in given else tuple(given[name].shape)}."
                )
        if not given["logits"].numel() or not given["logits"].isfinite().all():
            raise ValueError("The examples' logits must be finite, and there must be some.")
        examples = cls(**given)
        for name in ("input_ids", "decoder_input_ids"):
            is_whole = not given[name].is_floating_point() and given[name].dtype != torch.bool
            if not is_whole or len(given[name]) != len(examples.logits):
                raise ValueError(
                    f"{name} must hold whole numbers, with a row for each row of logits, got "
                    f"{given[name].dtype} of shape {tuple(given[name].shape)} for logits of shape "
                    f"{tuple(examples.logits.shape)}."
                )
        if examples.logits.shape[:2] != examples.decoder_input_ids.shape:
            raise ValueError(
                "logits must have one row for each id in decoder_input_ids, got shapes "
                f"{tuple(examples.logits.shape)} and {tuple(examples.decoder_input_ids.shape)}."
            )
        return examples

    @torch.inference_mode()
    def difference(self, model: AiaynForConditionalGeneration) -> float:
        """The largest difference of a model's logits, as a share of the largest logit."""
        logits = model(
            self.input_ids,
            attention_mask=self.attention_mask,
            decoder_input_ids=self.decoder_input_ids,
        ).logits
        if logits.shape != self.logits.shape:
            raise ValueError(
                f"The examples' logits have shape {tuple(self.logits.shape)}, and those of the "
                f"imported model {tuple(logits.shape)}."
            )
        largest = self.logits.double().abs().max().clamp(min=1.0)
        return float((logits.double() - self.logits.double()).abs().max() / largest)

    @property
    def tolerance(self) -> float:
        """The difference that rounding explains."""
        return TOLERANCES.get(self.logits.dtype, 1e-4)
