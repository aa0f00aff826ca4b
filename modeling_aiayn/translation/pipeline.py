"""pipeline("aiayn-translation"), which importing `modeling_aiayn.translation` registers."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, Pipeline, PreTrainedTokenizerBase
from transformers.pipelines import PIPELINE_REGISTRY

from ..saved.tokenizers import load_target_tokenizer
from .pools import SourceText
from .translation_pipeline import TARGET_TOKENIZER_FOLDER, SavedTranslationPipeline
from .translator import Translator, convert_for_cpu

TASK = "aiayn-translation"


class AiaynTranslationPipeline(Pipeline):
    """Translates a text, a list, a generator or a dataset's column, batched by batch_size.

    It returns a list, as in transformers 4. A text may have several sentences and lines. Pass
    fields of `SearchOptions`, source_lang and target_lang here or in a call; nbest must be 1. The
    names src_lang, tgt_lang, max_length and truncation of transformers 4 also work. Sentences that
    are too long are always truncated, with a warning. Without a target_tokenizer, it uses the one
    in the model's folder, or the source's. For glossary, see `Translator.use_glossary`.
    """

    _load_tokenizer = True

    def __init__(
        self,
        *args: Any,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        glossary: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        config, folder = self.model.config, self.model.name_or_path
        has_target = Path(folder, TARGET_TOKENIZER_FOLDER).is_dir()
        if target_tokenizer is None and (has_target or config.decoder_vocab_size is not None):
            # Use the model's own revision: the newest may have another vocabulary.
            revision = getattr(config, "_commit_hash", None) or "main"
            target_tokenizer = load_target_tokenizer(
                folder, config, trust_remote_code=False, revision=revision
            )
        self.model: Any = convert_for_cpu(self.model)
        self.translator = Translator(self.model, self.tokenizer, target_tokenizer)
        if glossary is not None:
            self.translator.use_glossary(glossary)

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Translate; the result for one text is a list with one translation."""
        found = super().__call__(inputs, **options)
        return [found] if isinstance(inputs, str) else found

    def _sanitize_parameters(
        self, truncation: Any = None, max_length: int | None = None, **search_options: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        del truncation
        for short, name in (("src_lang", "source_lang"), ("tgt_lang", "target_lang")):
            if short in search_options:
                search_options[name] = search_options.pop(short)
        if max_length is not None:
            search_options |= {"max_length_factor": 0.0, "max_length_offset": max_length}
        # Each call of the pipeline numbers its texts from 0: samples depend on the number.
        return {}, {"numbers": count(), **search_options}, {}

    def preprocess(self, input_: str) -> dict[str, Any]:
        """Put a text into a mapping, because Pipeline batches mappings."""
        return {"text": input_}

    def _forward(
        self,
        input_tensors: dict[str, Any],
        *,
        numbers: Iterator[int],
        source_lang: str | None = None,
        target_lang: str | None = None,
        **search_options: Any,
    ) -> dict[str, Any]:
        given = input_tensors["text"]
        texts = given if isinstance(given, list) else [given]
        languages = self.translator.direction(source_lang, target_lang)
        splits = [self.translator.split(text, source_lang) for text in texts]
        sentences = [sentence for split in splits for sentence in split.sentences]
        pool = [SourceText(next(numbers), text, languages=languages) for text in sentences]
        options = self.translator.search_options(**search_options)
        options.check_one_translation()
        self.translator.engine.check_options(options)
        results = self.translator.translate_pool(pool, options, batch_size=len(texts))
        found = iter([best.text for best, *_ in results])
        translations = [split.joined([next(found) for _ in split.sentences]) for split in splits]
        return {"text": translations if isinstance(given, list) else translations[0]}

    def postprocess(self, model_outputs: dict[str, Any]) -> dict[str, str]:
        """Return a translation under transformers' key, "translation_text"."""
        return {"translation_text": model_outputs["text"]}

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Save the model, its tokenizers, and a pipeline that translates without this package.

        Load it with pipeline(model=save_directory, trust_remote_code=True). It calls generate().
        """
        saved = SavedTranslationPipeline(
            self.model,
            self.tokenizer,
            target_tokenizer=self.translator.target_tokenizer,
            device=self.device,
        )
        try:
            saved.save_pretrained(save_directory, **kwargs)
        finally:
            # Saving only the model later does not write the pipeline's file, so forget its name.
            vars(self.model.config).pop("custom_pipelines", None)


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=AiaynTranslationPipeline, pt_model=AutoModelForSeq2SeqLM
)
