"""Draw the curves of a run: losses, scores and learning rate over updates."""

import logging
import time
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from transformers import TrainerCallback

from ..saved.whole_files import new_file

logger = logging.getLogger(__name__)

CURVES_FILE = "curves.png"
SECONDS_BETWEEN_PICTURES = 10
# Title and unit of each score; the first one that the log has is drawn.
_SCORES = {
    "eval_bleu": ("BLEU (greedy)", "sacreBLEU"),
    "eval_accuracy": ("Accuracy", "percent of the texts"),
    "eval_perplexity": ("Perplexity", "per token"),
}


def draw_curves(log_history: list[dict[str, Any]], path: str | Path) -> None:
    """Draw losses, score, learning rate and gradient norm of a trainer's log into a PNG."""
    figure = Figure(figsize=(9, 7), layout="constrained")
    (losses, scores), (rates, norms) = figure.subplots(2, 2)
    logged = {key for entry in log_history for key in entry}
    score = next((key for key in _SCORES if key in logged), "eval_bleu")
    for axes, key, label in (
        (losses, "loss", "training (with label smoothing, if set)"),
        (losses, "eval_loss", "validation"),
        (scores, score, "validation"),
        (rates, "learning_rate", "learning rate"),
        (norms, "grad_norm", "gradient norm, before clipping"),
    ):
        points = [(entry["step"], entry[key]) for entry in log_history if key in entry]
        if points:
            updates, values = zip(*points, strict=True)
            axes.plot(updates, values, marker="." if len(points) < 50 else "", label=label)
    title, unit = _SCORES[score]
    losses.set(title="Loss", xlabel="updates", ylabel="nats per target")
    scores.set(title=title, xlabel="updates", ylabel=unit, ylim=(0, None))
    rates.set(title="Learning rate", xlabel="updates", ylim=(0, None))
    norms.set(title="Gradient norm", xlabel="updates", ylim=(0, None))
    for axes in (losses, scores, rates, norms):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    with new_file(path) as unfinished:
        figure.savefig(unfinished, dpi=120)


class CurvesCallback(TrainerCallback):
    """Draws the curves into the output folder after evaluations, and at the end."""

    def __init__(self) -> None:
        self.drawn_at = time.monotonic()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the curves of all entries so far, unless they were drawn seconds ago."""
        if time.monotonic() - self.drawn_at > SECONDS_BETWEEN_PICTURES:
            self.on_train_end(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the curves of all entries; training continues if that fails."""
        if not state.is_world_process_zero:
            return
        path = Path(args.output_dir) / CURVES_FILE
        try:
            draw_curves(state.log_history, path)
        except OSError as error:
            logger.warning("%s could not be drawn (%s).", path, error)
        self.drawn_at = time.monotonic()
