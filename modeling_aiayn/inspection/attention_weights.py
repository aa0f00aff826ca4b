"""What the model looks at: attention weights of a sentence and its translation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..translation import Translator
from ..translation.translator import as_unicode


@dataclass(frozen=True)
class CrossAttention:
    """Attention from each target token to the source.

    Args:
        source_tokens: The source, S tokens.
        target_tokens: What each step predicts, T tokens.
        weights: One map per layer and head, [layers, H, T, S]; each row sums to 1.
    """

    source_tokens: list[str]
    target_tokens: list[str]
    weights: Tensor


@torch.inference_mode()
def cross_attention(translator: Translator, source: str, target: str) -> CrossAttention:
    """The decoder's attention over source while it is made to say target.

    Args:
        translator: A model and its tokenizers; its attention implementation is left as it was.
        source: A sentence; like any that is translated it is cut where it is too long.
        target: A translation of it.

    Returns:
        The weights of every layer and head.
    """
    model = translator.model
    source_ids = torch.tensor([translator.encode(source)])
    labels = translator.target_tokenizer(as_unicode(target), return_tensors="pt").input_ids
    implementation = model.config._attn_implementation
    # Other implementations have no weights to show.
    model.set_attn_implementation("eager")
    try:
        output = model(
            input_ids=source_ids.to(model.device),
            labels=labels.to(model.device),
            output_attentions=True,
        )
    finally:
        model.set_attn_implementation(implementation)
    return CrossAttention(
        translator.source_tokenizer.convert_ids_to_tokens(source_ids[0].tolist()),
        translator.target_tokenizer.convert_ids_to_tokens(labels[0].tolist()),
        torch.cat(output.cross_attentions).float().cpu(),
    )
