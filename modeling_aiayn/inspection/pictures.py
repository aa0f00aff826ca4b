"""Writing a picture: PNG or SVG by the file's ending."""

import math
import warnings
from collections.abc import Iterable
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from .labels import drawable, visible

PICTURE_ENDINGS = (".png", ".svg")
DOTS_PER_INCH = 120
# A picture of more cannot be opened everywhere; it gets fewer dots to the inch.
MAX_PIXELS = 60_000_000
MAX_PIXELS_OF_SIDE = 30_000


def check_ending(path: str | Path, endings: Iterable[str] = PICTURE_ENDINGS) -> str:
    """The file's ending in lower case.

    Raises:
        ValueError: It is none of endings.
    """
    ending = Path(path).suffix.lower()
    endings = list(endings)
    if ending not in endings:
        raise ValueError(f"A picture's name must end in {' or '.join(endings)}, got {str(path)!r}.")
    return ending


def labels_for(path: str | Path, texts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Labels for a picture, and the families of fonts to draw them with.

    The text of an SVG stays text, which whoever looks at it has fonts for; a PNG has the glyphs of
    this machine's fonts, and code points where they have none.

    Args:
        path: The picture.
        texts: Tokens or words.

    Returns:
        The labels and the families.

    Raises:
        ValueError: The picture would be neither PNG nor SVG.
    """
    texts = list(texts)
    labels, families = drawable(texts)
    if check_ending(path) == ".svg":
        return [visible(text) for text in texts], [*families, "sans-serif"]
    return labels, families


def write_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure; the same figure gives the same file.

    Args:
        figure: The figure.
        path: The PNG or SVG to write.

    Raises:
        OSError: The file cannot be written.
        ValueError: Its ending is another.
    """
    ending = check_ending(path)
    width, height = figure.get_size_inches()
    dots = min(
        DOTS_PER_INCH,
        MAX_PIXELS_OF_SIDE / max(width, height),
        math.sqrt(MAX_PIXELS / (width * height)),
    )
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "modeling_aiayn"}),
        warnings.catch_warnings(),
    ):
        if ending == ".svg":
            # To lay text out that is not drawn here, a box's width serves.
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        metadata = {"Date": None} if ending == ".svg" else None
        figure.savefig(
            path,
            dpi=dots,
            format=ending[1:],
            metadata=metadata,
            bbox_inches="tight",
            pad_inches=0.1,
        )
