"""Preparing a corpus: killed at any step, on a full disk, by several processes, or as a stream."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain, count, islice
from pathlib import Path
from types import SimpleNamespace

import datasets
import pytest
import torch
from datasets import Dataset
from test_parallel import launch
from torch.utils.data import DataLoader
from training_setup import make_trainer

from modeling_aiayn.data import cache
from modeling_aiayn.data.cache import RowLog, explained_full_disk, map_rows
from modeling_aiayn.data.corpus import FEATURES, cached_rows, streamed_rows
from modeling_aiayn.data.embedded_corpus import generate_pairs
from modeling_aiayn.saved.locks import lock_file
from modeling_aiayn.training import AiaynTrainer, streams
from modeling_aiayn.training.data import DataArguments, load_splits
from modeling_aiayn.training.setup import sampled_texts
from modeling_aiayn.training.streams import TokenStream

WORKER = Path(__file__).parent / "preparing_worker.py"


def write_pairs(path, size, seed=0):
    pairs = generate_pairs("train", size, seed)
    path.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs), "utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path):
    return write_pairs(tmp_path / "train.tsv", 4000), write_pairs(tmp_path / "valid.tsv", 9, 1)


def prepare(files, folder, **options):
    """Start to prepare files with an own cache in folder."""
    command = [sys.executable, WORKER, *files, folder / "run", "0"]
    environment = os.environ | {"HF_DATASETS_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [*map(str, command)], env=environment, stdout=subprocess.PIPE, text=True, **options
    )


def files_in(folder, pattern):
    """The files of a folder that may lose some meanwhile, for which rglob fails."""
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {path for path in paths if path.match(pattern)}


@pytest.mark.long
def test_a_kill_at_any_step_changes_nothing(files, tmp_path):
    """Killed when the first file of each step appears, in one cache after the other."""
    expected, _ = prepare(files, tmp_path / "whole").communicate(timeout=120)
    folder = tmp_path / "killed"
    seen = set()
    # The rows are read, checked by two processes, learnt from, and encoded by two processes.
    for pattern in ("*.incomplete/*.arrow", "cache-*", "vocabulary-*", "tmp*"):
        process = prepare(files, folder)
        while process.poll() is None:
            if found := files_in(folder, pattern) - seen:
                process.kill()
                seen |= found
        process.communicate()
        assert process.returncode == -signal.SIGKILL, pattern
    left, _ = prepare(files, folder).communicate(timeout=120)
    assert left == expected and left.startswith("prepared ")
    assert not files_in(folder, "tmp*")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot end them")
def test_processes_of_a_killed_one_end(tmp_path):
    """The library's own would wait for work for ever."""
    code = (
        "import time, datasets, os\n"
        "from modeling_aiayn.data.cache import map_rows\n"
        "from modeling_aiayn.data.corpus import FEATURES\n"
        "def wait(batch):\n"
        "    open(f'{os.environ[\"FOLDER\"]}/{os.getpid()}', 'w').close()\n"
        "    time.sleep(60)\n"
        "rows = datasets.Dataset.from_dict({'source': ['a'] * 4, 'target': ['b'] * 4})\n"
        "map_rows(rows, wait, FEATURES, 'waiting', 2)\n"
    )
    environment = os.environ | {"FOLDER": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    numbers = [path.name for path in tmp_path.iterdir()]
    assert len(numbers) == 2
    while any(Path("/proc", number).exists() for number in numbers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_other_processes_wait_longer_than_a_barrier(files, tmp_path):
    """At a barrier they gave up after ddp_timeout, here 5 seconds."""
    done = launch(WORKER, *files, tmp_path, 8, HF_DATASETS_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second and first.startswith("prepared ")


def test_a_lock_is_free_when_its_holder_ends(tmp_path):
    code = (  # without torch, in less time
        "import runpy, sys, pathlib; lock_file = runpy.run_path(sys.argv[2])['lock_file']\n"
        "lock = lock_file(pathlib.Path(sys.argv[1])); print('locked', flush=True); input()"
    )
    path = tmp_path / "lock"
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", code, path, lock_file.__code__.co_filename]
    holder = subprocess.Popen(command, **options)
    assert holder.stdout.readline() == "locked\n"
    with pytest.raises(BlockingIOError):
        lock_file(path)
    holder.kill()
    with lock_file(path, is_waiting=True):
        pass
    holder.communicate()


def test_a_file_that_changes_while_it_is_read_is_an_error(files, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    class Appending(RowLog):
        def add(self, rows):
            super().add(rows)
            with open(files[0], "a", encoding="utf-8") as file:
                file.write("one more\tnoch eins\n")

    monkeypatch.setattr("modeling_aiayn.data.corpus.RowLog", Appending)
    with pytest.raises(ValueError, match=r"train\.tsv changed while being read"):
        cached_rows([files[0]], "en", "de")
    monkeypatch.undo()
    assert len(cached_rows([files[0]], "en", "de")) == 4001


def test_a_full_disk_is_explained_and_loses_nothing(files, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("datasets.arrow_writer.ArrowWriter.write_table", fail)
        message = r"No space left .* in .*cache\. .* HF_HOME"
        with pytest.raises(OSError, match=message), explained_full_disk():
            cached_rows([files[0]], "en", "de")
    assert len(cached_rows([files[0]], "en", "de")) == 4000
    with pytest.raises(IsADirectoryError), explained_full_disk():  # other errors stay
        tmp_path.read_text()


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / "train.tsv").write_text("")
    with pytest.raises(ValueError, match=r"train\.tsv: no pair"):
        cached_rows([str(tmp_path / "train.tsv")], "en", "de")


@pytest.mark.parametrize("num_proc", [None, 2])
def test_the_log_says_how_far_a_step_is(caplog, monkeypatch, num_proc):
    """Where no bar shows it. Of two processes the first speaks for both."""
    monkeypatch.setattr(cache, "are_progress_bars_disabled", lambda: True)
    monkeypatch.setattr(cache, "time", SimpleNamespace(monotonic=count(0, 31).__next__))
    rows = Dataset.from_dict({"source": ["a"] * 4000, "target": ["b"] * 4000}, FEATURES)
    with caplog.at_level("INFO"):
        mapped = map_rows(rows, lambda batch: {**batch}, FEATURES, "reading", num_proc)
    assert mapped[:] == rows[:]
    if num_proc is None:  # this process does not see the logs of others
        counts = [message.partition(" rows, ")[0] for message in caplog.messages[1:]]
        assert counts == [f"reading: {done},000 of 4,000" for done in (2, 3, 4)]


def test_a_vocabulary_is_trained_on_a_sample():
    texts = [f"s{number}" for number in range(50)]
    pairs = Dataset.from_dict({"source": texts, "target": [f"t{text}" for text in texts]})
    every = [*sampled_texts(pairs, ("source", "target"), 100)]
    assert every == [*texts, *(f"t{text}" for text in texts)]
    few = [*sampled_texts(pairs, ("source", "target"), 20)]
    assert len(few) == 20 and [f"t{text}" for text in few[:10]] == few[10:]
    assert few == [*sampled_texts(pairs, ("source", "target"), 20)] != every[:20]
    assert sorted(few[:10], key=texts.index) == few[:10]
    streamed = [*sampled_texts(pairs.to_iterable_dataset(), ("target",), 7)]
    assert streamed == [f"t{text}" for text in texts[:7]]


def test_a_stream_has_no_flags_that_need_all_pairs(files):
    names = {"train_file": [files[0]], "validation_file": [files[1]], "streaming": True}
    for name, value in (("clean", True), ("both_directions", True), ("noisy_sources", 0.5)):
        with pytest.raises(ValueError, match=f"{name} needs all pairs"):
            load_splits(DataArguments(**names, **{name: value}))


def test_streams_hold_the_pairs_of_all_files(tmp_path):
    paths = [write_pairs(tmp_path / f"{number}.tsv", 30 + number, number) for number in range(3)]
    lines = chain.from_iterable(Path(path).read_text("utf-8").splitlines() for path in paths)
    expected = [line.split("\t")[0] for line in lines]
    with open(paths[1], "a", encoding="utf-8") as file:
        file.write("empty\t\n")
    rows = [row["source"] for row in streamed_rows(paths, "en", "de")]
    assert rows != expected and sorted(rows) == sorted(expected)


@pytest.fixture
def numbered(monkeypatch):
    """A stream of 25 pairs in 4 shards, each with its number, and windows of 10 pairs."""
    monkeypatch.setattr(streams, "WINDOW", 10)
    rows = {
        "input_ids": [[number] * (1 + number % 3) for number in range(25)],
        "labels": [[number] * (1 + number % 5) for number in range(25)],
    }
    return Dataset.from_dict(rows).to_iterable_dataset(num_shards=4)


def token_stream(pairs, positions=None):
    return TokenStream(pairs, 24, 3, 2, positions or {})


def test_windows_of_a_stream_hold_each_pair_once_an_epoch(numbered):
    batches = [batch for batch, _ in islice(token_stream(numbered), 100)]
    assert all(
        sum(max(-(-len(row[name]) // 2) * 2 for row in batch) for name in row) * len(batch) <= 24
        for batch in batches
        for row in batch[:1]
    )
    numbers = [row["input_ids"][0] for batch in batches for row in batch]
    assert sorted(numbers[:10]) == [*range(10)] != numbers[:10]
    assert sorted(numbers[10:20]) == [*range(10, 20)]
    for epoch in (
        0,
        1,
        2,
    ):  # two epochs fill five windows; later ones read the shards in another order
        start = 50 * epoch
        assert sorted(numbers[start : start + 50]) == sorted([*range(25)] * 2)


@pytest.mark.parametrize("taken", [1, 4, 9])
def test_a_stream_continues_after_a_position(numbered, taken):
    """Exactly, as this one has no buffer: in the middle of a window, and in a later epoch."""
    whole = [*islice(token_stream(numbered), 30)]
    _, position = json.loads(json.dumps(whole[taken]))
    rest = [*islice(token_stream(numbered, {"0": position}), 29 - taken)]
    assert rest == whole[taken + 1 :]


def test_each_worker_continues_where_it_was(numbered):
    def batches(size, positions=None, workers=2):
        stream = token_stream(numbered, positions)
        loader = DataLoader(stream, batch_size=None, num_workers=workers, collate_fn=list)
        return [*islice(loader, size)]

    whole = batches(20)
    positions = {str(position["worker"]): position for _, position in whole[:8]}
    assert positions.keys() == {"0", "1"}
    assert batches(12, positions) == whole[8:]
    with pytest.raises(ValueError, match="dataloader_num_workers=2, got 0"):
        batches(1, positions, workers=0)


def test_a_stream_without_pairs_is_an_error(numbered):
    with pytest.raises(ValueError, match="The training stream holds no pair"):
        next(iter(token_stream(numbered.filter(lambda row: False))))


def test_a_run_on_a_stream_resumes(tmp_path, encoded, tokenizer, monkeypatch):
    """Exactly here: there is no buffer. The workers have read further than the run has trained."""
    monkeypatch.setattr(streams, "WINDOW", 50)
    stream = encoded.to_iterable_dataset(num_shards=3)
    options = {"max_tokens_per_batch": 150, "dataloader_num_workers": 2, "save_strategy": "steps"}
    options |= {"save_steps": 4, "gradient_accumulation_steps": 2}

    def train(folder, steps, **others):
        trainer = make_trainer(
            tmp_path / folder,
            encoded,
            tokenizer,
            dropout=0.0,  # the library restores the random state before the workers draw theirs
            kind=lambda **kwargs: AiaynTrainer(**(kwargs | {"train_dataset": stream})),
            max_steps=steps,
            **options,
            **others,
        )
        trainer.train()
        return [weight.detach().clone() for weight in trainer.model.parameters()]

    whole = train("whole", 9)
    train("cut", 4)
    with pytest.raises(ValueError, match="--allow_inexact_resume true"):
        train("cut", 9, resume="auto")
    resumed = train("cut", 9, resume="auto", allow_inexact_resume=True)
    assert all(map(torch.equal, whole, resumed))
    (state,) = json.loads((tmp_path / "cut" / "checkpoint-8" / "run_state.json").read_text())[
        "states"
    ]
    assert state["stream"].keys() == {"0", "1"}
