"""What a run trains on, prepared once on each machine and read by all of its processes."""

import atexit
import multiprocessing
import platform
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from accelerate.utils import broadcast_object_list
from datasets import DatasetDict
from transformers import AutoTokenizer, PreTrainedTokenizerBase, TrainingArguments

from .arguments import DataArguments, ModelArguments
from .data import encode_pairs, load_splits
from .setup import build_tokenizers


@dataclass(frozen=True)
class PreparedData:
    """Pairs and their vocabularies.

    Args:
        splits: Pairs as "train", "validation" and, where there is one, "test"; the first two with
            "input_ids" and "labels".
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target; the same one where the vocabulary is shared.
    """

    splits: DatasetDict
    source_tokenizer: PreTrainedTokenizerBase
    target_tokenizer: PreTrainedTokenizerBase

    def save(self, folder: Path) -> None:
        """Write all of it, for other processes of this machine.

        Args:
            folder: A folder that is not there yet; nobody but its owner may look into it.
        """
        folder.mkdir(mode=0o700)
        self.splits.save_to_disk(folder / "splits")
        self.source_tokenizer.save_pretrained(folder / "source")
        if self.target_tokenizer is not self.source_tokenizer:
            self.target_tokenizer.save_pretrained(folder / "target")

    @classmethod
    def load(cls, folder: Path) -> "PreparedData":
        """Read what `save` wrote; pairs stay on the disk, in memory that processes share.

        Args:
            folder: The folder.

        Returns:
            The data.

        Raises:
            FileNotFoundError: There is none.
        """
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{folder} is not there: the first process of this machine could not prepare the "
                "data, and says why."
            )
        source, target = (
            AutoTokenizer.from_pretrained(folder / name) if (folder / name).is_dir() else None
            for name in ("source", "target")
        )
        return cls(DatasetDict.load_from_disk(folder / "splits"), source, target or source)


def prepare_data(data: DataArguments, model: ModelArguments) -> PreparedData:
    """Read pairs, train the vocabulary on them, encode them.

    Args:
        data: Where pairs come from.
        model: Which vocabulary to train.

    Returns:
        Pairs and vocabularies.

    Raises:
        OSError: A file or dataset cannot be had.
        ValueError: It is not what it should be, or the arguments do not fit it or each other.
    """
    splits = load_splits(data)
    source, target = build_tokenizers(model, splits["train"])
    for name in ("train", "validation"):
        splits[name] = encode_pairs(splits[name], source, target, data.max_length, name)
    return PreparedData(splits, source, target)


def _remove(folder: Path) -> None:
    """Remove a folder that all have opened, at once or, where others may open it, at the end."""
    if multiprocessing.get_start_method() == "fork":
        # Open files outlive their names, and workers inherit them.
        shutil.rmtree(folder, ignore_errors=True)
    else:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def prepare_data_once(
    args: TrainingArguments, data: DataArguments, model: ModelArguments
) -> PreparedData:
    """`prepare_data`, by the first process of each machine for all of its processes.

    So a corpus is split into sub-words and held in memory once, not once for each GPU.

    Args:
        args: The run's arguments, which know its processes.
        data: Where pairs come from.
        model: Which vocabulary to train.

    Returns:
        Pairs and vocabularies, the same in all processes.

    Raises:
        OSError: As for `prepare_data`; in the other processes, whatever was the matter.
        ValueError: As for `prepare_data`.
    """
    if args.world_size == 1:
        return prepare_data(data, model)
    # All machines take the name that the first process of all makes up, and may share a disk.
    [name] = broadcast_object_list([f"modeling_aiayn-{uuid4().hex}"])
    folder = Path(tempfile.gettempdir(), f"{name}-{platform.node()}")
    is_first = args.local_process_index == 0
    try:
        with args.main_process_first(desc="preparing data"):
            if is_first:
                prepared = prepare_data(data, model)
                prepared.save(folder)
            found = PreparedData.load(folder)
        args.distributed_state.wait_for_everyone()
    finally:
        if is_first:
            _remove(folder)
    # A tokenizer notes that it was loaded, and from where: the one that is saved was not.
    return replace(prepared, splits=found.splits) if is_first else found
