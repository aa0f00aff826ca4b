"""Section 6.1's search, compiled by Numba for this processor (the extra `fast`)."""

import logging
import os
import stat
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...data.lines import content_sha256
from ...modeling_aiayn import AiaynForConditionalGeneration

if TYPE_CHECKING:
    from ..shortlist import Shortlist
    from .engine import CompiledModel

logger = logging.getLogger(__name__)


def compiled_model(
    model: AiaynForConditionalGeneration,
    int8: bool,
    excluded: tuple[int, ...],
    shortlist: "Shortlist | None",
) -> "CompiledModel | None":
    """Pack a model in float32 on a CPU for the compiled search; return None if it cannot be used.

    int8 rounds the weights. The softmax ignores excluded ids.
    """
    engine = _engine()
    if engine is None or not engine.is_supported(model):
        if int8:
            _warn_of_floats()
        return None
    compiled: CompiledModel = engine.CompiledModel(model, int8, excluded, shortlist)
    slow = threading.Timer(
        3, logger.warning, ["Compiling the search for this processor, which takes 15 s once."]
    )
    slow.start()
    try:
        try:
            compiled.compile()
        except Exception:  # for example, a file in the cache is damaged
            folder = machine_code_folder()
            for path in folder.iterdir() if folder else ():
                path.unlink(missing_ok=True)
            compiled.compile()
    except Exception as error:
        logger.warning("Numba cannot compile the search, so torch searches: %s", error)
        return None
    finally:
        slow.cancel()
    return compiled


@cache
def _warn_of_floats() -> None:
    logger.warning(
        "Weights are rounded to 8 bits, but products are in float32, which is slower. For products "
        "of 8 bits, install modeling_aiayn[fast]; the model needs ReLU, GELU or SiLU."
    )


@cache
def _engine() -> Any:
    """Return the module that runs compiled functions, or None without Numba."""
    if find_spec("numba") is None:
        return None
    import numba

    config: Any = numba.config
    earlier = config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES
    config.CACHE_DIR = str(machine_code_folder() or "")
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.locator.Locator"
    try:
        from . import engine  # its decorators read CACHE_DIR
    finally:
        config.CACHE_DIR, config.CACHE_LOCATOR_CLASSES = earlier
    return engine


@cache
def machine_code_folder() -> Path | None:
    """Return the user's own folder for the machine code of these sources; None: none is usable.

    Numba's files are pickled, so no other user may write to the folder; in an image, it is
    read-only. Numba ignores changes of imported modules, so the folder's name has their hash.
    """
    from numba import __version__

    code = content_sha256(sorted(Path(__file__).parent.glob("*.py")))
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "modeling_aiayn" / f"compiled-{__version__}-{code[:16]}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        is_own = not hasattr(os, "getuid") or (
            status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
        )
        return folder if is_own else None
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
