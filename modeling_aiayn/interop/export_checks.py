"""Checks that every export to another system makes."""

from ..configuration_aiayn import AiaynConfig
from ..translation import Translator


def check_single_model(translator: Translator) -> None:
    """Check that a translator is not an ensemble.

    Raises:
        ValueError: The translator has several models.
    """
    if len(translator.models) > 1:
        raise ValueError(
            "The export needs a translator of one model, got an ensemble of "
            f"{len(translator.models)}. Export each model by itself."
        )


def check_head_width(config: AiaynConfig, system: str) -> None:
    """Check that heads have the width that a system computes for them.

    Raises:
        ValueError: A head is not as wide as the model divided by the number of heads.
    """
    for half in ("encoder", "decoder"):
        heads = getattr(config, f"{half}_attention_heads")
        if config.head_dim not in (None, config.d_model // heads) or config.d_model % heads:
            raise ValueError(
                f"{system} needs head_dim = d_model / {half}_attention_heads, got "
                f"head_dim={config.head_dim}, d_model={config.d_model} and "
                f"{half}_attention_heads={heads}."
            )
