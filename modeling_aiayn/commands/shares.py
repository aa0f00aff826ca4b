"""The share of one process, if torchrun or accelerate launch starts several for one file.

Pools of texts go to the processes in turn. Each process writes its translations to a file of its
own; the first process merges the files when all are complete.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, cycle, islice
from pathlib import Path
from typing import BinaryIO, Self, TypeVar

from torch import distributed

from ..translation.pools import POOL_SIZE, read_pools

# Machines differ in speed. If a process ends with an error, its launcher ends the others.
TIMEOUT = timedelta(days=30)

Item = TypeVar("Item")


@dataclass(frozen=True)
class Share:
    """The pools of one process: process r of P takes pools r, r + P, r + 2 P, and so on.

    Args:
        rank: Number of the process, counted from 0.
        processes: Number of processes.
    """

    rank: int = 0
    processes: int = 1

    @classmethod
    def of_this_process(cls) -> Self:
        """Read the variables RANK and WORLD_SIZE, which launchers set.

        Raises:
            ValueError: RANK is not a number below WORLD_SIZE, or MASTER_ADDR or MASTER_PORT, by
                which several processes find each other, is missing.
        """
        rank, processes = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
        if not (rank.isdecimal() and processes.isdecimal() and int(rank) < int(processes)):
            raise ValueError(
                f"RANK must be a number below WORLD_SIZE, got {rank} and {processes}. Start the "
                "command with torchrun or accelerate launch, or unset both variables."
            )
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if int(processes) > 1 and missing:
            raise ValueError(
                f"WORLD_SIZE={processes} needs {' and '.join(missing)}, which launchers set. Start "
                "the command with torchrun or accelerate launch, or unset RANK and WORLD_SIZE."
            )
        return cls(int(rank), int(processes))

    def of(self, texts: Iterable[Item]) -> Iterator[Item]:
        """The texts of this process, in their order. A single process reads no text ahead."""
        if self.processes == 1:
            return iter(texts)
        pools = islice(read_pools(texts, POOL_SIZE), self.rank, None, self.processes)
        return chain.from_iterable(pools)

    def parts(self, partial: str) -> list[Path]:
        """The files of all processes; partial is the file of a process that runs alone."""
        numbers = range(1, self.processes + 1)
        return [Path(f"{partial}.{number}-of-{self.processes}") for number in numbers]

    def check_parts(self, partial: str) -> None:
        """Check that an earlier run has not left files of another number of processes.

        Raises:
            ValueError: There are such files.
        """
        own = self.parts(partial) if self.processes > 1 else [Path(partial)]
        name = re.compile(rf"{re.escape(Path(partial).name)}(\.\d+-of-\d+)?")
        parts = (each for each in Path(partial).parent.iterdir() if name.fullmatch(each.name))
        if others := sorted(each.name for each in parts if each not in own):
            raise ValueError(
                f"--resume needs as many processes as before, got {self.processes} and the file "
                f"{others[0]}. Start as many, or delete the file."
            )

    def wait(self) -> None:
        """Wait until every process has come here."""
        distributed.init_process_group("gloo", timeout=TIMEOUT)
        distributed.barrier()


def merge(parts: Sequence[Path], output: BinaryIO) -> None:
    """Write the lines of all processes in the order of the texts."""
    with ExitStack() as stack:
        files = [stack.enter_context(part.open("rb")) for part in parts]
        for file in cycle(files):
            lines = list(islice(file, POOL_SIZE))
            if not lines:  # the process whose turn it is has no pool left, so no other has
                return
            output.writelines(lines)
