"""The other processes of a job."""

import gc

from torch import distributed


def leave_other_processes() -> None:
    """End the process group of a job of several processes, with its threads.

    Without this, a process that ends early may abort the work of the others. A trainer, which is
    in a cycle of references, keeps the group, and a thread of gloo that frees a tensor while Python
    ends aborts the process after its work is done (https://github.com/pytorch/pytorch/issues/190489).

    Such a thread needs Python's lock to free a tensor. The name `group` lets go of the group last
    and gives up the lock while it waits for the threads. If a DDP model let go last, it would keep
    the lock, and the process would hang.
    """
    if distributed.is_available() and distributed.is_initialized():
        group = distributed.group.WORLD
        distributed.destroy_process_group()
        gc.collect()
        del group


def is_loss_of_process(error: BaseException) -> bool:
    """Whether a message to another process of the job failed."""
    is_group = distributed.is_available() and distributed.is_initialized()
    signs = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
    is_of_group = isinstance(error, RuntimeError) and any(each in str(error) for each in signs)
    return is_group and is_of_group
