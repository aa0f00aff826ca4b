"""Section 6.1: translating text."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import torch
from tqdm import tqdm
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..tokenization import TARGET_TOKENIZER_FOLDER, decode_lines, vocabulary_sha256

logger = logging.getLogger(__name__)

MAX_SOURCE_TOKENS = 512


class Translator:
    """Translates texts with a model and its tokenizers.

    Args:
        model: A sequence-to-sequence model.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target. None: the source's.

    Raises:
        ValueError: A tokenizer has more entries than the model.

    Departs from the paper: the library's beam search divides scores by a power of the length, where
    the paper's length penalty is that of Wu et al. 2016.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> None:
        self.model = model.eval()
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self._check_tokenizers()

    def _check_tokenizers(self) -> None:
        tokenizers = (self.source_tokenizer, self.target_tokenizer)
        config = self.model.config
        for tokenizer, size in zip(
            tokenizers,
            (config.vocab_size, config.decoder_vocab_size or config.vocab_size),
            strict=True,
        ):
            if len(tokenizer) > size:
                raise ValueError(
                    f"The tokenizer has {len(tokenizer)} entries and the model {size}: they do not "
                    "belong together."
                )
        # Only models of our own training say what their vocabularies were.
        trained_with = getattr(config, "vocabulary_sha256", None)
        if trained_with not in (None, [vocabulary_sha256(tokenizer) for tokenizer in tokenizers]):
            logger.warning(
                "The tokenizer is not the one that the model was trained with: the same words may "
                "have other ids, and then translations are noise."
            )

    @classmethod
    def from_pretrained(cls, path: str | Path, *, hub: bool = False, **model_options: Any) -> Self:
        """Load a model's folder, or with hub a repository.

        Args:
            path: A folder; with hub, a repository's name.
            hub: Whether path names a repository on the Hub. Without it nothing leaves the machine.
            **model_options: As for AutoModelForSeq2SeqLM.from_pretrained: dtype, device_map, ...

        Returns:
            The translator.

        Raises:
            OSError: There is no such folder, or it holds no model.
            ValueError: The model's weights are not all there, or not all numbers.
        """
        if not hub and not Path(path).is_dir():
            raise FileNotFoundError(
                f"No such directory: {path}. To load a repository from the Hub, say so (hub=True, "
                "or --hub)."
            )
        options = {"trust_remote_code": False, "local_files_only": not hub}
        model, loading_info = AutoModelForSeq2SeqLM.from_pretrained(
            path, use_safetensors=True, output_loading_info=True, **options, **model_options
        )
        refuse_unfit_weights(path, model, loading_info)
        source_tokenizer = AutoTokenizer.from_pretrained(path, **options)
        target_tokenizer = None
        if model.config.decoder_vocab_size is not None:
            target_tokenizer = AutoTokenizer.from_pretrained(
                path, subfolder=TARGET_TOKENIZER_FOLDER, **options
            )
        return cls(model, source_tokenizer, target_tokenizer)

    def __call__(
        self,
        texts: Iterable[str],
        batch_size: int = 32,
        show_progress: bool = False,
        **generation_options: Any,
    ) -> list[str]:
        """Translate texts, longest first, and give them back in their order.

        Args:
            texts: Sentences. One without text has an empty translation; one of more than 512
                tokens is cut there, with a warning.
            batch_size: Sentences at a time.
            show_progress: Whether to show a bar on stderr.
            **generation_options: As for generate: num_beams, length_penalty, ...

        Returns:
            As many translations, each one line.
        """
        texts = list(texts)
        encoded = [
            self.encode(text, f"Line {number}") for number, text in enumerate(texts, start=1)
        ]
        translations = [""] * len(texts)
        order = [index for index, text in enumerate(texts) if text.strip()]
        order.sort(key=lambda index: len(encoded[index]), reverse=True)
        with tqdm(total=len(order), unit="sentence", disable=not show_progress) as bar:
            for start in range(0, len(order), batch_size):
                indices = order[start : start + batch_size]
                outputs = self._translate([encoded[index] for index in indices], generation_options)
                for index, output in zip(indices, outputs, strict=True):
                    translations[index] = output
                bar.update(len(indices))
        return translations

    def encode(self, text: str, name: str = "A text") -> list[int]:
        """Ids of a text, 512 of them at most.

        Args:
            text: A sentence.
            name: What to call it in the warning that it was cut.

        Returns:
            Ids, the last of which is eos.
        """
        # A lone surrogate is not text; the tokenizer would refuse the whole batch for it.
        clean = text.strip().encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self.source_tokenizer(clean).input_ids
        if len(ids) > MAX_SOURCE_TOKENS:
            logger.warning("%s: cut from %d to %d tokens.", name, len(ids), MAX_SOURCE_TOKENS)
            ids = [*ids[: MAX_SOURCE_TOKENS - 1], ids[-1]]
        return ids

    @torch.inference_mode()
    def _translate(self, sources: list[list[int]], generation_options: dict[str, Any]) -> list[str]:
        batch = self.source_tokenizer.pad({"input_ids": sources}, return_tensors="pt")
        output = self.model.generate(**batch.to(self.model.device), **generation_options)
        return decode_lines(self.target_tokenizer, output.tolist())


def refuse_unfit_weights(
    path: str | Path, model: PreTrainedModel, loading_info: dict[str, Any]
) -> None:
    """Refuse a model of which a part was not read or is no number: it would translate into noise.

    Args:
        path: Where the model came from.
        model: The model.
        loading_info: What from_pretrained says of its loading.

    Raises:
        ValueError: A weight is missing, is not the model's, or is not finite.
    """
    for kind, trouble in (("missing_keys", "is missing"), ("unexpected_keys", "has no place")):
        if loading_info[kind]:
            first, *others = sorted(loading_info[kind])
            more = f" and {len(others)} others" if others else ""
            raise ValueError(
                f"{path}: the weight {first}{more} {trouble}. A model that translates must have "
                "all of its weights and no others: save it again from where it was trained."
            )
    for name, weight in model.state_dict().items():
        if not weight.is_meta and not weight.isfinite().all():
            raise ValueError(
                f"{path}: the weight {name} is not finite (NaN or infinity). Take an earlier "
                "checkpoint of this training."
            )
