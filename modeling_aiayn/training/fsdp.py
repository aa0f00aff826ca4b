"""FSDP2 through accelerate: weights that are tied stay tied, and generate() works.

FSDP2 divides the parameters of a group of modules among the processes, and modules that share a
weight must be in one group. Since accelerate 1.14, the input embedding and the output projection
have a group of their own. The decoder's embedding, which shares their weight (section 3.4), is then
in another group: torch 2.13 raises an error, and older versions silently train two weights.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from accelerate import Accelerator
from torch import nn

# By these methods accelerate finds the modules of that group.
METHODS = ("get_input_embeddings", "get_output_embeddings")


def support_fsdp2(accelerator: Accelerator) -> None:
    """Change how an accelerator with FSDP2 prepares models; others stay as they are."""
    if not getattr(accelerator, "is_fsdp2", False):  # accelerate before 1.6 has no FSDP2
        return
    # Some builds of torch have no torch.distributed.
    from torch.distributed.fsdp import register_fsdp_forward_method

    prepare = accelerator.prepare

    @wraps(prepare)
    def prepare_models(*args: Any, **kwargs: Any) -> Any:
        models = [each for each in args if isinstance(each, nn.Module)]
        with ExitStack() as stack:
            for model in models:
                stack.enter_context(_hidden_embeddings(model))
            prepared = prepare(*args, **kwargs)
        for model in models:
            if hasattr(model, "generate"):
                # It calls the encoder by itself. Without this, FSDP2 would not collect the
                # embedding, which belongs to the model as a whole.
                register_fsdp_forward_method(model, "generate")
                # A process whose sentences are complete goes on as long as the others do: each
                # step collects weights from all processes.
                model.__dict__["_is_fsdp_managed_module"] = True
        return prepared

    accelerator.prepare = prepare_models


@contextmanager
def _hidden_embeddings(model: nn.Module) -> Iterator[None]:
    """Let accelerate find no embeddings, so that they stay in the outermost group."""
    for name in METHODS:
        model.__dict__[name] = lambda: None
    try:
        yield
    finally:
        for name in METHODS:
            del model.__dict__[name]
