"""Prepare training data once on each machine, for all processes of that machine."""

import atexit
import multiprocessing
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from ..saved.tokenizers import load_tokenizer
from .arguments import RunArguments
from .data import DataArguments, encode_pairs, load_splits
from .loaders import worker_start_method

# Returns the tokenizers of source and target, given the training pairs.
GetTokenizers = Callable[[Dataset], tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]]


@dataclass(frozen=True)
class PreparedData:
    """Pairs and their tokenizers, which are one object if the vocabulary is shared.

    Splits are "train" and "validation", both with "input_ids" and "labels", and perhaps "test".
    """

    splits: DatasetDict
    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase

    def save(self, folder: Path) -> None:
        """Save the data into a new folder that only its owner may read."""
        try:
            folder.mkdir(mode=0o700)
            self.splits.save_to_disk(folder / "splits")
            self.source_tokenizer.save_pretrained(folder / "source")
            if self.target_tokenizer is not self.source_tokenizer:
                self.target_tokenizer.save_pretrained(folder / "target")
        except OSError:
            # The other processes would load a part of the data.
            shutil.rmtree(folder, ignore_errors=True)
            raise

    @classmethod
    def load(cls, folder: Path) -> "PreparedData":
        """Load saved data; the pairs stay on disk and are memory-mapped."""
        splits = DatasetDict.load_from_disk(folder / "splits")
        source = load_tokenizer(folder / "source")
        has_target = (folder / "target").is_dir()
        return cls(splits, source, load_tokenizer(folder / "target") if has_target else source)


def prepare_data(data: DataArguments, tokenizers: GetTokenizers) -> PreparedData:
    """Read pairs, get the tokenizers for the training pairs, and encode the pairs."""
    splits = load_splits(data)
    source, target = tokenizers(splits["train"])
    for name in ("train", "validation"):
        splits[name] = encode_pairs(splits[name], source, target, data.max_length, name)
    return PreparedData(splits, source, target)


def _remove(folder: Path, start_method: str) -> None:
    if start_method == "fork":
        # A deleted file stays readable while it is open; forked workers inherit the open files.
        # Workers that are spawned open the files again, so there the folder stays until the end.
        shutil.rmtree(folder, ignore_errors=True)
    else:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def prepare_data_once(
    args: RunArguments, data: DataArguments, tokenizers: GetTokenizers
) -> PreparedData:
    """Prepare data in the first process of each machine, and load it in the others.

    So a corpus is encoded and held in memory once for each machine, not once for each GPU.
    """
    if args.world_size == 1:
        return prepare_data(data, tokenizers)
    # One random name for the run; the machine's name follows, because machines may share a disk.
    [name] = broadcast_object_list([f"modeling_aiayn-{uuid4().hex}"])
    folder = Path(tempfile.gettempdir(), f"{name}-{platform.node()}")
    is_first = args.local_process_index == 0
    try:
        with args.main_process_first(desc="preparing data"):
            if is_first:
                prepared = prepare_data(data, tokenizers)
                prepared.save(folder)
            loaded = PreparedData.load(folder)
        args.distributed_state.wait_for_everyone()
    finally:
        if is_first:
            _remove(folder, worker_start_method(args) or multiprocessing.get_start_method())
    # The first process keeps its own tokenizers: a loaded one notes the folder that it came from,
    # which would be saved with the model.
    return replace(prepared, splits=loaded.splits) if is_first else loaded
