"""Compile the Triton kernels for GPUs that are not here, and print the shared memory they need."""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from modeling_aiayn import triton_attention as kernels

# Bytes of shared memory of a program at most, by compute capability.
SHARED_MEMORY = {75: 65_536, 80: 166_912, 86: 101_376, 90: 232_448}
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
MATRICES = ("query", "key", "value", "gradient", "output")
MATRICES += ("query_grad", "key_grad", "value_grad")


def signature_of(kernel, constants, name, mask):
    kinds = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    kinds |= {each: f"*{name}" for each in MATRICES if each in kinds}
    kinds |= {each: "*fp32" for each in ("log_sums", "row_sums") if each in kinds}
    kinds |= {"mask": "*i1" if mask == "boolean" else f"*{name}"}
    return kinds | {"dropout": "fp32", "scale": "fp32", "seed": "i64"}


for capability, dtype, width, mask, is_causal in (
    (90, torch.bfloat16, 64, "boolean", False),
    (86, torch.float32, 64, "added", False),
    (80, torch.bfloat16, 128, "none", True),
    (75, torch.float16, 64, "none", True),
):
    if capability < 80:
        kernels.LARGEST = kernels.LARGEST_BEFORE_AMPERE
    constants = {
        "IS_CAUSAL": is_causal,
        "MASK": mask,
        "HAS_DROPOUT": True,
        "BLOCK": kernels._block_size(torch.empty(1, dtype=dtype), width),
        "WIDTH": width,
        "VALUE_WIDTH": width,
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
    }
    for kernel in (kernels._attend, kernels._query_gradients, kernels._key_gradients):
        signature = signature_of(kernel, constants, NAMES[dtype], mask)
        places = {(kernel.arg_names.index(each),): value for each, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=places)
        shared = compile(source, target=GPUTarget("cuda", capability, 32)).metadata.shared
        state = "fits" if shared <= SHARED_MEMORY[capability] else "does not fit"
        sys.stdout.write(f"{kernel.__name__} {capability} {dtype} {shared} {state}\n")
