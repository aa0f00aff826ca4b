"""Several devices: one GPU for each process, FSDP2, and DeepSpeed's ZeRO-3.

FSDP2 divides the parameters of a group of modules among the processes, and modules that share a
weight must be in one group. Since accelerate 1.14, the input embedding and the output projection
have a group of their own. The decoder's embedding, which shares their weight (section 3.4), is then
in another group: torch 2.13 raises an error, and older versions silently train two weights.
"""

import logging
from functools import wraps
from typing import Any

from accelerate import Accelerator
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.integrations import is_deepspeed_zero3_enabled

# accelerate calls these methods to find the modules of that group.
EMBEDDING_METHODS = ("get_input_embeddings", "get_output_embeddings")
GATHER = "stage3_gather_16bit_weights_on_model_save"

logger = logging.getLogger(__name__)


def use_one_gpu(args: TrainingArguments, model: Any) -> None:
    """Use one of the GPUs of a process, with a warning: transformers would use DataParallel.

    A model that accelerate has divided among GPUs stays there.
    """
    if args.n_gpu < 2:
        return
    if len({*getattr(model, "hf_device_map", {}).values()}) < 2:
        logger.warning(
            "One process trains on one of %d GPUs. To use all, start it with torchrun "
            "--nproc_per_node %d.",
            *(args.n_gpu, args.n_gpu),
        )
    args._n_gpu = 1


def check_whole_weights(trainer: Trainer, option: str) -> None:
    """Check that each process has all weights; option is the flag that needs this."""
    is_sharded = getattr(trainer, "is_distributed_loading_by_transformers", False)
    if trainer.is_fsdp_enabled or is_sharded or is_deepspeed_zero3_enabled():
        raise ValueError(
            f"{option} needs whole weights on each process, which FSDP, tensor parallelism and "
            "DeepSpeed ZeRO-3 do not keep. Leave it out, or train without them."
        )


def check_saves_weights(accelerator: Accelerator) -> None:
    """Check that a run with ZeRO-3 will save the whole model, not only parts of it."""
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


def support_fsdp2(accelerator: Accelerator) -> None:
    """Change how an accelerator with FSDP2 prepares models; leave other accelerators unchanged."""
    if not getattr(accelerator, "is_fsdp2", False):  # accelerate before 1.6 has no FSDP2
        return
    # Some builds of torch have no torch.distributed.
    from torch.distributed.fsdp import register_fsdp_forward_method

    prepare = accelerator.prepare

    @wraps(prepare)
    def prepare_models(*args: Any, **kwargs: Any) -> Any:
        models = [argument for argument in args if isinstance(argument, nn.Module)]
        for model in models:
            model.__dict__.update(dict.fromkeys(EMBEDDING_METHODS, lambda: None))
        prepared = prepare(*args, **kwargs)
        for model in models:
            for name in EMBEDDING_METHODS:
                del model.__dict__[name]
            if hasattr(model, "generate"):
                # generate() calls the encoder directly. Without this, FSDP2 would not gather the
                # embedding, which belongs to the whole model.
                register_fsdp_forward_method(model, "generate")
                # A process with complete sentences must continue until all are complete, because
                # each step gathers weights from all processes.
                model.__dict__["_is_fsdp_managed_module"] = True
        return prepared

    accelerator.prepare = prepare_models
