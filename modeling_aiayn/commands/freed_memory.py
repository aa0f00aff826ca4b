"""Keep the memory of one batch for the next one."""

import ctypes
import os

# Options of glibc's `mallopt`. Users set them by the variables MALLOC_..._THRESHOLD_.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
KEPT_BYTES = 2**30
# Older releases of glibc refuse a larger MMAP_THRESHOLD. Their default grows up to it, but is fixed
# at 128 KiB once TRIM_THRESHOLD is set.
OLD_LARGEST_MMAP_THRESHOLD = 2**25


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
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ and not mallopt(MMAP_THRESHOLD, KEPT_BYTES):
        mallopt(MMAP_THRESHOLD, OLD_LARGEST_MMAP_THRESHOLD)
