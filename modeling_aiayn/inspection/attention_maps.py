"""What the model looks at: attention weights of a sentence and its translation, as a picture."""

from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ..translation import Translator


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
        source: A sentence.
        target: A translation of it.

    Returns:
        The weights of every layer and head.
    """
    model = translator.model
    source_ids = translator.source_tokenizer(source, return_tensors="pt").input_ids
    labels = translator.target_tokenizer(target, return_tensors="pt").input_ids
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


def draw_cross_attention(attention: CrossAttention, path: str | Path) -> None:
    """Draw one heat map per layer, averaged over its heads.

    Args:
        attention: The weights.
        path: The PNG to write.

    Raises:
        OSError: The file cannot be written.
    """
    layers = attention.weights.mean(dim=1)  # [layers, T, S]
    rows, columns = len(attention.target_tokens), len(attention.source_tokens)
    size = (0.6 + len(layers) * (0.4 * columns + 1.6), 0.4 * rows + 1.5)
    figure = Figure(figsize=size, layout="constrained")
    for index, axes in enumerate(figure.subplots(1, len(layers), squeeze=False)[0]):
        image = axes.imshow(layers[index].numpy(), vmin=0, vmax=1, cmap="Blues")
        # Tokens are text and no formulas, whatever dollar signs they have.
        axes.set_xticks(range(columns), attention.source_tokens, rotation=90, parse_math=False)
        axes.set_yticks(range(rows), attention.target_tokens, parse_math=False)
        axes.set(title=f"decoder layer {index + 1}, mean of heads", xlabel="source looked at")
    figure.axes[0].set_ylabel("target token predicted")
    figure.colorbar(image, ax=figure.axes, label="attention weight", shrink=0.8)
    figure.savefig(path, dpi=120)
