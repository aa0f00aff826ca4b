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
from transformers import PreTrainedTokenizerBase, TrainingArguments

from ..saved.tokenizers import load_tokenizer
from ..saved.whole_files import named_write_errors
from .data import DataArguments, encode_pairs, load_splits

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
        """Save the data into a new folder that only its owner may read.

        Raises:
            OSError: The folder cannot be written; nothing of it is left then.
        """
        try:
            with named_write_errors(folder):
                self._write(folder)
        except OSError as error:
            # The other processes would load what there is.
            shutil.rmtree(folder, ignore_errors=True)
            raise OSError(
                f"The prepared training data cannot be written to {folder} "
                f"({error.strerror or error}). Free space there, or set TMPDIR to another folder."
            ) from error

    def _write(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.splits.save_to_disk(folder / "splits")
        self.source_tokenizer.save_pretrained(folder / "source")
        if self.target_tokenizer is not self.source_tokenizer:
            self.target_tokenizer.save_pretrained(folder / "target")

    @classmethod
    def load(cls, folder: Path) -> "PreparedData":
        """Load saved data; the pairs stay on disk and are memory-mapped."""
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder} does not exist: the first process of this machine failed to prepare the "
                "data. Its error message says why."
            )
        source, target = (
            load_tokenizer(folder / name) if (folder / name).is_dir() else None
            for name in ("source", "target")
        )
        return cls(DatasetDict.load_from_disk(folder / "splits"), source, target or source)


def prepare_data(data: DataArguments, tokenizers: GetTokenizers) -> PreparedData:
    """Read pairs, get the tokenizers for the training pairs, and encode the pairs."""
    splits = load_splits(data)
    source, target = tokenizers(splits["train"])
    for name in ("train", "validation"):
        splits[name] = encode_pairs(splits[name], source, target, data.max_length, name)
    return PreparedData(splits, source, target)


def _remove(folder: Path, start_method: str) -> None:
    """Remove a folder that all processes have loaded."""
    if start_method == "fork":
        # A deleted file stays readable while it is open; forked workers inherit the open files.
        # Workers that are spawned open the files again, so there the folder stays until the end.
        shutil.rmtree(folder, ignore_errors=True)
    else:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def prepare_data_once(
    args: TrainingArguments, data: DataArguments, tokenizers: GetTokenizers
) -> PreparedData:
    """Prepare data in the first process of each machine, and load it in the others.

    So a corpus is encoded and held in memory once for each machine, not once for each GPU.

    Raises:
        OSError: A file or dataset cannot be read; in the other processes, any error of the first.
        ValueError: A file or dataset has the wrong format, or arguments are invalid.
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
            start_method = getattr(args, "dataloader_multiprocessing_context", None)
            _remove(folder, start_method or multiprocessing.get_start_method())
    # The first process keeps its own tokenizers: a loaded one notes the folder that it came from,
    # which would be saved with the model.
    return replace(prepared, splits=loaded.splits) if is_first else loaded
