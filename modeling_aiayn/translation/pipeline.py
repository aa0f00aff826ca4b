"""pipeline("aiayn-translation"): what the library took away in version 5, by our Translator.

Importing `modeling_aiayn.translation` registers it.
"""

from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForSeq2SeqLM, Pipeline, PreTrainedTokenizerBase
from transformers.pipelines import PIPELINE_REGISTRY

from ..loading import convert_for_cpu, load_target_tokenizer
from ..tokenization import decode_lines
from .engine import SourceSentence
from .options import SearchOptions
from .translator import Translator

TASK = "aiayn-translation"


class AiaynTranslationPipeline(Pipeline):
    """Translates a text, a list, a generator or a dataset's column, batched by batch_size.

    Args:
        *args: As for Pipeline.
        target_tokenizer: Tokenizer of the target. None: the model folder's own, or the source's.
        **kwargs: As for Pipeline; what SearchOptions takes may be given here or at a call.
    """

    _load_tokenizer = True

    def __init__(
        self,
        *args: Any,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        # With one vocabulary the source's decodes, and the pipeline does nothing else with it.
        if target_tokenizer is None and self.model.config.decoder_vocab_size is not None:
            target_tokenizer = load_target_tokenizer(
                self.model.name_or_path, self.model.config, trust_remote_code=False
            )
        self.model: Any = convert_for_cpu(self.model)
        self.translator = Translator(self.model, self.tokenizer, target_tokenizer)

    def _sanitize_parameters(
        self, **search_options: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, search_options, {}

    def preprocess(self, input_: str) -> dict[str, Any]:
        """Encode a text as Translator does.

        Args:
            input_: A text.

        Returns:
            Its ids, [1, S], their mask, and whether there is any text at all.
        """
        ids = self.translator.encode(input_)
        batch = self.tokenizer.pad({"input_ids": [ids]}, return_tensors="pt")
        return {**batch, "is_empty": not input_.strip()}

    def _forward(self, input_tensors: dict[str, Any], **search_options: Any) -> dict[str, Any]:
        is_empty = input_tensors.pop("is_empty")
        rows = zip(input_tensors["input_ids"], input_tensors["attention_mask"].bool(), strict=True)
        sentences = [SourceSentence(ids[is_real].tolist()) for ids, is_real in rows]
        found = self.translator.engine.search(sentences, SearchOptions(**search_options))
        output = [torch.tensor(best.token_ids) for best, *_ in found]
        pad_token_id = self.model.config.pad_token_id
        padded = pad_sequence(output, batch_first=True, padding_value=pad_token_id)
        return {"output_ids": padded, "is_empty": is_empty}

    def postprocess(self, model_outputs: dict[str, Any]) -> dict[str, str]:
        """A translation's text.

        Args:
            model_outputs: Its ids, [1, T], and whether its source has any text.

        Returns:
            The text as "translation_text", the name that the library gave it.
        """
        ids = model_outputs["output_ids"].tolist()
        (text,) = decode_lines(self.translator.target_tokenizer, ids)
        return {"translation_text": "" if model_outputs["is_empty"] else text}


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=AiaynTranslationPipeline, pt_model=AutoModelForSeq2SeqLM
)
