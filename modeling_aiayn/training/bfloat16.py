"""Whether a device has instructions for products in bfloat16."""

from functools import lru_cache

import torch


@lru_cache
def has_bfloat16_instructions(device_type: str) -> bool:
    """Whether products in bfloat16 are fast: on a CPU, whether oneDNN has kernels for them.

    On other CPUs torch multiplies number by number, up to 100 times slower than in float32.
    """
    if device_type != "cpu":
        return True
    try:
        # The function has no public name. torch's compiler asks it, too.
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):  # torch without oneDNN, as on a Mac
        return False
