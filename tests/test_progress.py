"""What a run's owner sees: rates in the bar, a table at the end."""

import re
import shutil

import pytest
from training_setup import make_trainer
from transformers import TrainerCallback, TrainerState

from modeling_aiayn.training.curves import draw_curves
from modeling_aiayn.training.progress import ProgressBar, training_table


def test_the_bar_shows_rates_and_evaluations(tmp_path, encoded, tokenizer, capsys):
    trainer = make_trainer(
        tmp_path,
        encoded,
        tokenizer,
        disable_tqdm=False,
        eval_strategy="steps",
        eval_steps=2,
        predict_with_generate=False,
    )
    trainer.train()
    captured = capsys.readouterr()
    for label in ("loss=", "tokens/s=", "padding=", "gradient=", "rate="):
        assert label in captured.err
    assert "4/4" in captured.err
    assert "update 2: loss " in captured.out and "perplexity " in captured.out
    assert "{'loss'" not in captured.out


def test_the_table_summarizes_the_whole_log():
    log = [
        {"step": 10, "epoch": 0.5, "loss": 5.0, "tokens_per_second": 900.0, "padding_share": 0.02},
        {"step": 10, "epoch": 0.5, "eval_loss": 3.25},
        {"step": 20, "epoch": 1.0, "loss": 4.0, "tokens_per_second": 1500.0, "padding_share": 0.04},
        {"step": 30, "epoch": 1.5, "loss": 3.5, "tokens_per_second": 1200.0, "padding_share": 0.06},
        {"step": 30, "epoch": 1.5, "eval_loss": 3.5},
        {"step": 1030, "epoch": 1.5, "train_runtime": 30.0, "seconds_of_all_starts": 90.0},
    ]
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in training_table(log).splitlines()
    ]
    assert dict(cells[2:]) == {
        "updates": "1,030",
        "epochs": "1.5",
        "last training loss (with any label smoothing)": "3.500",
        "real tokens per second, median": "1,200",
        "padding, share of a batch": "4.0%",
        "best validation loss, nats": "3.250",
        "minutes, resumed parts included": "1.5",
    }
    assert len({len(line) for line in training_table(log).splitlines()}) == 1


class BarWatch(TrainerCallback):
    """Records what the bar shows after the first update."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.shown = None

    def on_step_end(self, args, state, control, **kwargs):
        self.shown = self.shown or dict(self.bar.training_bar.format_dict)


def test_the_bar_of_a_resumed_run_counts_the_updates_of_this_start(tmp_path, encoded, tokenizer):
    options = {"disable_tqdm": False, "save_strategy": "steps", "save_steps": 3}
    make_trainer(tmp_path, encoded, tokenizer, **options).train()
    shutil.rmtree(tmp_path / "checkpoint-4")
    trainer = make_trainer(tmp_path, encoded, tokenizer, **options)
    watch = BarWatch()
    callbacks = trainer.callback_handler.callbacks
    watch.bar = next(callback for callback in callbacks if isinstance(callback, ProgressBar))
    trainer.add_callback(watch)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert (watch.shown["initial"], watch.shown["n"], watch.shown["total"]) == (3, 4, 4)


def test_without_a_bar_a_line_of_values_is_printed_now_and_then(tmp_path, capsys):
    bar = ProgressBar()
    state = TrainerState(global_step=7, max_steps=9, is_world_process_zero=True)
    bar.on_train_begin(None, state, None)
    bar.training_bar.disable = True
    bar.on_log(None, state, None, {"loss": 2.5, "tokens_per_second": 1234.0})
    bar.on_log(None, state, None, {"loss": 2.4})  # too soon after the first
    assert capsys.readouterr().out == "update 7 of 9: loss 2.500, tokens/s 1,234\n"


def test_a_run_without_log_entries_has_a_table_too():
    assert "| updates" in training_table([{"step": 3, "epoch": 0.1}])


@pytest.mark.parametrize(
    ("name", "title"),
    [("bleu", "BLEU"), ("accuracy", "percent of the texts"), ("perplexity", "Perplexity")],
)
def test_curves_show_the_metric_of_the_run(tmp_path, name, title):
    log = [{"step": step, "loss": 2.0, f"eval_{name}": 50.0 + step} for step in (1, 2)]
    draw_curves(log, tmp_path / "curves.svg")
    comments = re.findall("<!-- (.*?) -->", (tmp_path / "curves.svg").read_text())
    assert any(title in comment for comment in comments)
