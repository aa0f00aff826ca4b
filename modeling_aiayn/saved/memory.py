"""Recognise errors of a lack of memory, which come in several types."""

import re

# The messages of GPUs and CPUs.
OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was not enough, on a CPU or on an accelerator."""
    is_torch = isinstance(error, RuntimeError) and OUT_OF_MEMORY.search(str(error)) is not None
    return isinstance(error, MemoryError) or is_torch
