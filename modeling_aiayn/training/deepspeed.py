"""DeepSpeed's ZeRO-3, which divides the weights among the processes."""

from accelerate import Accelerator
from transformers.integrations import unset_hf_deepspeed_config

GATHER = "stage3_gather_16bit_weights_on_model_save"


def check_saves_weights(accelerator: Accelerator) -> None:
    """Check that a run with ZeRO-3 would save its model, and not only parts of it.

    Raises:
        ValueError: DeepSpeed's configuration does not ask for whole weights.
    """
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    config = getattr(plugin, "hf_ds_config", None)
    if config is None or not config.is_zero3():
        return
    if not config.get_value(f"zero_optimization.{GATHER}"):
        raise ValueError(
            f'ZeRO-3 needs "{GATHER}": true under "zero_optimization" in DeepSpeed\'s '
            "configuration, or zero3_save_16bit_model: true in accelerate's. Without it no model "
            "would be saved."
        )


def end_zero3() -> None:
    """Switch ZeRO-3 off in transformers: while it is on, each model that is loaded is divided."""
    unset_hf_deepspeed_config()
