"""Runs that are killed, damaged, interrupted or diverge."""

import errno
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, small_config
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from training_setup import arguments, logged, make_trainer
from transformers import (
    AutoModelForSeq2SeqLM,
    EarlyStoppingCallback,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)

from modeling_aiayn import AiaynForConditionalGeneration
from modeling_aiayn.configuration_aiayn import AiaynConfig
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.saved import whole_files
from modeling_aiayn.training import AiaynTrainer, curves
from modeling_aiayn.training.data import DataArguments
from modeling_aiayn.training.resume import checkpoints, interruption
from modeling_aiayn.training.resume.checkpoints import check_checkpoint, choose_checkpoint
from modeling_aiayn.training.resume.interruption import InterruptionCallback
from modeling_aiayn.training.resume.run import Run, claim_folder
from modeling_aiayn.training.resume.settings import check_model_settings, model_settings
from modeling_aiayn.training.setup import ModelArguments
from modeling_aiayn.training.trainer import WEIGHTS

STEPS = {"max_steps": 14, "save_strategy": "steps", "save_steps": 4, "predict_with_generate": False}

# 4 updates are an epoch of 200 pairs.
EPOCHS = {"eval_strategy": "epoch", "per_device_train_batch_size": 50}
# A rate that rises until it spoils what has been learnt.
WORSE_AND_WORSE = {"learning_rate": 300.0, "warmup_steps": 100}


class Killed(BaseException):
    """Stands for a kill: no code of the library catches it."""


class Do(TrainerCallback):
    """Does something at one update."""

    def __init__(self, event, step, action):
        self.step = step
        setattr(self, event, self._act)
        self.action = action

    def _act(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action()


def kill():
    raise Killed


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory, encoded, tokenizer):
    """A run with the options STEPS, and nothing that disturbs it."""
    trainer = make_trainer(tmp_path_factory.mktemp("plain"), encoded, tokenizer, **STEPS)
    trainer.train()
    return trainer


@pytest.fixture
def run(tmp_path, encoded, tokenizer, request):
    """Train in tmp_path / name, resuming from the newest intact checkpoint if there is one."""

    def run_(name, at=None, data=encoded, callback=None, path=None, **options):
        if name == "whole" and data is encoded and callback is None and not options:
            return request.getfixturevalue("plain_run")
        checkpoint = path or choose_checkpoint(arguments(tmp_path / name, resume="auto"))
        trainer = make_trainer(tmp_path / name, encoded, tokenizer, **(STEPS | options))
        trainer.train_dataset = data
        if at is not None:
            trainer.add_callback(Do("on_step_end", at, kill))
        if callback is not None:
            trainer.add_callback(callback)
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except Killed:
            return None
        return trainer

    return run_


def assert_same_run(trainer, expected):
    """Compare weights and the whole log, except values that depend on the clock."""
    for first, second in zip(trainer.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(first, second)
    keys = ("step", "loss", "grad_norm", "learning_rate", "padding_share", "eval_loss", "epoch")
    keys += ("train_loss",)
    logs = [
        [[entry.get(key) for key in keys] for entry in each.state.log_history]
        for each in (trainer, expected)
    ]
    assert logs[0] == logs[1]
    assert len(logs[0]) >= 2


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens_per_batch": 200, "logging_steps": 3}
        | {"gradient_accumulation_steps": 2, "dataloader_num_workers": 2},
        pytest.param(
            {"max_tokens_per_batch": 2000, "max_steps": -1, "num_train_epochs": 4, "save_steps": 2},
            marks=pytest.mark.long,
        ),
        {"ema_decay": 0.9, "eval_strategy": "steps", "eval_steps": 4}
        | {"label_smoothing_factor": 0.0},
        {"lr_scheduler_type": "cosine", "learning_rate": 0.01, "max_grad_norm": 1.0}
        | {"optim": "muon"},
        # 8 updates are an epoch of 200 pairs: update 9, a checkpoint, is inside the second one.
        {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "save_steps": 3}
        | {"train_sampling_strategy": "random", "per_device_train_batch_size": 25},
    ],
    ids=["accumulation", "epochs", "average", "muon", "persistent workers"],
)
def test_a_killed_run_resumes_exactly(run, options):
    whole = run("whole", **options)
    assert run("cut", at=10, **options) is None
    resumed = run("cut", **options)
    assert_same_run(resumed, whole)
    summary = resumed.state.log_history[-1]
    assert summary["seconds_of_all_starts"] > summary["train_runtime"]


@pytest.mark.parametrize("options", [{}, {"max_tokens_per_batch": 400}], ids=str)
def test_a_run_resumes_exactly_in_the_middle_of_a_later_epoch(run, encoded, options):
    few = encoded.select(range(40))
    whole = run("whole", data=few, **options)
    assert run("cut", data=few, at=10, **options) is None
    resumed = run("cut", data=few, **options)
    batches = len(resumed.get_train_dataloader())
    assert batches < 8 and 8 % batches, "update 8, the checkpoint, must be inside a later epoch"
    assert_same_run(resumed, whole)


@pytest.fixture(scope="module")
def killed_run(tmp_path_factory, encoded, tokenizer):
    trainer = make_trainer(tmp_path_factory.mktemp("killed"), encoded, tokenizer, **STEPS)
    trainer.add_callback(Do("on_step_end", 10, kill))
    with pytest.raises(Killed):
        trainer.train()
    return Path(trainer.args.output_dir)


@pytest.fixture
def cut(killed_run, tmp_path):
    """A run that was killed at update 10, and its checkpoints 4 and 8."""
    # This process holds the lock of the copied run.
    ignored = shutil.ignore_patterns(".lock")
    return Path(shutil.copytree(killed_run, tmp_path / "cut", ignore=ignored))


