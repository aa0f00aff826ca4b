"""FSDP2 through accelerate: weights that are tied stay tied.

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

# What accelerate asks a model for to make the group.
METHODS = ("get_input_embeddings", "get_output_embeddings")


def keep_ties(accelerator: Accelerator) -> None:
    """Let an accelerator with FSDP2 leave the embeddings of models in the outermost group."""
    if not getattr(accelerator, "is_fsdp2", False):
        return
    prepare = accelerator.prepare

    @wraps(prepare)
    def prepare_with_ties(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for model in args:
                if isinstance(model, nn.Module):
                    stack.enter_context(_hidden_embeddings(model))
            return prepare(*args, **kwargs)

    accelerator.prepare = prepare_with_ties


@contextmanager
def _hidden_embeddings(model: nn.Module) -> Iterator[None]:
    for name in METHODS:
        model.__dict__[name] = lambda: None
    try:
        yield
    finally:
        for name in METHODS:
            del model.__dict__[name]
