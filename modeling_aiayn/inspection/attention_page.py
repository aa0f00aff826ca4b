"""Attention weights as an interactive page: one HTML file that loads nothing else."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from ..saved.whole_files import write_file
from .attention_weights import AttentionMaps
from .pictures import visible

TEMPLATE = Path(__file__).with_name("attention_page.html")
# A weight of 1, written as a little-endian unsigned integer of two bytes.
UNIT = 65535
# Escapes of the characters that could end the script element around the data.
ESCAPES = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"}


def write_attention_page(maps: AttentionMaps, path: str | Path) -> None:
    """Write the page of `attention_page`."""
    write_file(Path(path), attention_page(maps))


def attention_page(maps: AttentionMaps) -> str:
    """Make an HTML page that shows every kind of attention, layer and head.

    The page does not use the network, and its content security policy forbids this. Tokens are
    stored as JSON and shown as text only.
    """
    template = TEMPLATE.read_text("utf-8")
    data = json.dumps(page_data(maps), ensure_ascii=True).translate(ESCAPES)
    return template.replace("{{POLICY}}", _policy(template)).replace("{{DATA}}", data)


def page_data(maps: AttentionMaps) -> dict[str, Any]:
    """Prepare the page's data: attention between tokens and, if they differ, between words."""
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
    units = (view.weights.double() * UNIT).round().clamp(0, UNIT).numpy().astype("<u2")
    return {
        "kind": kind,
        "layers": layers,
        "heads": heads,
        "rows": [visible(name) for name in view.rows],
        "columns": [visible(name) for name in view.columns],
        "rowTitle": view.row_title,
        "columnTitle": view.column_title,
        "weights": base64.b64encode(units.tobytes()).decode("ascii"),
    }


def _policy(template: str) -> str:
    """Write a content security policy that allows the page's own script and style only."""
    sources = ""
    for element in ("script", "style"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", template, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
        sources += f"{element}-src 'sha256-{digest}'; "
    return f"default-src 'none'; {sources}base-uri 'none'; form-action 'none'"
