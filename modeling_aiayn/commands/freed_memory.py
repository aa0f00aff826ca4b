"""Keep the memory of one batch for the next one."""

import ctypes
import os

# Options of glibc's `mallopt`, by number, and the variables in which users set them.
TRIM_THRESHOLD = (-1, "MALLOC_TRIM_THRESHOLD_")
MMAP_THRESHOLD = (-3, "MALLOC_MMAP_THRESHOLD_")
KEPT_BYTES = 2**30


def keep_freed_memory() -> None:
    """Let this process keep a gigabyte of the memory that it frees, on Linux with glibc.

    glibc returns large tensors to the system, which clears each page before it gives it back. In
    int8 this is a tenth of the time of a translated file. The options are those of the whole
    process, so only commands set them. Variables that set them keep their values.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS and musl; Windows raises a TypeError
        return
    for option, variable in (TRIM_THRESHOLD, MMAP_THRESHOLD):
        if variable not in os.environ:
            mallopt(option, KEPT_BYTES)
