"""The systems whose models can be imported."""

from collections.abc import Callable

from .annotated import AnnotatedOptions, read_annotated
from .fairseq import FairseqOptions, read_fairseq
from .foreign_model import ForeignModel
from .fsmt import read_fsmt
from .library_models import HubOptions
from .m2m100 import M2M100Options, read_m2m100
from .marian import read_marian
from .opennmt import read_opennmt
from .torch_transformer import TorchOptions, read_torch_transformer

# By the name that `aiayn import-weights --system` accepts: the function that reads a system's
# models, and dataclasses whose fields are its flags.
SYSTEMS: dict[str, tuple[Callable[..., ForeignModel], list[type]]] = {
    "marian": (read_marian, [HubOptions]),
    "m2m100": (read_m2m100, [M2M100Options]),
    "fsmt": (read_fsmt, [HubOptions]),
    "fairseq": (read_fairseq, [FairseqOptions]),
    "torch": (read_torch_transformer, [TorchOptions]),
    "annotated": (read_annotated, [AnnotatedOptions]),
    "opennmt": (read_opennmt, []),
}
