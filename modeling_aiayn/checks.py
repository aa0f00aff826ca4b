"""What must hold of ids, labels and files of weights, said in words where it does not."""

from pathlib import Path

import torch
from torch import Tensor
from transformers.modeling_utils import safe_open
from transformers.utils import logging

from .losses import IGNORED_LABEL

logger = logging.get_logger(__name__)


def check_ids(ids: Tensor, size: int, what: str, ignored: int | None = None) -> None:
    """Refuse ids outside a table, by name and place, before an accelerator stops without either.

    Looking at values holds an accelerator up, so there it is left to the caller to look only where
    that does not hurt; while a graph is traced nothing can be looked at.

    Args:
        ids: Ids, [...].
        size: Entries of the table.
        what: What the ids are, for the message.
        ignored: An id that stands for none.

    Raises:
        ValueError: An id is below 0 or not below size.
    """
    if torch.compiler.is_compiling() or ids.device.type == "meta" or not ids.numel():
        return
    wrong = (ids < 0) | (ids >= size)
    if ignored is not None:
        wrong &= ids != ignored
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        also = "" if ignored is None else f" or {ignored}"
        raise ValueError(
            f"{what} must be in [0, {size}){also}, got {ids[tuple(place)].item()} at {place}. "
            "Do data and model belong together?"
        )


def check_labels(labels: Tensor, size: int) -> None:
    """Refuse labels outside the scores, on a CPU, and warn where no label is real.

    Args:
        labels: Labels, [...]; -100 where there is none.
        size: Number of scores.

    Raises:
        ValueError: A label is neither -100 nor in [0, size).
    """
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    check_ids(labels, size, "Each label", ignored=IGNORED_LABEL)
    if (labels == IGNORED_LABEL).all():
        logger.warning_once(
            f"All labels of a batch are {IGNORED_LABEL}, which stands for none: its loss is 0."
        )


def check_readable(checkpoint_file: Path) -> None:
    """Refuse a file of weights that is damaged, incomplete or none, before anything is loaded.

    Args:
        checkpoint_file: A file that should be in the safetensors format.

    Raises:
        OSError: It is not; the message names the file and what to do.
    """
    try:
        with safe_open(checkpoint_file, framework="pt"):
            return
    except OSError:
        raise
    except Exception as error:  # safetensors' own type, which says neither which file nor why
        with open(checkpoint_file, "rb") as file:
            is_pointer = file.read(19) == b"version https://git"
        reason = (
            "it is a Git LFS pointer: fetch the file itself (git lfs pull)"
            if is_pointer
            else f"it is truncated or corrupt ({error}): copy or download it again"
        )
        raise OSError(f"{checkpoint_file} holds no safetensors weights; {reason}.") from error


class WeightShapeError(ValueError, RuntimeError):
    """A weight has not the shape that the configuration asks for: a wrong value.

    The library raises a RuntimeError there, for which others may look.
    """
