"""Run a script with accelerate's FSDP2 on CPUs: `torchrun fsdp_on_cpus.py SCRIPT FLAGS`.

accelerate itself divides models on accelerators alone.
"""

import runpy
import sys

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

prepare_state = AcceleratorState.__init__


def with_fsdp(self, *args, fsdp_plugin=None, **kwargs):
    prepare_state(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is not None:
        self.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP
        self.fsdp_plugin = fsdp_plugin


AcceleratorState.__init__ = with_fsdp
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
