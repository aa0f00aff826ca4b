"""Attention weights as a picture."""

from pathlib import Path

from matplotlib.figure import Figure

from .attention_weights import CrossAttention


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
