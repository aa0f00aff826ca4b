"""The translation pipeline of a saved folder, which needs transformers but not this package.

`AiaynTranslationPipeline.save_pretrained` copies this file, so it imports nothing of this package.
"""

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Pipeline, PreTrainedTokenizerBase
from transformers.utils import cached_file

TARGET_TOKENIZER_FOLDER = "target_tokenizer"


class SavedTranslationPipeline(Pipeline):
    """Translates a text or a list of texts with generate(), and accepts its arguments.

    Without a target_tokenizer it uses the one in the model's folder, or the source's.
    """

    _load_tokenizer = True
    _registered_impl: dict[str, Any]

    def __init__(
        self, *args: Any, target_tokenizer: PreTrainedTokenizerBase | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        name = self.model.name_or_path
        revision = getattr(self.model.config, "_commit_hash", None) or "main"
        place = {"subfolder": TARGET_TOKENIZER_FOLDER, "revision": revision}
        if target_tokenizer is None and name:
            file = "tokenizer_config.json"
            if cached_file(name, file, _raise_exceptions_for_missing_entries=False, **place):
                target_tokenizer = AutoTokenizer.from_pretrained(name, **place)
        self.target_tokenizer = target_tokenizer or self.tokenizer

    def _sanitize_parameters(
        self,
        truncation: Any = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generation: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if src_lang is not None:
            self.tokenizer.src_lang = src_lang
        if tgt_lang is not None:
            ids = getattr(self.tokenizer, "lang_code_to_id", {})  # M2M100Tokenizer's
            first = ids.get(tgt_lang, self.tokenizer.convert_tokens_to_ids(tgt_lang))
            generation["forced_bos_token_id"] = first
        return {} if truncation is None else {"truncation": truncation}, generation, {}

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Translate; the result for one text is a list, as in transformers 4."""
        found = super().__call__(inputs, **options)
        return [found] if isinstance(inputs, str) and isinstance(found, dict) else found

    def preprocess(self, input_: str, **tokenization: Any) -> dict[str, Any]:
        """Encode a text."""
        return self.tokenizer(input_, return_tensors="pt", **tokenization)

    def _forward(self, input_tensors: dict[str, Any], **generation: Any) -> dict[str, Tensor]:
        ids = self.model.generate(**input_tensors, **generation)
        return {"token_ids": ids.view(input_tensors["input_ids"].size(0), -1, ids.size(-1))}

    def postprocess(self, model_outputs: dict[str, Tensor]) -> Any:
        """Decode num_return_sequences translations; `<unk>` stays in the text."""
        tokenizer = self.target_tokenizer
        tags = getattr(tokenizer, "lang_code_to_id", {}).values()  # M2M100Tokenizer's
        hidden = {*tokenizer.all_special_ids, *tags} - {tokenizer.unk_token_id}
        rows = model_outputs["token_ids"].flatten(0, -2).tolist()
        texts = [tokenizer.decode([token for token in row if token not in hidden]) for row in rows]
        records = [{"translation_text": " ".join(text.splitlines())} for text in texts]
        return records[0] if len(records) == 1 else records

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save the model with its code, the tokenizers, and this pipeline."""
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(Path(save_directory) / TARGET_TOKENIZER_FOLDER)


# Pipeline.save_pretrained writes this into config.json. register_pipeline would set it too, but it
# would also replace the package's own pipeline of this task.
SavedTranslationPipeline._registered_impl = {
    "aiayn-translation": {"impl": SavedTranslationPipeline, "pt": (AutoModelForSeq2SeqLM,)}
}
