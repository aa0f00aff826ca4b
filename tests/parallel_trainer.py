"""One of two processes that train: `torchrun --nproc_per_node 2 parallel_trainer.py FOLDER`.

Leaves logs and final weights of each run in FOLDER, as one process alone does without torchrun.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from training_setup import arguments, make_trainer
from transformers import TrainerCallback

from modeling_aiayn.commands.command_line import leave_other_processes
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.tokenization import train_bpe_tokenizer
from modeling_aiayn.training.data import encode_pairs
from modeling_aiayn.training.resume.checkpoints import choose_checkpoint

# The same pairs in an update, whether one process has eight or two have four each.
SEQUENTIAL = {
    "train_sampling_strategy": "sequential",
    "dropout": 0.0,
    "optim": "sgd",
    "max_steps": 5,
    "predict_with_generate": False,
    "eval_strategy": "steps",
    "eval_steps": 5,
}
RESUMED = {
    "max_tokens_per_batch": 300,
    "max_steps": 10,
    "save_strategy": "steps",
    "save_steps": 4,
    "ema_decay": 0.9,
    "predict_with_generate": False,
}


# 200 pairs are 13 updates: the run stops in its second epoch.
GROUPED = {
    "per_device_train_batch_size": 8,
    "max_steps": 20,
    "predict_with_generate": False,
}


class TerminateFirst(TrainerCallback):
    """SIGTERM to the first process alone, before the update after step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step and args.process_index == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def data():
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    pairs = generate_pairs("train", 200, seed=7)
    texts = {name: [getattr(pair, name) for pair in pairs] for name in ("source", "target")}
    tokenizer = train_bpe_tokenizer(texts["source"] + texts["target"], 600)
    return encode_pairs(Dataset.from_dict(texts), tokenizer, tokenizer, 256, "pairs"), tokenizer


def train(folder, encoded, tokenizer, callbacks=(), **options):
    """Train, and leave log and weights; the exit code of what ended it, or 0."""
    checkpoint = choose_checkpoint(arguments(folder, resume="auto"))
    trainer = make_trainer(folder, encoded, tokenizer, **options)
    for callback in callbacks:
        trainer.add_callback(callback)
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except SystemExit as stop:
        return stop.code
    if trainer.is_world_process_zero():
        log = [entry for entry in trainer.state.log_history if "train_runtime" not in entry]
        (folder / "log.json").write_text(json.dumps(log))
        weights = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        save_file(weights, folder / "weights.safetensors")
    return 0


def main():
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    encoded, tokenizer = data()
    size = int(os.environ.get("WORLD_SIZE", "1"))
    for smoothing in (0.0, 0.1):
        options = SEQUENTIAL | {"label_smoothing_factor": smoothing}
        options["per_device_train_batch_size"] = 8 // size
        train(folder / f"smoothing-{smoothing}", encoded, tokenizer, **options)
    if size > 1:
        for name, options, step in (("tokens", RESUMED, 5), ("groups", GROUPED, 16)):
            whole, cut = folder / f"whole-{name}", folder / f"cut-{name}"
            train(whole, encoded, tokenizer, **options)
            code = train(cut, encoded, tokenizer, [TerminateFirst(step)], **options)
            if code != 143:
                raise SystemExit(f"SIGTERM to one process gave code {code}.")
            train(cut, encoded, tokenizer, **options)
        torch.distributed.barrier()
        leave_other_processes()


if __name__ == "__main__":
    main()
