"""Compile the search for this processor, so that the first translation does not wait for it.

aiayn compile

The machine code serves every model in float32 and int8. It is kept in the user's cache folder.
"""

import sys

from .. import AiaynConfig, AiaynForConditionalGeneration
from ..translation.compiled import compiled_model, machine_code_folder
from ..translation.translator import check_package
from .command_line import parse_arguments


def main() -> None:
    parse_arguments(__doc__)
    check_package("numba", "fast")
    folder = machine_code_folder()
    if folder is None:
        raise OSError(
            "The cache folder must be one that only you can write to: ~/.cache/modeling_aiayn, or "
            "modeling_aiayn below XDG_CACHE_HOME."
        )
    model = AiaynForConditionalGeneration(AiaynConfig.from_preset("tiny", vocab_size=4))
    if None in [compiled_model(model, int8, (), None) for int8 in (False, True)]:
        sys.exit(1)  # the reason is in the log
    sys.stdout.write(f"The machine code is in {folder}.\n")
