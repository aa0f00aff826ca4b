"""Compile the Triton kernels for GPUs that are not here, and print the shared memory they need."""

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from modeling_aiayn.attention_kernels import triton_attention as kernels

# Bytes of shared memory of a program at most, by compute capability.
SHARED_MEMORY = {75: 65_536, 80: 166_912, 86: 101_376, 90: 232_448}
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
MATRICES = ("query", "key", "value", "gradient", "output")
MATRICES += ("query_grad", "key_grad", "value_grad")


def signature_of(kernel, constants, name, mask):
    kinds = dict.fromkeys(kernel.arg_names, "i32") | dict.fromkeys(constants, "constexpr")
    matrices = kernels.Matrices(f"*{name}", "i32", "i32", "i32")
    kinds |= {each: matrices for each in MATRICES if each in kinds}
    kinds |= {each: "*fp32" for each in ("log_sums", "sums") if each in kinds}
    of_mask = "*u1" if mask == "boolean" else f"*{name}"
    kinds["mask"] = kernels.Mask(of_mask, "i32", "i32", "i32", "i32")
    kinds |= {"draws": "*i32", "threshold": "i64"}
    return kinds | {"scale": "fp32", "factor_of_kept": "fp32"}


for capability, dtype, width, mask, is_causal in (
    (90, torch.bfloat16, 64, "boolean", False),
    (90, torch.float32, 128, "added", True),
    (86, torch.float32, 64, "added", False),
    (80, torch.float32, 128, "boolean", False),
    (75, torch.float16, 64, "none", True),
    (75, torch.bfloat16, 64, "boolean", False),
    (75, torch.float32, 64, "none", False),
):
    block, stages = kernels.block_size_and_stages(dtype.itemsize, width, SHARED_MEMORY[capability])
    constants = {
        "IS_CAUSAL": is_causal,
        "MASK": mask,
        "HAS_MASK_ROWS": True,
        "HAS_DROPOUT": True,
        "BLOCK": block,
        "WIDTH": width,
        "VALUE_WIDTH": width,
        "BLOCK_WIDTH": width,
        "VALUE_BLOCK_WIDTH": width,
        "PRECISION": kernels._precision(dtype),
    }
    for kernel in (kernels._attend, kernels._query_gradients, kernels._key_gradients):
        signature = signature_of(kernel, constants, NAMES[dtype], mask)
        places = {(kernel.arg_names.index(each),): value for each, value in constants.items()}
        # As those of a batch are: pointers and strides are multiples of 16.
        multiple = [["tt.divisibility", 16]]
        attributes = {
            (number, part): multiple
            for number, kind in enumerate(signature.values())
            if isinstance(kind, tuple)
            for part in range(len(kind))
        }
        source = ASTSource(kernel, signature, constexprs=places, attrs=attributes)
        options = {"num_stages": stages, "enable_fp_fusion": True}
        target = GPUTarget("cuda", capability, 32)
        shared = compile(source, target=target, options=options).metadata.shared
        state = "fits" if shared <= SHARED_MEMORY[capability] else "does not fit"
        sys.stdout.write(f"{kernel.__name__} {capability} {dtype} {shared} {state}\n")
