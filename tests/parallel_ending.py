"""One of two processes of a job that ends while a thread of gloo still has work to do."""

import gc
import os
import time

import torch
import torch._dynamo  # imported later, by DDP, it would keep the group
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from modeling_aiayn.commands.command_line import leave_other_processes


def main():
    gc.disable()
    distributed.init_process_group("gloo")
    # Like a trainer: a model, which keeps the group, in a cycle of references.
    trainer = {"model": DistributedDataParallel(nn.Linear(3, 5))}
    trainer["itself"] = trainer
    if os.environ["RANK"] == "1":
        time.sleep(3)
    # In the first process a thread waits for the second one, and then frees this tensor.
    distributed.all_reduce(torch.ones(4), async_op=True)


if __name__ == "__main__":
    main()
    leave_other_processes()
