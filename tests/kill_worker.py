"""Kill a training process at random instants, start it again each time, and tell how it ended.

python kill_worker.py FOLDER KILLS SAVE_TOTAL_LIMIT

Each start is a fork of this process, which has imported all and computed nothing.
"""

import hashlib
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from training_setup import arguments, make_trainer

from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.tokenization import train_bpe_tokenizer
from modeling_aiayn.training.data import encode_pairs
from modeling_aiayn.training.resume.checkpoints import (
    check_checkpoint,
    choose_checkpoint,
    list_checkpoints,
)

STEPS = 60


def train(folder, limit):
    """Train to the end, from wherever the newest intact checkpoint left off."""
    import torch
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    torch.set_num_threads(1)
    pairs = generate_pairs("train", 200, seed=7)
    texts = {name: [getattr(pair, name) for pair in pairs] for name in ("source", "target")}
    tokenizer = train_bpe_tokenizer(texts["source"] + texts["target"], 600)
    encoded = encode_pairs(Dataset.from_dict(texts), tokenizer, tokenizer, 256, "pairs")
    checkpoint = choose_checkpoint(arguments(folder, resume="auto"))
    trainer = make_trainer(
        folder, encoded, tokenizer, max_steps=STEPS, save_strategy="steps", save_steps=1,
        save_total_limit=limit, max_tokens_per_batch=300, predict_with_generate=False,
        logging_steps=3, ema_decay=0.9,
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=checkpoint)
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    log = [
        {key: entry[key] for key in ("step", "loss", "grad_norm", "learning_rate", "padding_share")}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    Path(f"{folder}.json").write_text(json.dumps({"sha256": digest.hexdigest(), "log": log}))


def start(folder, limit):
    """The process id of a fork that trains."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with open(f"{folder}.log", "a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                train(folder, limit)
                code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return pid


def has_ended(pid):
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def main():
    folder, kills, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) or None
    generator = random.Random(0)
    done, without_whole = 0, 0
    while done < kills:
        newest = max((int(p.name.split("-")[1]) for p in folder.glob("checkpoint-*")), default=0)
        if newest >= STEPS - 2:
            break
        pid = start(folder, limit)
        # From the first save on, at any instant of a save or between two.
        while not has_ended(pid):
            names = [int(p.name.split("-")[1]) for p in folder.glob("checkpoint-*")]
            if max(names, default=0) > newest:
                time.sleep(generator.uniform(0, 0.13))
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                done += 1
                whole = []
                for path in list_checkpoints(folder):
                    try:
                        check_checkpoint(path)
                        whole.append(path)
                    except ValueError:
                        pass
                without_whole += not whole
                break
            time.sleep(0.002)
        else:
            break
    pid = start(folder, limit)
    _, status = os.waitpid(pid, 0)
    seen = {"kills": done, "without_whole": without_whole, "status": status}
    sys.stdout.write(f"{json.dumps(seen)}\n")


if __name__ == "__main__":
    main()
