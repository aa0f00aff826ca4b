"""The systems whose models can be imported."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .annotated import AnnotatedOptions, read_annotated
from .fairseq import FairseqOptions, read_fairseq
from .foreign_model import ForeignModel
from .fsmt import read_fsmt
from .library_models import HubOptions
from .m2m100 import M2M100Options, read_m2m100
from .marian import read_marian
from .opennmt import OpenNmtOptions, read_opennmt
from .torch_transformer import TorchOptions, read_torch_transformer


@dataclass(frozen=True)
class System:
    """A dataclass whose fields are a system's flags, and the function that reads its models."""

    options: type
    read: Callable[[str, Any], ForeignModel]


# By the name that `aiayn import-weights --system` accepts.
SYSTEMS = {
    "marian": System(HubOptions, read_marian),
    "m2m100": System(M2M100Options, read_m2m100),
    "fsmt": System(HubOptions, read_fsmt),
    "fairseq": System(FairseqOptions, read_fairseq),
    "torch": System(TorchOptions, read_torch_transformer),
    "annotated": System(AnnotatedOptions, read_annotated),
    "opennmt": System(OpenNmtOptions, read_opennmt),
}
