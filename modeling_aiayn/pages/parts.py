"""Shared parts of the pages of `aiayn app`: the attention frame, limits, and the theme."""

import html
from typing import Any

import gradio
from gradio.themes import Default

from ..inspection.attention_page import attention_page
from ..inspection.attention_weights import AttentionMaps

# A model computes for one visitor at a time; the others wait in a queue.
ONE_AT_A_TIME: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model"}
# The page loads no fonts from other hosts.
THEME = Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
WIDTH = 280  # minimum width of a column, in pixels
FRAME = (
    '<iframe title="Attention" class="attention" sandbox="allow-scripts" srcdoc="{page}"></iframe>'
)
CSS = ".attention { width: 100%; height: 44rem; border: 0; border-radius: 0.5rem; }"
# Files of visitors are deleted after ten minutes.
PAGE_OPTIONS: dict[str, Any] = {"analytics_enabled": False, "delete_cache": (600, 600)}
LAUNCH_OPTIONS: dict[str, Any] = {
    "quiet": True,
    "theme": THEME,
    "css": CSS,
    "ssr_mode": False,
    "footer_links": [],
    "max_file_size": 10_000_000,
}


def attention_frame(maps: AttentionMaps) -> str:
    """Return the interactive attention page in a frame, isolated from the page around it."""
    return FRAME.format(page=html.escape(attention_page(maps)))


def check_length(text: str, max_characters: int) -> None:
    """Check that a visitor's text has words and is not too long; the page shows the error."""
    if not text.strip():
        raise gradio.Error("Write a text first.", print_exception=False)
    if len(text) > max_characters:
        message = f"The text must have at most {max_characters:,} characters."
        raise gradio.Error(message, print_exception=False)


def add_examples(examples: list[str], text: gradio.Textbox) -> None:
    """Add example texts that a visitor can choose."""
    if examples:
        gradio.Examples(examples, text)
