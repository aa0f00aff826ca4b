"""One process of the parallel tests: `torchrun --nproc_per_node 2 parallel_worker.py MODE IN OUT`.

Loads the model in IN under MODE (alone, ddp, blockwise, fsdp, accelerate or tp), takes two steps on batch.pt,
and leaves in OUT loss, gradients, generated ids and the saved model.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForSeq2SeqLM
from transformers.distributed import DistributedConfig

from modeling_aiayn.attention_kernels import blockwise_operation
from modeling_aiayn.commands.command_line import leave_other_processes
from modeling_aiayn.training.parallel import support_fsdp2

# Modes that divide the weights among the processes, and modes in which each has all of them.
DIVIDED = ("fsdp", "accelerate")
REPLICATED = ("ddp", "blockwise")


def share(batch, mode):
    """This process's rows: all of them, unless the mode splits batches."""
    if mode in ("alone", "tp"):
        return batch
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return {name: rows[rank::size] for name, rows in batch.items()}


def whole(tensor):
    """A tensor whose parts lie with several processes, put together."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def divided_by_accelerate(model):
    """Divide a model as a trainer with FSDP2 does; accelerate itself does so only on a GPU."""
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["EncoderLayer", "DecoderLayer"],
        reshard_after_forward=True,
    )
    accelerator = SimpleNamespace(
        is_fsdp2=True, state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision="no"
    )
    accelerator.prepare = lambda each: fsdp2_prepare_model(accelerator, each)
    support_fsdp2(accelerator)
    return accelerator.prepare(model)


def load(mode, folder):
    if mode == "blockwise":  # DDP with attention in blocks, of short texts too
        blockwise_operation.FEWEST_SCORES = 0
        return AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="aiayn_blockwise")
    if mode in ("alone", "ddp", "accelerate"):
        model = AutoModelForSeq2SeqLM.from_pretrained(folder)
        return divided_by_accelerate(model) if mode == "accelerate" else model
    sizes = {"fsdp": {"fsdp_size": 2}, "tp": {"tp_size": 2}}[mode]
    return AutoModelForSeq2SeqLM.from_pretrained(
        folder, distributed_config=DistributedConfig(**sizes)
    )


def main(mode, folder, out):
    batch = torch.load(folder / "batch.pt", weights_only=True)
    tokens = (batch["labels"] != -100).sum()
    model = load(mode, folder).train()
    if mode == "fsdp":
        register_fsdp_forward_method(model, "generate")
    replica = DistributedDataParallel(model) if mode in REPLICATED else model
    # What splits batches averages gradients over processes, so the loss is taken that often.
    copies = torch.distributed.get_world_size() if mode in (*REPLICATED, *DIVIDED) else 1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = replica(**share(batch, mode), num_items_in_batch=tokens).loss
        (loss * copies).backward()
        gradients = {name: whole(weight.grad) for name, weight in model.named_parameters()}
        optimizer.step()
        total = loss.detach().clone()
        if copies > 1:
            torch.distributed.all_reduce(total)
        losses.append(total.item())
    model.eval()
    with torch.no_grad():
        ids = model.generate(batch["input_ids"], num_beams=2, max_new_tokens=5)
    first = int(os.environ.get("RANK", "0")) == 0
    if mode == "accelerate":  # processes with sentences of unequal lengths wait for each other
        length = 3 if first else 5
        own = model.generate(batch["input_ids"], max_new_tokens=length, min_new_tokens=length)
        assert own.size(1) == 1 + length
    # Replicas would write the same file at once; of a sharded model each process has parts to give.
    weights = None
    if mode == "accelerate":  # as its get_state_dict() gives them to a trainer
        weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    model.save_pretrained(out, is_main_process=first, state_dict=weights)
    if first:
        torch.save(
            {name: gradient.clone() for name, gradient in gradients.items()}, out / "grad.pt"
        )
        (out / "result.json").write_text(json.dumps({"losses": losses, "ids": ids.tolist()}))


if __name__ == "__main__":
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
    for mode in sys.argv[1].split(","):
        target = Path(sys.argv[3]) / mode
        target.mkdir(parents=True, exist_ok=True)
        main(mode, Path(sys.argv[2]), target)
    leave_other_processes()
