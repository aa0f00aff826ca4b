"""Show a run: a progress bar with rates while it trains, a table at the end."""

import statistics
import time
from typing import Any

from transformers import ProgressCallback

# Without a terminal there is no bar; then a line of values is printed, at most as often as this.
SECONDS_BETWEEN_LINES = 30
# Label and format of the logged values that the bar shows.
_SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "padding_share": ("padding", "{:.1%}"),
    "grad_norm": ("gradient", "{:.2f}"),
    "learning_rate": ("rate", "{:.2e}"),
}


class ProgressBar(ProgressCallback):
    """A progress bar that shows the newest logged values, with evaluations printed above it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start at the update that is resumed, or the bar would overestimate the speed."""
        super().on_train_begin(args, state, control, **kwargs)
        self.current_step = state.global_step
        if self.training_bar is not None:
            bar = self.training_bar
            bar.initial = bar.n = bar.last_print_n = state.global_step
            bar.refresh()
        self._next_line = time.monotonic()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Show a new entry of the log."""
        if not state.is_world_process_zero or self.training_bar is None or logs is None:
            return
        if "loss" in logs:
            shown = {
                label: form.format(logs[name])
                for name, (label, form) in _SHOWN.items()
                if name in logs
            }
            self.training_bar.set_postfix(shown)
            if self.training_bar.disable and time.monotonic() >= self._next_line:
                self._next_line = time.monotonic() + SECONDS_BETWEEN_LINES
                text = ", ".join(f"{label} {value}" for label, value in shown.items())
                self.training_bar.write(f"update {state.global_step} of {state.max_steps}: {text}")
        metrics = {
            name.removeprefix("eval_"): f"{value:.4g}"
            for name, value in logs.items()
            if name.startswith("eval_") and isinstance(value, int | float)
        }
        if metrics:
            text = ", ".join(f"{name} {value}" for name, value in metrics.items())
            self.training_bar.write(f"update {state.global_step}: {text}")


def training_table(log_history: list[dict[str, Any]]) -> str:
    """Summarise a trainer's log as a Markdown table."""
    entries = [entry for entry in log_history if "tokens_per_second" in entry]
    summary: dict[str, Any] = next(
        (entry for entry in reversed(log_history) if "seconds_of_all_starts" in entry), {}
    )
    losses = [entry["eval_loss"] for entry in log_history if "eval_loss" in entry]
    rows = {"updates": f"{log_history[-1]['step']:,}", "epochs": f"{log_history[-1]['epoch']:.1f}"}
    if entries:
        rates = [entry["tokens_per_second"] for entry in entries]
        padding = statistics.mean(entry["padding_share"] for entry in entries)
        rows |= {
            "last training loss (with any label smoothing)": f"{entries[-1]['loss']:.3f}",
            "real tokens per second, median": f"{statistics.median(rates):,.0f}",
            "padding, share of a batch": f"{padding:.1%}",
        }
    if losses:
        rows["best validation loss, nats"] = f"{min(losses):.3f}"
    if summary:
        rows["minutes, resumed parts included"] = f"{summary['seconds_of_all_starts'] / 60:.1f}"
    width = max(map(len, rows))
    lines = [f"| {name:<{width}} | {value:>10} |" for name, value in rows.items()]
    return "\n".join(
        [f"| {'training':<{width}} | {'':>10} |", f"|{'-' * (width + 2)}|-----------:|", *lines]
    )
