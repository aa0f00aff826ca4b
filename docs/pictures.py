"""Draw the pictures of the pages: make demo; python docs/pictures.py.

Needs the files of data/ that index.md names, here 1,000, 200 and 200 captions of Multi30k, and
runs/fra, which the end of new-language.md trains.
"""

import re
import shutil
import subprocess
from io import StringIO
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch
from rich.console import Console

from modeling_aiayn.inspection.attention_weights import attention_maps
from modeling_aiayn.inspection.heat_maps import draw_attention
from modeling_aiayn.translation import Translator

DOCS = Path(__file__).parent
RUN = DOCS.parent / "runs" / "demo"
SENTENCE = "Yesterday I read a book about the war."
# Commands whose output is drawn: all of it, or the given number of last lines.
TERMINALS = [
    ("translate", 'aiayn translate --text "The children play football in the park."', 1),
    (
        "fine-tune",
        "aiayn train-translation recipes/finetune.yaml --start_from aiayn-en-de "
        "--learning_rate 0.005 --bf16 true --use_cpu true --train_file data/train "
        "--validation_file data/valid --test_file data/test --output_dir runs/tuned",
        7,
    ),
    (
        "new-language",
        "aiayn evaluate-translation --model runs/fra --source_lang fra_Latn --target_lang eng_Latn "
        "--file data/test",
        5,
    ),
]

# Figure 1: text, left edge, lower edge, and the heading in annotated.md.
BOXES = [
    ("Inputs", 0, 0, ""),
    ("Embeddings + positions", 0, 1, "sinusoidal_positions"),
    ("Self-attention", 0, 2.3, "multiheadattention"),
    ("Add & Norm", 0, 3, "addnorm"),
    ("Feed forward", 0, 4, "feed_forward"),
    ("Add & Norm", 0, 4.7, "addnorm"),
    ("Outputs, shifted right", 4, 0, ""),
    ("Embeddings + positions", 4, 1, "sinusoidal_positions"),
    ("Masked self-attention", 4, 2.3, "multiheadattention"),
    ("Add & Norm", 4, 3, "addnorm"),
    ("Cross-attention", 4, 4, "multiheadattention"),
    ("Add & Norm", 4, 4.7, "addnorm"),
    ("Feed forward", 4, 5.7, "feed_forward"),
    ("Add & Norm", 4, 6.4, "addnorm"),
    ("Linear, softmax", 4, 7.7, ""),
]
LAYERS = [
    ("EncoderLayer", -0.3, 2, 3.5, "encoderlayer"),
    ("DecoderLayer", 3.7, 2, 5.2, "decoderlayer"),
]
LABEL = {"ha": "center", "va": "center", "fontsize": 9}


def main() -> None:
    """Draw all pictures."""
    translator = Translator.from_pretrained("aiayn-en-de")
    view = attention_maps(translator, SENTENCE).view("cross")
    draw_attention(view, "heads", DOCS / "heads.png")
    draw_attention(view, "mean", DOCS / "attention.png")
    shutil.copy(RUN / "curves.png", DOCS / "curves.png")
    for name, command, lines in TERMINALS:
        record_terminal(command, lines, DOCS / f"terminal-{name}.svg")
    draw_figure_1(DOCS / "figure-1.svg")
    draw_speeds(DOCS / "speeds.svg")


def record_terminal(command: str, lines: int, path: Path) -> None:
    """Draw a command and the last lines of its output as a terminal."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    output = done.stdout.splitlines()
    shown = ["..."] * (len(output) > lines) + output[-lines:]
    console = Console(record=True, width=120, file=StringIO())
    console.print("\n".join([f"$ {command}", *shown]), markup=False, highlight=False)
    console.save_svg(str(path), title="aiayn")


def draw_figure_1(path: Path) -> None:
    """Draw Figure 1. Each box of the SVG links to its code."""
    figure, axes = plt.subplots(figsize=(6, 6.5))
    for name, left, bottom, height, heading in LAYERS:
        box = FancyBboxPatch((left, bottom), 3.1, height, "round,pad=0.1", fc="#eef3fb", ec="#456")
        box.set_url(f"annotated.html#{heading}")
        axes.add_patch(box)
        axes.text(left, bottom + height - 0.15, f"{name}, 6 times", fontsize=9, va="center")
    for text, left, bottom, heading in BOXES:
        color = "#f6d9b0" if heading else "white"
        box = FancyBboxPatch((left, bottom), 2.5, 0.4, "round,pad=0.08", fc=color, ec="#456")
        box.set_url(f"annotated.html#{heading}" if heading else None)
        axes.add_patch(box)
        axes.text(left + 1.25, bottom + 0.2, text, **LABEL)
    arrow = {"arrowprops": {"arrowstyle": "->", "color": "#456"}}
    ways = [((x, y), (x, y + step)) for x, y, step in ((1.25, 0.5, 0.4), (5.25, 0.5, 0.4))]
    ways += [((x, y), (x, y + step)) for x in (1.25, 5.25) for y, step in ((1.5, 0.7), (3.5, 0.4))]
    ways += [((5.25, 5.2), (5.25, 5.6)), ((5.25, 6.9), (5.25, 7.6)), ((3.35, 4.2), (3.9, 4.2))]
    axes.plot([1.25, 1.25, 3.35, 3.35], [5.2, 5.85, 5.85, 4.2], color="#456", linewidth=1)
    for start, end in ways:
        axes.annotate("", end, start, **arrow)
    axes.set(xlim=(-0.6, 7.2), ylim=(-0.3, 8.4))
    axes.axis("off")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def draw_speeds(path: Path) -> None:
    """Draw the first table of RESULTS.md: how many times as fast our int8 decoder is."""
    page = (DOCS.parent / "benchmarks" / "RESULTS.md").read_text("utf-8")
    rows = re.findall(r"^\| ([^|]+) \| [\d,]+ \(([\d.]+)\)", page, flags=re.M)
    ratios, system = {"Translator, int8": 1.0}, "Translator, int8"
    for name, ratio in rows:
        if name.startswith("products"):  # the row below the systems
            break
        name = name.replace("`", "").replace("the same", system)
        system = name.removesuffix(", one thread")
        ratios[name] = 1 / float(ratio)
    figure, axes = plt.subplots(figsize=(8, 3.5))
    colors = ["#2f6db5" if name.startswith("Translator") else "#b0b8c4" for name in ratios]
    bars = axes.barh(list(ratios), list(ratios.values()), color=colors)
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel="target tokens per second, relative to the first row", xlim=(0, 1.1))
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "aiayn"  # the same picture has the same bytes
    main()
