"""Show a run: its speed in real tokens, a progress bar while it trains, a table at the end."""

import statistics
import time
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import ProgressCallback

from ..losses import IGNORED_LABEL

# Without a terminal there is no bar. Instead, a line of values is printed, at most this often.
SECONDS_BETWEEN_LINES = 30
# Label and format of the logged values that the bar shows.
_SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "padding_share": ("padding", "{:.1%}"),
    "grad_norm": ("gradient", "{:.2f}"),
    "learning_rate": ("rate", "{:.2e}"),
}


class TokenMeter:
    """Counts the tokens of batches between two entries of the log.

    Sums stay on the batches' device until they are read: counting does not wait for the device.
    With has_target, labels are counted too, because they are a second text, as in translation.
    """

    def __init__(self, has_target: bool = True) -> None:
        self.has_target = has_target
        self.real: Tensor | float = 0.0
        self.padded: float = 0.0
        self._started = time.perf_counter()

    def count(self, batch: dict[str, Any]) -> None:
        """Count a batch of "input_ids", [B, S], "attention_mask", [B, S], "labels", [B, T]."""
        if not {"input_ids", "labels"} <= batch.keys():
            return
        source, labels = batch["input_ids"], batch["labels"]
        mask = batch.get("attention_mask")
        sources = source.numel() if mask is None else mask.sum()
        self.real = self.real + sources
        self.padded += source.numel()
        if self.has_target:
            self.real = self.real + (labels != IGNORED_LABEL).sum()
            self.padded += labels.numel()

    def pause(self, seconds: float) -> None:
        """Leave out time that was not spent on training."""
        self._started += seconds

    def state_dict(self) -> dict[str, float]:
        """The counts so far: real tokens, tokens with padding, and seconds."""
        seconds = time.perf_counter() - self._started
        return {"real": float(self.real), "padded": self.padded, "seconds": seconds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue from counts that `state_dict` returned."""
        self.real, self.padded = state["real"], state["padded"]
        self._started = time.perf_counter() - state["seconds"]

    def rates(self, accelerator: Accelerator) -> dict[str, float]:
        """Real tokens per second and the share of padding, for the log; restarts the counts."""
        counted = torch.tensor([*self.state_dict().values()], dtype=torch.float64)
        self.load_state_dict({"real": 0.0, "padded": 0.0, "seconds": 0.0})
        if accelerator.num_processes > 1:
            counted = accelerator.reduce(counted.to(accelerator.device), "sum").cpu()
            counted[2] /= accelerator.num_processes
        real, padded, seconds = counted.tolist()
        if not padded:
            return {}
        return {"tokens_per_second": round(real / seconds, 1), "padding_share": 1 - real / padded}


class ProgressBar(ProgressCallback):
    """A progress bar that shows the newest logged values, with evaluations printed above it."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start at the resumed update; otherwise the bar would overestimate the speed."""
        super().on_train_begin(args, state, control, **kwargs)
        self.current_step = state.global_step
        if self.training_bar is not None:
            bar = self.training_bar
            bar.initial = bar.n = bar.last_print_n = state.global_step
            bar.refresh()
        self._next_line = time.monotonic()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any
    ) -> None:
        """Show a new entry of the log."""
        if self.training_bar is None:
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
    """Summarize a trainer's log as a Markdown table."""
    entries = [entry for entry in log_history if "tokens_per_second" in entry]
    key = "seconds_of_all_starts"
    seconds = [entry[key] for entry in log_history if key in entry]
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
    if seconds:
        rows["minutes, resumed parts included"] = f"{seconds[-1] / 60:.1f}"
    width = max(map(len, rows))
    lines = [f"| {name:<{width}} | {value:>10} |" for name, value in rows.items()]
    return "\n".join(
        [f"| {'training':<{width}} | {'':>10} |", f"|{'-' * (width + 2)}|-----------:|", *lines]
    )
