"""CTranslate2 behind our interface: the production engine for what was exported to it."""

import json
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..generation import beyond_source
from .engine import SourceSentence, suppressed_tokens
from .hypotheses import Hypothesis
from .options import SearchOptions
from .penalties import normalized_score

SOURCE_TOKENIZER_FOLDER = "source_tokenizer"
# In the exported config.json: how many tokens a half has positions for.
POSITIONS_FIELD = "{half}_positions"


class CTranslate2Engine:
    """An exported model.

    Its beam search ends with as many finished hypotheses as beams, where ours goes on while a
    better one is possible; both rank them alike. Where tokens are forced or ruled out it counts
    shares of what is left, so those hypotheses are scored once more, by what the model gives them.
    And it has one limit of length for a batch, which its longest source sets.

    Args:
        folder: What `export_ctranslate2` wrote.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        device: "cpu", "cuda" or "auto".
        compute_type: How it computes: "default" (as the weights are kept), "int8", "float32", ...

    Raises:
        OSError: The folder is none of CTranslate2's.
    """

    def __init__(
        self,
        folder: str | Path,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        device: str = "cpu",
        compute_type: str = "default",
    ) -> None:
        try:
            self.translator = ctranslate2.Translator(
                str(folder), device=device, compute_type=compute_type
            )
        except RuntimeError as error:
            raise OSError(f"{folder}: CTranslate2 cannot open it ({error}).") from error
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer
        exported = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        self.positions = {
            half: exported.get(POSITIONS_FIELD.format(half=half)) for half in ("encoder", "decoder")
        }
        decoding = GenerationConfig.from_pretrained(folder, local_files_only=True)
        self.beyond_source = beyond_source(decoding)
        self.suppressed = self._tokens(
            target_tokenizer, [[id_] for id_ in suppressed_tokens(decoding)]
        )

    def search(
        self, sentences: Sequence[SourceSentence], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """The nbest translations of each sentence of a batch.

        Args:
            sentences: The batch.
            options: How to search.

        Returns:
            Finished hypotheses, best first.

        Raises:
            ValueError: The engine does not have what is asked for.
        """
        refuse_what_the_engine_lacks(sentences, options)
        offset = options.max_length_offset
        offset = self.beyond_source if offset is None else offset
        longest = max(len(sentence.input_ids) for sentence in sentences)
        limit = max(1, int(options.max_length_factor * longest) + offset)
        # One that is cut there has its end behind it.
        limit = min(limit, (self.positions["decoder"] or limit + 1) - 1)
        results = self.translator.translate_batch(
            self._tokens(self.source_tokenizer, [sentence.input_ids for sentence in sentences]),
            self._tokens(self.target_tokenizer, [sentence.prefix for sentence in sentences]),
            beam_size=options.num_beams,
            num_hypotheses=options.num_beams,
            # Any but 0, at which it ends with the first hypothesis: the ranking is ours.
            length_penalty=1,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            min_decoding_length=min(options.min_length, limit),
            max_decoding_length=limit,
            max_input_length=0,
            suppress_sequences=self.suppressed or None,
            return_scores=True,
            return_end_token=True,
        )
        is_free = not (options.min_length or options.no_repeat_ngram_size or self.suppressed)
        return [
            self._ranked(sentence, result, options, is_free and not sentence.prefix)
            for sentence, result in zip(sentences, results, strict=True)
        ]

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[float]:
        """How likely each source's translation is.

        Args:
            sources: Source ids of a batch.
            targets: Their translations' ids, `</s>` last.

        Returns:
            The log-probability of each, in nats.
        """
        results = self.translator.score_batch(
            self._tokens(self.source_tokenizer, sources),
            # The engine adds the end itself.
            self._tokens(self.target_tokenizer, [target[:-1] for target in targets]),
            max_input_length=0,
        )
        return [sum(result.log_probs) for result in results]

    @staticmethod
    def _tokens(
        tokenizer: PreTrainedTokenizerBase, sequences: Sequence[Sequence[int]]
    ) -> list[list[str]]:
        return [tokenizer.convert_ids_to_tokens(list(ids)) for ids in sequences]

    def _ranked(
        self,
        sentence: SourceSentence,
        result: ctranslate2.TranslationResult,
        options: SearchOptions,
        is_free: bool,
    ) -> list[Hypothesis]:
        """The nbest of a sentence's hypotheses, by our penalties."""
        eos = self.target_tokenizer.eos_token_id
        found = [self.target_tokenizer.convert_tokens_to_ids(each) for each in result.hypotheses]
        totals = [score * len(ids) for score, ids in zip(result.scores, found, strict=True)]
        if not is_free or any(ids[-1:] != [eos] for ids in found):
            # One that was cut at its limit ends there, for what that costs.
            found = [ids if ids[-1:] == [eos] else [*ids, eos] for ids in found]
            totals = self.score([sentence.input_ids] * len(found), found)
        hypotheses = [
            Hypothesis(tuple(ids), total, normalized_score(total, len(ids), options))
            for ids, total in zip(found, totals, strict=True)
        ]
        return sorted(hypotheses, key=lambda each: -each.score)[: options.nbest]


def refuse_what_the_engine_lacks(
    sentences: Sequence[SourceSentence], options: SearchOptions
) -> None:
    """Name the first thing asked for that CTranslate2 does not have, or not as we do.

    Raises:
        ValueError: There is one.
    """
    lacking = {
        "do_sample": options.do_sample,
        "coverage_penalty": options.coverage_penalty,
        "required phrases": any(sentence.phrases for sentence in sentences),
    }
    for name, is_asked in lacking.items():
        if is_asked:
            raise ValueError(f"The engine ctranslate2 has no {name}: use our own, engine='torch'.")