def flip_a_byte(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


class Evil:
    def __reduce__(self):
        return (os.system, ("touch PWNED",))


DAMAGE = {
    "state cut": (lambda f: os.truncate(f / "trainer_state.json", 200), r"has 200 bytes, not"),
    "optimizer gone": (lambda f: (f / "optimizer.pt").unlink(), r"optimizer\.pt is missing"),
    "byte flipped": (
        lambda f: flip_a_byte(f / "model.safetensors"),
        r"model\.safetensors has another checksum",
    ),
    "payload": (
        lambda f: (f / "optimizer.pt").write_bytes(pickle.dumps(Evil())),
        r"optimizer\.pt has .* bytes, not",
    ),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), r"manifest\.json is missing"),
    "manifest flipped": (
        lambda f: (f / "manifest.json").write_text(
            (f / "manifest.json").read_text().replace('"bytes"', '"bytss"', 1)
        ),
        r"manifest\.json is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_skipped_and_named(run, cut, damage, caplog, monkeypatch):
    monkeypatch.chdir(cut)
    harm, message = DAMAGE[damage]
    harm(cut / "checkpoint-8")
    chosen = choose_checkpoint(arguments(cut, resume="auto"))
    assert chosen.folder == cut / "checkpoint-4"
    warning = next(text for text in caplog.messages if "Skipped a damaged" in text)
    assert str(cut / "checkpoint-8") in warning
    assert re.search(message, warning)
    if damage == "payload":
        assert_same_run(run("cut"), run("whole"))
        check_checkpoint(cut / "checkpoint-8")
        assert not (cut / "PWNED").exists()


def test_a_stray_folder_is_neither_resumed_nor_counted(run, tmp_path):
    folder = tmp_path / "cut"
    run("cut", at=5)
    (folder / "checkpoint-999").mkdir()
    shutil.copytree(folder / "checkpoint-4", folder / "checkpoint-007")
    resumed = run("cut", save_total_limit=1)
    names = sorted(path.name for path in folder.glob("checkpoint-*"))
    assert names == ["checkpoint-007", "checkpoint-14", "checkpoint-999"]
    assert resumed.state.global_step == 14
    assert_same_run(resumed, run("whole"))


def test_old_checkpoints_are_deleted_and_the_best_one_is_kept(run, tmp_path):
    trainer = run(
        "run",
        save_total_limit=2,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        **WORSE_AND_WORSE,
        metric_for_best_model="loss",
    )
    best = trainer.state.best_global_step
    assert best < 12
    names = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert names == {f"checkpoint-{best}", "checkpoint-14"}
    assert trainer.state.best_model_checkpoint == str(tmp_path / "run" / f"checkpoint-{best}")


class BetterAtSix(AiaynTrainer):
    """The evaluation at update 6, which is not saved, is better than that at 4, and the rest worse."""

    def evaluate(self, *args, **kwargs):
        metrics = super().evaluate(*args, **kwargs)
        loss = {4: 2.0, 6: 1.0}.get(self.state.global_step, 3.0)
        return metrics | {"eval_loss": loss}


@pytest.mark.parametrize("limit", [1, 2])
def test_the_best_saved_checkpoint_is_kept_if_a_better_one_was_not_saved(run, tmp_path, limit):
    trainer = run(
        "run",
        kind=BetterAtSix,
        save_total_limit=limit,
        save_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
        load_best_model_at_end=True,
    )
    assert trainer.state.best_global_step == 6
    best = tmp_path / "run" / "checkpoint-4"
    assert trainer.state.best_model_checkpoint == str(best)
    names = {path.name for path in (tmp_path / "run").glob("checkpoint-*")}
    assert names == {"checkpoint-4", "checkpoint-14"}
    saved = load_file(best / "model.safetensors")
    for name, weight in saved.items():
        assert torch.equal(trainer.model.state_dict()[name], weight)


def delete_checkpoints(folder, *numbers):
    for number in numbers:
        shutil.rmtree(folder / f"checkpoint-{number}")


def test_resuming_from_an_older_checkpoint_is_rejected_while_newer_ones_exist(run, cut, tmp_path):
    """Otherwise the next resume would pick an abandoned checkpoint."""
    older = cut / "checkpoint-4"
    message = r"Cannot resume from .*checkpoint-4: the newer .*checkpoint-8 lies in.*delete"
    for use in (lambda: run("cut", path=older), lambda: Run(arguments(cut, resume=str(older)))):
        with pytest.raises(ValueError, match=message):
            use()
    assert {path.name for path in cut.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-8"}
    assert_same_run(run("new", path=older), run("whole"))
    flip_a_byte(cut / "checkpoint-8" / "model.safetensors")  # a damaged one is no obstacle
    assert_same_run(run("cut", path=older), run("whole"))


def test_a_checkpoint_of_another_folder_is_rejected_where_there_are_others(run, cut, tmp_path):
    shutil.copytree(cut / "checkpoint-8", tmp_path / "elsewhere" / "checkpoint-8")
    with pytest.raises(ValueError, match=r"the newer checkpoint .*cut/checkpoint-8 lies in"):
        run("cut", path=tmp_path / "elsewhere" / "checkpoint-8")
    delete_checkpoints(cut, 4, 8)
    assert_same_run(run("cut", path=tmp_path / "elsewhere" / "checkpoint-8"), run("whole"))


def test_training_anew_in_a_folder_of_another_run_is_rejected(cut, encoded, tokenizer):
    with pytest.raises(ValueError, match=r"Cannot start from the beginning: .*checkpoint-8 lies"):
        make_trainer(cut, encoded, tokenizer, **STEPS, save_total_limit=1).train()
    assert {path.name for path in cut.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-8"}


def test_a_run_that_was_moved_finds_its_best_checkpoint(run, tmp_path):
    options = {"metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 4}
    run("run", at=9, **options, **WORSE_AND_WORSE)
    shutil.copytree(tmp_path / "run", tmp_path / "moved", ignore=shutil.ignore_patterns(".lock"))
    shutil.rmtree(tmp_path / "run")  # this process holds its lock
    trainer = run("moved", **options, **WORSE_AND_WORSE)
    best = trainer.state.best_global_step
    assert best < 12
    assert trainer.state.best_model_checkpoint == str(tmp_path / "moved" / f"checkpoint-{best}")


def test_a_signal_before_the_first_update_does_not_speak_of_a_checkpoint(run, caplog):
    signalled = Do("on_prediction_step", 0, terminate)
    with pytest.raises(SystemExit):
        run("run", callback=signalled, eval_on_start=True, eval_strategy="steps", eval_steps=4)
    assert "Saved at update" not in caplog.text


def test_training_resumes_as_the_arguments_say(cut, encoded, tokenizer):
    trainer = make_trainer(cut, encoded, tokenizer, resume="auto", **STEPS)
    trainer.add_callback(Do("on_train_begin", 8, terminate))
    with pytest.raises(SystemExit):
        trainer.train()
    assert trainer.state.global_step >= 8


def test_a_checkpoint_of_weights_alone_is_not_resumed(run):
    run("cut", at=6, save_only_model=True)
    with pytest.raises(ValueError, match=r"checkpoint-4 holds only weights \(save_only_model\)"):
        run("cut", save_only_model=True)


def test_a_resumed_run_does_not_repeat_the_evaluation_of_its_start(run):
    """It would count as one without a better score."""
    options = {"eval_on_start": True, "eval_strategy": "steps", "eval_steps": 4}
    options |= {"metric_for_best_model": "loss", "early_stopping_patience": 1}
    run("cut", at=6, **options)
    resumed = run("cut", **options)
    assert_same_run(resumed, run("whole", **options))
    assert resumed.state.global_step == 14


def test_a_named_checkpoint_is_resumed_even_if_the_run_is_finished(run, cut):
    run("cut")
    delete_checkpoints(cut, 8, 12, 14)
    auto, named = (
        arguments(cut, resume=name, max_steps=14) for name in ("auto", str(cut / "checkpoint-4"))
    )
    Run(auto).finish()
    assert Run(auto).is_finished and not Run(named).is_finished
    run("cut", path=cut / "checkpoint-4", at=5)
    assert not Run(auto).is_finished


def test_a_named_checkpoint_does_not_replace_the_model_of_another_run(cut, tmp_path):
    other, named = tmp_path / "other", str(cut / "checkpoint-8")
    other.mkdir()
    assert Run(arguments(other, resume=named, max_steps=14)).checkpoint is not None
    for name in ("config.json", "finished.json"):
        (other / name).write_text("{}")
    with pytest.raises(ValueError, match=r"other holds a model of another run, and .*checkpoint-8"):
        Run(arguments(other, resume=named, max_steps=14))
    (cut / "config.json").write_text("{}")
    assert Run(arguments(cut, resume=named, max_steps=14)).checkpoint is not None
    (cut / "checkpoint-8").rename(tmp_path / "checkpoint-8")  # to a larger disk
    (cut / "checkpoint-8").symlink_to(tmp_path / "checkpoint-8")
    assert Run(arguments(cut, resume=named, max_steps=14)).checkpoint is not None


def test_metrics_with_the_prefix_train_are_not_taken_for_the_summary(run):
    trainer = run("run")
    expected = trainer.evaluate(trainer.eval_dataset)["eval_loss"]
    metrics = trainer.evaluate(trainer.eval_dataset, metric_key_prefix="train")
    assert metrics["train_loss"] == pytest.approx(expected, rel=1e-6)
    assert "seconds_of_all_starts" not in metrics


def test_an_average_of_an_adapter_is_rejected(tmp_path, encoded, tokenizer):
    model = make_trainer(tmp_path, encoded, tokenizer).model
    adapted = get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="ema_decay cannot average an adapter"):
        AiaynTrainer(adapted, arguments(tmp_path, ema_decay=0.9), train_dataset=encoded)


def test_a_damaged_checkpoint_of_a_later_update_is_deleted_first(run, cut):
    flip_a_byte(cut / "checkpoint-8" / "model.safetensors")
    (cut / "checkpoint-8").rename(cut / "checkpoint-999")
    run("cut", at=9, save_total_limit=2)
    names = {path.name for path in cut.glob("checkpoint-*")}
    assert names == {"checkpoint-4", "checkpoint-8"}


def test_a_caller_s_own_early_stopping_is_unchanged(run):
    options = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
    trainer = run("run", callback=EarlyStoppingCallback(2), **options, **WORSE_AND_WORSE)
    assert 4 < trainer.state.global_step < 14


@pytest.mark.parametrize(
    ("event", "number", "error"),
    [
        ("on_step_begin", signal.SIGTERM, SystemExit),
        ("on_pre_optimizer_step", signal.SIGINT, KeyboardInterrupt),
        ("on_step_begin", signal.SIGHUP, SystemExit),
        ("on_pre_optimizer_step", signal.SIGUSR1, SystemExit),
        ("on_step_begin", signal.SIGXCPU, SystemExit),
        ("on_step_begin", signal.SIGQUIT, SystemExit),
    ],
)
def test_a_signal_saves_and_stops(run, tmp_path, caplog, event, number, error):
    options = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    options |= {"max_steps": 7}
    action = Do(event, 5, lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    with pytest.raises(error) as caught:
        run("cut", callback=action, **options)
    assert signal.getsignal(number) is before
    if error is SystemExit:
        assert caught.value.code == 128 + number
    folder = tmp_path / "cut" / "checkpoint-6"
    state = json.loads((folder / "trainer_state.json").read_text())
    evaluated = [entry["step"] for entry in state["log_history"] if "eval_loss" in entry]
    assert evaluated == [3]
    assert not (tmp_path / "cut" / "model.safetensors").exists()
    assert f"{signal.Signals(number).name}: saving at the end of this update" in caplog.text
    if number in (signal.SIGTERM, signal.SIGINT):
        assert_same_run(run("cut", **options), run("whole", **options))


@pytest.mark.parametrize(
    ("update", "options"),
    [
        (6, {"eval_strategy": "steps", "eval_steps": 3, "max_steps": 8}),
        (14, {"eval_strategy": "steps", "eval_steps": 7, "metric_for_best_model": "loss"}),
        (8, EPOCHS | {"max_steps": 8, "save_strategy": "best", "load_best_model_at_end": True}),
    ],
    ids=["steps", "last", "epoch"],
)
def test_a_signal_stops_an_evaluation_and_the_resumed_run_repeats_it(
    run, tmp_path, update, options, caplog
):
    """The second of two batches of the second evaluation never comes."""
    options = {"per_device_eval_batch_size": 10} | options

    class Evaluated(TrainerCallback):
        """Draws random numbers, as an evaluation may."""

        batches = 0

        def on_prediction_step(self, *_, **__):
            torch.rand(5)
            self.batches += 1

    class Terminated(Evaluated):
        def on_prediction_step(self, *_, **__):
            super().on_prediction_step()
            if self.batches == 3:
                terminate()

    stopped = Terminated()
    with pytest.raises(SystemExit) as caught:
        run("cut", callback=stopped, **options)
    assert (caught.value.code, stopped.batches) == (143, 3)
    assert f"Saved at update {update}. Resume" in caplog.text
    state = json.loads((tmp_path / f"cut/checkpoint-{update}/trainer_state.json").read_text())
    assert sum("eval_loss" in entry for entry in state["log_history"]) == 1
    whole, resumed = (run(name, callback=Evaluated(), **options) for name in ("whole", "cut"))
    assert_same_run(resumed, whole)
    assert resumed.state.best_metric == whole.state.best_metric


def test_a_signal_during_a_repeated_evaluation_keeps_it_due(run, tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 5}
    for _ in range(2):
        with pytest.raises(SystemExit):
            run("cut", callback=Do("on_prediction_step", 5, terminate), **options)
        found = sorted(path.name for path in (tmp_path / "cut").glob("checkpoint-*"))
        assert found == ["checkpoint-4", "checkpoint-5"]
    assert_same_run(run("cut", **options), run("whole", **options))


def test_nohup_keeps_its_meaning(run):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        hung_up = Do("on_step_begin", 1, lambda: os.kill(os.getpid(), signal.SIGHUP))
        assert run("run", callback=hung_up, max_steps=3).state.global_step == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_after_the_last_update_ends_the_process(run, tmp_path):
    """The run is complete; the script's remaining work waits for the next start."""
    options = {"eval_strategy": "steps", "eval_steps": 14}
    signalled = Do("on_evaluate", 14, terminate)
    with pytest.raises(SystemExit) as caught:
        run("cut", callback=signalled, **options)
    assert caught.value.code == 143
    assert_same_run(run("cut", **options), run("whole", **options))


def test_training_in_a_thread_does_not_touch_signal_handlers(run):
    before = signal.getsignal(signal.SIGTERM)
    finished = []
    thread = threading.Thread(target=lambda: finished.append(run("run", max_steps=2)))
    thread.start()
    thread.join()
    assert finished[0].state.global_step == 2
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("update", [3, 5])
def test_a_signal_at_the_end_of_an_epoch_loses_nothing(run, update):
    """An epoch is logged, evaluated and saved. The last update, the 6th, ends the second epoch."""
    options = EPOCHS | {"max_steps": 6, "save_strategy": "epoch", "logging_strategy": "epoch"}
    with pytest.raises(SystemExit):
        run("cut", callback=Do("on_step_begin", update, terminate), **options)
    whole = run("whole", **options)
    assert [entry["step"] for entry in whole.state.log_history if "eval_loss" in entry] == [4, 6]
    assert_same_run(run("cut", **options), whole)


def test_a_finished_run_is_not_trained_further(run, tmp_path):
    options = {"lr_scheduler_type": "constant", "learning_rate": 0.1, "max_steps": 5}
    run("run", **options)
    before = (tmp_path / "run" / "checkpoint-5" / "model.safetensors").read_bytes()
    again = run("run", **options)
    assert again.state.global_step == 5
    again.save_model()
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before
    assert not (tmp_path / "run" / "checkpoint-6").exists()
    assert run("run", **options | {"max_steps": 7}).state.global_step == 7


def test_an_evaluation_that_was_postponed_may_end_a_run(run):
    options = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "metric_for_best_model": "loss",
        "early_stopping_patience": 1,
    } | WORSE_AND_WORSE
    whole = run("whole", **options)
    last = whole.state.global_step
    assert last < 14
    with pytest.raises(SystemExit):
        run("cut", callback=Do("on_step_end", last, terminate), **options)
    assert_same_run(run("cut", **options), whole)


def test_a_checkpoint_of_the_same_update_replaces_the_earlier_one_once_it_is_whole(
    run, tmp_path, monkeypatch
):
    """Update 4 is saved as the 4th, and again when a signal stops the epoch's evaluation."""
    options = EPOCHS | {"max_steps": 6}
    written = []

    def killed_at_the_second(folder):
        written.append(folder.name)
        if len(written) == 2:
            raise Killed
        write_manifest(folder)

    write_manifest = checkpoints.write_manifest
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write_manifest", killed_at_the_second)
        assert run("cut", callback=Do("on_prediction_step", 4, terminate), **options) is None
    assert written == ["checkpoint-4"] * 2
    assert check_checkpoint(tmp_path / "cut" / "checkpoint-4")
    assert_same_run(run("cut", **options), run("whole", **options))


def test_a_run_that_stopped_early_is_complete(run, caplog):
    options = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "metric_for_best_model": "loss",
        "early_stopping_patience": 1,
    } | WORSE_AND_WORSE
    stopped = run("run", **options)
    assert stopped.state.global_step < 14
    again = run("run", **(options | {"max_steps": 20}))
    assert again.state.global_step == stopped.state.global_step
    remedy = (
        "is complete. To train it further, pass an --early_stopping_patience greater than 1, or"
    )
    assert remedy in caplog.text
    assert logged(again, "train_loss") == pytest.approx(logged(stopped, "train_loss"))
    for first, second in zip(again.model.parameters(), stopped.model.parameters(), strict=True):
        assert torch.equal(first, second)
    patient = run("run", **(options | {"early_stopping_patience": 3}))
    assert patient.state.global_step == stopped.state.global_step + 4


def test_early_stopping_can_be_added_when_a_run_resumes(run):
    """The checkpoint has no state of the callback."""
    options = {"eval_strategy": "steps", "eval_steps": 4}
    run("run", at=6, **options)
    patience = {"early_stopping_patience": 5, "metric_for_best_model": "loss"}
    assert run("run", **options, **patience).state.global_step == 14


def test_a_failed_run_leaves_no_average(tmp_path, encoded, tokenizer):
    def build():
        torch.manual_seed(3)
        return AiaynForConditionalGeneration(small_config(vocab_size=len(tokenizer), dropout=0.0))

    weights = []
    for fails in (True, False):
        trainer = AiaynTrainer(
            model_init=build,
            args=arguments(tmp_path / str(fails), ema_decay=0.9, predict_with_generate=False),
            train_dataset=encoded,
            processing_class=tokenizer,
        )
        if fails:
            trainer.add_callback(Do("on_step_end", 3, kill))
            with pytest.raises(Killed):
                trainer.train()
            trainer.pop_callback(Do)
        trainer.train()
        weights.append([weight.detach() for weight in trainer.model.parameters()])
    for first, second in zip(*weights, strict=True):
        assert torch.equal(first, second)


def test_a_run_is_finished_until_it_is_to_become_longer(tmp_path):
    def is_finished(**options):
        return Run(arguments(tmp_path, **options)).is_finished

    assert not is_finished(resume="auto")
    Run(arguments(tmp_path)).finish()
    for shorter in ({}, {"max_steps": 3}, {"num_train_epochs": 9}):  # max_steps overrides epochs
        assert is_finished(resume="auto", **shorter)
        with pytest.raises(ValueError, match=r"learning_rate was 0\.5 then, and is 0\.1 now"):
            is_finished(resume="auto", learning_rate=0.1, **shorter)
    for longer in ({"max_steps": 5}, {"max_steps": -1, "num_train_epochs": 2}):
        with pytest.raises(ValueError, match="holds a finished run without checkpoints"):
            is_finished(resume="auto", **longer)
    patient = {"eval_strategy": "epoch", "metric_for_best_model": "loss"}
    Run(arguments(tmp_path, early_stopping_patience=2, **patient)).finish()
    for patience in (1, 2):
        assert is_finished(resume="auto", early_stopping_patience=patience, **patient)
    for patience in (3, 0):
        with pytest.raises(ValueError, match=f"its model, with --start_from {tmp_path}"):
            is_finished(resume="auto", early_stopping_patience=patience, **patient)
    assert not is_finished()


def test_a_finished_run_with_other_flags_is_rejected(tmp_path):
    Run(arguments(tmp_path)).finish()
    harmless = {"logging_steps": 3, "torch_compile": True, "ddp_bucket_cap_mb": 5}
    assert Run(arguments(tmp_path, resume="auto", **harmless)).is_finished
    for options, message in (
        ({"seed": 7}, "seed was 42 then, and is 7 now"),
        ({"learning_rate": 0.1}, "learning_rate was 0.5 then, and is 0.1 now"),
        ({"metric_for_best_model": "loss"}, "metric_for_best_model was None then"),
    ):
        with pytest.raises(ValueError, match=f"This run is finished. --{message}"):
            Run(arguments(tmp_path, resume="auto", **options))


def test_a_finished_run_with_other_data_or_sizes_is_rejected(tmp_path):
    def run_of(text="a\tb\n", model=None, resume="auto", **data):
        (tmp_path / "train.tsv").write_text(text)
        for language in ("en", "de"):
            (tmp_path / f"valid.{language}").write_text(data.pop(language, ""))
        given = {"train_file": [f"{tmp_path}/train.tsv"], "validation_file": [f"{tmp_path}/valid"]}
        given |= {"source_lang": "en", "target_lang": "de"}
        flags = (DataArguments(**given | data), ModelArguments(**(model or {})))
        return Run(arguments(tmp_path / "run", resume=resume), *flags)

    run_of(resume=None).finish()
    assert run_of().is_finished
    for other, message in (
        ({"text": "a\tc\n"}, "--train_file had other content when the run was made"),
        ({"de": "b"}, "--validation_file had other content when the run was made"),
        ({"test_file": [f"{tmp_path}/train.tsv"]}, "test_file was None then, and is 'sha256:"),
        ({"source_lang": "fr"}, "source_lang was 'en' then, and is 'fr' now"),
        ({"model": {"vocab_size": 9}}, "vocab_size was 10000 then, and is 9 now"),
        ({"max_length": 9}, "max_length was 256 then, and is 9 now"),
    ):
        with pytest.raises(ValueError, match=message):
            run_of(**other)
    with pytest.raises(ValueError, match="--train_file had other content when the run was made"):
        run_of(train_file=[f"{tmp_path}/moved.tsv"])


def test_a_run_is_finished_with_the_data_that_it_began_with(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tb\n")
    data = DataArguments(train_file=[f"{tmp_path}/train.tsv"])
    run = Run(arguments(tmp_path / "run"), data)
    (tmp_path / "train.tsv").write_text("a\tc\n")
    run.finish()
    with pytest.raises(ValueError, match="--train_file had other content when the run was made"):
        Run(arguments(tmp_path / "run", resume="auto"), data)


def test_files_that_a_run_would_overwrite_are_not_its_own(tmp_path):
    (tmp_path / "README.md").write_text("My notes")
    with pytest.raises(ValueError, match=r"a file that a run would overwrite, README\.md\."):
        Run(arguments(tmp_path))
    assert Run(arguments(tmp_path, resume="auto")).checkpoint is None


def test_a_kill_while_the_finish_is_recorded_leaves_the_run_unfinished(tmp_path, monkeypatch):
    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(whole_files, "force_to_disk", killed)
    run = Run(arguments(tmp_path, resume="auto"))
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    assert not Run(run.args).is_finished
    monkeypatch.undo()
    run.finish()
    assert Run(run.args).is_finished


def test_another_learning_rate_is_used_and_logged(run, cut, caplog):
    resumed = run("cut", learning_rate=0.25)
    assert "learning_rate is 0.25 from here on; it was 0.5." in caplog.messages
    rates, old = logged(resumed, "learning_rate"), logged(run("whole"), "learning_rate")
    assert rates == pytest.approx(old[:8] + [rate / 2 for rate in old[8:]])


def test_a_longer_schedule_holds_from_the_first_update(run):
    linear = {"lr_scheduler_type": "linear", "learning_rate": 0.1, "warmup_steps": 0}
    run("run", max_steps=4, **linear)
    resumed = run("run", max_steps=10, **linear)
    assert logged(resumed, "learning_rate")[4] == pytest.approx(0.1 * 6 / 10)


def test_a_checkpoint_of_another_run_is_rejected(run, cut):
    for options, message in (
        ({"seed": 7}, "seed was 42 when this run began, and is 7 now"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps was 1 .* is 2 now"),
        ({"max_tokens_per_batch": 300}, "max_tokens_per_batch was None .* is 300 now"),
        ({"adam_beta2": 0.9}, "adam_beta2 was 0.98"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last was False .* is True now"),
        ({"sizes": {"d_model": 24}}, "d_model was 12 when this run began, and is 24 now"),
        ({"dropout": 0.5}, "dropout was 0.1 .* is 0.5 now"),
    ):
        with pytest.raises(ValueError, match=message):
            run("cut", **options)


def test_the_precision_that_accelerate_sets_is_recorded(run, monkeypatch, tmp_path):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    run("run", at=5)
    monkeypatch.delenv("ACCELERATE_MIXED_PRECISION")
    with pytest.raises(ValueError, match="bf16 was True when this run began, and is False now"):
        run("run")


@pytest.mark.parametrize("names", [("linear", "reduce_lr_on_plateau"), ("greedy", "linear")])
def test_a_schedule_with_another_kind_of_state_is_rejected(run, names):
    before, after = (
        {"lr_scheduler_type": name, "learning_rate": 0.1, "eval_strategy": "steps", "eval_steps": 2}
        for name in names
    )
    run("run", at=5, **before)
    with pytest.raises(ValueError, match=f"was '{names[0]}' .* is '{names[1]}' now: the state of"):
        run("run", **after)


def test_another_metric_is_rejected_once_scores_were_compared(run, tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "predict_with_generate": True}
    options |= {"generation_max_length": 5, "held_out": 3, "max_steps": 4}
    run("run", at=3, metric_for_best_model="loss", save_steps=2, **options)
    with pytest.raises(ValueError, match=r"metric_for_best_model was 'loss' .* is 'chrf' now"):
        run("run", metric_for_best_model="chrf", greater_is_better=True, **options)
    with pytest.raises(ValueError, match=r"greater_is_better was False .* is True now"):
        run("run", metric_for_best_model="loss", greater_is_better=True, **options)
    run("new", at=3, save_steps=2, **options)
    best = {"load_best_model_at_end": True, "metric_for_best_model": "chrf", "save_steps": 2}
    assert run("new", **options, **best).state.best_metric is not None


def test_arguments_that_may_change_are_announced(run, cut, caplog):
    run("cut", save_steps=5, torch_empty_cache_steps=3, logging_steps=2, eval_strategy="epoch")
    announced = [line for line in caplog.messages if "from here on" in line]
    expected = {
        "eval_strategy is 'epoch' from here on; it was 'no'.",
        "logging_steps is 2 from here on; it was 1.",
        "save_steps is 5 from here on; it was 4.",
        "torch_empty_cache_steps is 3 from here on; it was None.",
    }
    # The library sets do_eval where eval_strategy asks for evaluations.
    assert {*announced} - {"do_eval is True from here on; it was False."} == expected


def test_other_data_and_another_tokenizer_are_rejected(cut, encoded, run):
    other = encoded.select([*range(199), 0])
    for options in ({}, {"sizes": {"vocabulary_sha256": ["of", "them"]}}):
        with pytest.raises(ValueError, match=r"^The training data changed since this run began"):
            run("cut", data=other, **options)
    with pytest.raises(ValueError, match="The validation data changed since"):
        run("cut", held_out=10)
    run("other", at=5, sizes={"vocabulary_sha256": ["a", "b"]})
    with pytest.raises(ValueError, match=r"vocabulary_sha256 was \['a', 'b'\] when this run began"):
        run("other", sizes={"vocabulary_sha256": ["a", "c"]})


def test_a_problem_type_that_a_classifier_infers_makes_it_no_other_model():
    config = small_config()
    new = model_settings(config)
    config.problem_type = "regression"
    trained = model_settings(config)
    check_model_settings({"model": new}, trained)
    check_model_settings({"model": trained}, new)
    config.problem_type = "multi_label_classification"
    with pytest.raises(ValueError, match="problem_type was 'regression' when this run began"):
        check_model_settings({"model": trained}, model_settings(config))


def test_another_model_is_rejected_before_data_is_read(cut):
    config = AiaynConfig(d_model=24, encoder_attention_heads=3, decoder_attention_heads=2)
    with pytest.raises(ValueError, match="d_model was 12 when this run began, and is 24 now"):
        Run(arguments(cut, resume="auto")).check_model(config)


class NotANumber(AiaynTrainer):
    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * (float("nan") if self.state.global_step == 6 else 1.0)


def test_divergence_stops_the_run_before_the_weights_change(tmp_path, encoded, tokenizer):
    before = signal.getsignal(signal.SIGTERM)
    options = STEPS | {"kind": NotANumber, "save_total_limit": 2}
    trainer = make_trainer(tmp_path, encoded, tokenizer, **options)
    with pytest.raises(
        ValueError, match=r"diverged at update 7: loss nan, gradient norm nan.*checkpoint-4\. Lower"
    ):
        trainer.train()
    assert signal.getsignal(signal.SIGTERM) is before
    last = trainer.state.log_history[-1]
    assert last["step"] == 7 and last["loss"] != last["loss"]
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    assert Run(arguments(tmp_path, resume="auto")).checkpoint.folder == tmp_path / "checkpoint-4"


def test_a_finite_but_absurd_loss_stops_the_run(run, tmp_path):
    with pytest.raises(
        ValueError, match=r"Training diverged at update \d:.*There is no checkpoint"
    ):
        run("run", learning_rate=1e6, lr_scheduler_type="constant")


def test_out_of_memory_names_the_batch(run):
    class TooLarge(AiaynTrainer):
        def compute_loss(self, *args, **kwargs):
            if self.state.global_step == 5:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
            return super().compute_loss(*args, **kwargs)

    with pytest.raises(
        ValueError,
        match=r"Out of memory at update 6, in a batch of .*'input_ids': \(8, .*--max_tokens_per_batch",
    ):
        run("cut", kind=TooLarge)
    assert_same_run(run("cut"), run("whole"))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        Exception("No space left on device (os error 28)"),  # as tokenizers have it
    ],
    ids=["OSError", "Exception"],
)
def test_a_full_disk_destroys_no_earlier_checkpoint(run, tmp_path, monkeypatch, error):
    saves = []
    save = torch.save

    def fail(value, path, *args, **kwargs):
        saves.append(path)
        if "checkpoint-8" in str(path) and str(path).endswith("optimizer.pt"):
            Path(path).write_bytes(b"torn")
            raise error
        save(value, path, *args, **kwargs)

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match=r"(No space left on device: .*|Could not save )checkpoint-8"):
        run("cut")
    assert {path.name for path in (tmp_path / "cut").iterdir()} <= {
        "checkpoint-4",
        ".lock",
        ".pid",
        "runs",
    }
    monkeypatch.undo()
    assert_same_run(run("cut"), run("whole"))


def files_in(folder):
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.mark.parametrize("error", [Killed, OSError])
def test_a_final_save_that_fails_leaves_the_earlier_model(run, tmp_path, monkeypatch, error):
    trainer = run("run", max_steps=1, save_strategy="no")
    trainer.save_model()
    before = files_in(tmp_path / "run")

    def fail(tensors, path, **_):
        Path(path).write_bytes(b"half")
        raise error("No space left on device")

    other = make_trainer(tmp_path / "run", trainer.train_dataset, trainer.processing_class)
    other.model.config.norm_first = True
    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", fail)
    with pytest.raises(error):
        other.save_model()
    assert files_in(tmp_path / "run") == before
    monkeypatch.undo()
    other.save_model()
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["norm_first"] is True
    mode = (tmp_path / "run" / "config.json").stat().st_mode
    assert (tmp_path / "run" / "model.safetensors").stat().st_mode == mode


def test_a_kill_while_a_model_is_replaced_never_mixes_two_models(run, tmp_path, monkeypatch):
    """The kill comes after the new configuration has arrived and before the new weights."""
    trainer = run("run", max_steps=1, save_strategy="no")
    trainer.save_model()
    replace = Path.replace

    def kill_before_the_weights(self, target):
        if Path(target).name == "model.safetensors":
            raise Killed
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", kill_before_the_weights)
    with pytest.raises(Killed):
        trainer.save_model()
    with pytest.raises(OSError, match=r"no file named.* model\.safetensors"):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    monkeypatch.undo()
    trainer.save_model()
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")


def test_new_weights_delete_earlier_ones_of_other_names(tmp_path):
    shards = ("model-00001-of-00002.safetensors", "model.safetensors.index.json")
    others = ("config.json", "adapter_model.safetensors", "model.py")
    for name in (*shards, *others):
        (tmp_path / name).write_text("earlier")
    with whole_files.replaced_files(tmp_path, WEIGHTS) as unfinished:
        (unfinished / "model.safetensors").write_text("new")
    assert {*files_in(tmp_path)} == {"model.safetensors", *others}
    with whole_files.replaced_files(tmp_path, WEIGHTS) as unfinished:
        (unfinished / "adapter_model.safetensors").write_text("new")
    assert (tmp_path / "model.safetensors").read_text() == "new"
    assert (tmp_path / "adapter_model.safetensors").read_text() == "new"


def test_files_are_readable_by_others_and_on_disk_before_the_rename(run, tmp_path, monkeypatch):
    synced, renamed = [], []
    fsync, replace = os.fsync, Path.replace

    def record_rename(self, target):
        renamed.append((Path(target).name, len(synced)))
        return replace(self, target)

    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(descriptor) or fsync(descriptor)
    )
    monkeypatch.setattr(Path, "replace", record_rename)
    run("run", max_steps=4)
    folder = tmp_path / "run" / "checkpoint-4"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert renamed == [("checkpoint-4", len(files) + 1)]
    assert len(synced) == len(files) + 2
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o644"}
    assert {*json.loads((folder / "manifest.json").read_text())["files"]} == {
        path.name for path in files
    } - {"manifest.json"}


def test_the_average_is_evaluated_and_saved(run, tmp_path, encoded):
    options = {"max_steps": 6}
    trainer = run("ema", ema_decay=0.9, eval_strategy="steps", eval_steps=6, **options)
    averaged = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ema" / "checkpoint-6" / "ema")
    raw = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ema" / "checkpoint-6")
    for model, is_same in ((averaged, True), (raw, False)):
        pairs = zip(model.parameters(), trainer.model.parameters(), strict=True)
        assert all(torch.equal(first, second) for first, second in pairs) == is_same
    # By hand: the weights after each update, of which the average keeps a share.
    plain = make_trainer(tmp_path / "hand", encoded, trainer.processing_class, **STEPS | options)
    average = [p.detach().clone() for p in plain.model.parameters()]

    class Average(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            keep = min(0.9, (1 + state.global_step) / (10 + state.global_step))
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.copy_(keep * mean + (1 - keep) * parameter.detach())

    plain.add_callback(Average())
    plain.train()
    for mean, parameter in zip(average, trainer.model.parameters(), strict=True):
        torch.testing.assert_close(mean, parameter, rtol=1e-5, atol=1e-6)
    assert logged(trainer, "eval_loss")[-1] == pytest.approx(trainer.evaluate()["eval_loss"])


def test_the_best_average_is_loaded_at_the_end(run, tmp_path):
    trainer = run(
        "run",
        ema_decay=0.5,
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        **WORSE_AND_WORSE,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    losses = logged(trainer, "eval_loss")
    assert min(losses) != losses[-1]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(losses))


def test_an_average_in_half_precision_is_rejected(tmp_path, encoded, tokenizer):
    trainer = make_trainer(tmp_path, encoded, tokenizer, ema_decay=0.9)
    trainer.model.bfloat16()
    with pytest.raises(ValueError, match=r"needs weights in float32, got .* in torch.bfloat16"):
        trainer.train()


def test_a_run_finds_the_checkpoint_to_resume_from(cut, tmp_path):
    folder = tmp_path / "new"
    assert Run(arguments(folder)).checkpoint is None
    assert Run(arguments(folder, resume="auto")).checkpoint is None
    newest, older = cut / "checkpoint-8", cut / "checkpoint-4"
    assert Run(arguments(cut, resume="auto")).checkpoint.folder == newest
    assert Run(arguments(cut, resume=str(newest))).checkpoint.folder == newest
    assert Run(arguments(folder, resume=str(older))).checkpoint.folder == older
    with pytest.raises(
        ValueError, match=r"already holds a run, or .*, checkpoint-4\. Resume the run with"
    ):
        Run(arguments(cut))
    with pytest.raises(FileNotFoundError, match=r"No such checkpoint: .*checkpoint-5"):
        Run(arguments(cut, resume=str(cut / "checkpoint-5")))
    flip_a_byte(older / "scheduler.pt")
    with pytest.raises(ValueError, match=r"scheduler\.pt has another checksum"):
        Run(arguments(cut, resume=str(older)))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    for _ in range(2):
        with pytest.raises(ValueError, match="model holds a model, but no run to resume"):
            Run(arguments(tmp_path / "model", resume="auto"))
    (tmp_path / "model" / ".pid").write_text("1\n")  # its checkpoints were deleted
    assert Run(arguments(tmp_path / "model", resume="auto")).checkpoint is None
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        Run(arguments(tmp_path / "file"))


def test_evaluations_do_not_change_what_a_model_learns(run):
    often, once = (
        run(str(steps), eval_strategy="steps", eval_steps=steps, max_steps=5).model.parameters()
        for steps in (2, 5)
    )
    for first, second in zip(often, once, strict=True):
        assert torch.equal(first, second)


def test_a_resumed_run_evaluates_logs_and_saves_as_its_arguments_say(
    run, encoded, tokenizer, tmp_path
):
    steps = {"eval_strategy": "steps", "eval_steps": 8, "logging_steps": 8, "save_total_limit": 9}
    run("cut", at=10, **steps)
    changed = {"eval_steps": 3, "logging_steps": 2, "save_steps": 1}
    trainer = make_trainer(
        tmp_path / "cut", encoded, tokenizer, **(STEPS | steps | changed), resume="auto"
    )
    trainer.train()
    history = trainer.state.log_history
    assert [each["step"] for each in history if "eval_loss" in each] == [8, 9, 12, 14]
    assert [each["step"] for each in history if "loss" in each] == [8, 10, 12, 14]
    saved = {path.name for path in (tmp_path / "cut").glob("checkpoint-*")}
    assert {f"checkpoint-{number}" for number in range(9, 15)} <= saved


def test_resuming_by_true_takes_the_newest_whole_one(run, cut, encoded, tokenizer, tmp_path):
    trainer = make_trainer(cut, encoded, tokenizer, **STEPS)
    trainer.train(resume_from_checkpoint=True)
    assert_same_run(trainer, run("whole"))
    with pytest.raises(ValueError, match="No intact checkpoint in output_dir"):
        make_trainer(tmp_path / "none", encoded, tokenizer).train(resume_from_checkpoint=True)


HOLD = """
import os, sys, time
from modeling_aiayn.training.resume.run import claim_folder
claim_folder(sys.argv[1])
if os.fork():
    print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.long
def test_a_folder_has_one_run_and_no_worker_of_a_killed_one_holds_its_lock(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    pipe = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipe) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OSError, match=rf"output_dir is in use by pid {other.pid}: "):
            claim_folder(tmp_path)
        other.kill()
        other.wait()
        (tmp_path / ".unfinished" / "checkpoint-3").mkdir(parents=True)
        claim_folder(tmp_path)
        claim_folder(tmp_path)
        os.killpg(other.pid, signal.SIGKILL)  # the forked worker
    assert (tmp_path / ".pid").read_text() == f"{os.getpid()}\n"
    assert not any((tmp_path / ".unfinished").iterdir())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_run_where_there_are_no_locks_warns_and_trains(run, tmp_path, monkeypatch, caplog, code):
    def lockf(file, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.lockf", lockf)
    assert run("run", max_steps=1).state.global_step == 1
    assert f".lock cannot be locked ({os.strerror(code)})" in caplog.text


def test_curves_that_cannot_be_drawn_do_not_end_training(run, tmp_path, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(curves, "draw_curves", full)
    assert run("run", callback=curves.CurvesCallback(), max_steps=2).state.global_step == 2
    assert "curves.png could not be drawn ([Errno 28] No space left on device)." in caplog.text


def test_dropping_the_last_batch_is_for_training_alone(run):
    options = {"dataloader_drop_last": True, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"predict_with_generate": True, "per_device_train_batch_size": 16, "max_steps": 2}
    options |= {"generation_max_length": 5}
    trainer = run("run", **options)
    assert len(logged(trainer, "eval_bleu")) == 1
    assert len(trainer.get_train_dataloader()) == 12  # 200 pairs


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Train in a process that is killed so many times; return its results and the killer's."""

    def killed_(kills, limit):
        folder = tmp_path_factory.mktemp("killed") / "run"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        worker = [sys.executable, str(ROOT / "tests" / "kill_worker.py")]
        output = subprocess.run(
            [*worker, str(folder), str(kills), str(limit)],
            env=environment, capture_output=True, text=True, timeout=600, check=True,
        ).stdout  # fmt: skip
        seen = json.loads(output.splitlines()[-1])
        log = Path(f"{folder}.log").read_text()
        assert seen["status"] == 0, log
        return json.loads(Path(f"{folder}.json").read_text()), seen, folder

    return killed_


@pytest.fixture(scope="module")
def left_alone(killed):
    return killed(0, 0)[0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("kills", "limit"),
    [
        (5, 1),
        pytest.param(35, 0, marks=pytest.mark.slow),
        pytest.param(35, 1, marks=pytest.mark.slow),
    ],
)
def test_kill_9_at_random_instants_changes_nothing(killed, left_alone, kills, limit):
    outcome, seen, folder = killed(kills, limit)
    assert seen["kills"] >= min(kills, 20)
    assert seen["without_whole"] == 0
    assert outcome == left_alone
    assert not (folder / ".unfinished").exists()


def test_a_copy_of_a_signal_is_ignored_and_a_second_signal_ends_the_process(tmp_path, monkeypatch):
    ended = []
    before = signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    try:
        callback = InterruptionCallback()
        callback.on_train_begin(arguments(tmp_path), TrainerState(), TrainerControl())
        terminate()
        terminate()
        assert callback.received == signal.SIGTERM and not ended
        monkeypatch.setattr(interruption, "ECHO_SECONDS", -1.0)
        terminate()
        assert ended
        callback.on_train_begin(arguments(tmp_path), TrainerState(), TrainerControl())
        # Another process's signal, for which all stop; then this one's own.
        monkeypatch.setattr(interruption, "agreed_signal", lambda *_: signal.SIGTERM)
        callback.on_step_end(arguments(tmp_path), TrainerState(epoch=0.5), TrainerControl())
        assert callback.is_stopping
        terminate()
        assert len(ended) == 1
        # The system repeats this one for each second of processor time.
        signal.raise_signal(signal.SIGXCPU)
        with pytest.raises(SystemExit):
            callback.on_train_end(arguments(tmp_path), TrainerState(), TrainerControl())
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_during_a_write_does_not_end_the_run(tmp_path, monkeypatch):
    """Python raises this error if the stream that a signal interrupted is written to again."""

    def busy(*_):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        callback = InterruptionCallback()
        callback.on_train_begin(arguments(tmp_path), TrainerState(), TrainerControl())
        monkeypatch.setattr(interruption.logger, "warning", busy)
        terminate()
        assert callback.received == signal.SIGTERM
    finally:
        callback.restore()
        signal.signal(signal.SIGTERM, before)


def test_a_caller_s_own_learning_rates_are_restored(tmp_path, encoded, tokenizer):
    def rates(resume):
        trainer = make_trainer(tmp_path, encoded, tokenizer, **(STEPS | {"max_steps": 5}))
        halves = list(trainer.model.parameters())
        groups = [{"params": halves[:3], "lr": 5e-4}, {"params": halves[3:], "lr": 1e-3}]
        trainer.optimizer = torch.optim.Adam(groups)
        trainer.train(resume_from_checkpoint=resume)
        return [group["lr"] for group in trainer.optimizer.param_groups]

    whole = rates(None)
    delete_checkpoints(tmp_path, 5)
    assert rates(str(tmp_path / "checkpoint-4")) == pytest.approx(whole)


def test_a_learning_rate_that_cannot_change_is_rejected(run):
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}
    options = plateau | {"eval_steps": 4, "learning_rate": 1e-3}
    run("run", at=5, **options)
    with pytest.raises(
        ValueError, match="learning_rate cannot change with the schedule ReduceLROnPlateau"
    ):
        run("run", **(options | {"learning_rate": 1e-4}))


@pytest.mark.long
@pytest.mark.parametrize(
    "batches", [("--max_tokens_per_batch", 200), ("--per_device_train_batch_size", 8)], ids=str
)
def test_workers_survive_the_signal_that_stops_their_trainer(tmp_path, batches):
    """As torchrun sends it: to the whole group. Workers start at each epoch, of which one is long."""
    pairs = [(pair.source, pair.target) for pair in generate_pairs("train", 3000, seed=1)]
    for name in ("train", "validation"):
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
        (tmp_path / f"{name}.tsv").write_text(lines)
    folder = tmp_path / "run"
    command = [
        *(sys.executable, ROOT / "scripts" / "train_translation.py", "--output_dir", folder),
        *("--train_file", tmp_path / "train.tsv", "--validation_file", tmp_path / "validation.tsv"),
        *("--preset", "tiny", "--vocab_size", 400, "--max_steps", 100_000, "--save_steps", 5),
        *("--save_strategy", "steps", "--save_total_limit", 1, *batches),
        *("--dataloader_num_workers", 2, "--use_cpu", "true", "--disable_tqdm", "true"),
    ]
    process = subprocess.Popen(
        [*map(str, command)], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("checkpoint-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143, error
    assert "Saved at update" in error and "Traceback" not in error


def test_a_stream_is_resumed_only_if_the_user_says_so(run, encoded):
    stream = encoded.to_iterable_dataset()
    run("cut", data=stream, at=10)
    with pytest.raises(ValueError, match="--allow_inexact_resume true"):
        run("cut", data=stream)
    assert run("cut", data=stream, allow_inexact_resume=True).state.global_step == 14
