"""Attention weights as a page to move about in: one HTML file, with nothing from elsewhere."""

import base64
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from .attention_weights import AttentionMaps
from .labels import visible

TEMPLATE = "attention_page.html"
# What a weight of 1 is written as: an unsigned integer of two bytes.
UNIT = 65535
# Letters that could end the element that the data is in; the rest of it is ASCII.
ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def write_attention_page(maps: AttentionMaps, path: str | Path) -> None:
    """Write a page that shows any layer and head of any of a text's attentions.

    It asks for nothing over a network, and its policy forbids to. Tokens are data: they are in it
    as JSON, and become text of the page.

    Args:
        maps: The weights.
        path: The HTML file to write.

    Raises:
        OSError: The file cannot be written.
    """
    template = files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    page = template.replace("{{POLICY}}", _policy(template))
    page = page.replace("{{DATA}}", _as_json(page_data(maps)))
    Path(path).write_text(page, encoding="utf-8", newline="\n")


def page_data(maps: AttentionMaps) -> dict[str, Any]:
    """What the page shows: each kind of attention between tokens and, merged, between words.

    Args:
        maps: The weights.

    Returns:
        For JSON; weights are in units of 1 / 65535, little-endian, in base64.
    """
    merged = maps.merged()
    layouts = [("tokens", maps)]
    if any(getattr(maps, kind).shape != getattr(merged, kind).shape for kind in maps.kinds):
        layouts.append(("words", merged))
    return {
        "layouts": [
            {"name": name, "kinds": [_kind_data(layout, kind) for kind in maps.kinds]}
            for name, layout in layouts
        ]
    }


def _kind_data(maps: AttentionMaps, kind: str) -> dict[str, Any]:
    view = maps.view(kind)
    layers, heads = view.weights.shape[:2]
    return {
        "kind": kind,
        "layers": layers,
        "heads": heads,
        "rows": [visible(name) for name in view.rows],
        "columns": [visible(name) for name in view.columns],
        "rowTitle": view.row_title,
        "columnTitle": view.column_title,
        "weights": _packed(view.weights),
    }


def _packed(weights: Tensor) -> str:
    units = (weights.double() * UNIT).round().clamp(0, UNIT).numpy().astype("<u2")
    return base64.b64encode(units.tobytes()).decode("ascii")


def _as_json(data: dict[str, Any]) -> str:
    """JSON that no HTML parser finds an end in, and no script engine a line break."""
    return json.dumps(data, ensure_ascii=True).translate(ESCAPES)


def _policy(template: str) -> str:
    """A content security policy: the page's own script and style, and nothing else at all."""
    sources = " ".join(
        f"{directive} '{_fingerprint(template, element)}';"
        for directive, element in (("script-src", "script"), ("style-src", "style"))
    )
    return f"default-src 'none'; {sources} base-uri 'none'; form-action 'none'"


def _fingerprint(template: str, element: str) -> str:
    (content,) = re.findall(rf"<{element}>(.*?)</{element}>", template, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
