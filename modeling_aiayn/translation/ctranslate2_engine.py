"""CTranslate2 behind our interface: the production engine for what was exported to it."""

import json
from collections.abc import Sequence
from pathlib import Path

import ctranslate2
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..generation import max_tokens_beyond_source
from ..tokenization import vocabulary_sha256
from .engine import (
    SourceSentence,
    length_limit,
    refuse_what_the_decoder_lacks,
    suppressed_tokens,
)
from .hypotheses import Hypothesis
from .options import SearchOptions
from .penalties import normalized_score

SOURCE_TOKENIZER_FOLDER = "source_tokenizer"
# In the exported config.json: how many tokens a half has positions for.
POSITIONS_FIELD = "{half}_positions"
# And which vocabularies it was exported with.
VOCABULARIES_FIELD = "vocabulary_sha256"


class CTranslate2Engine:
    """An exported model.

    Its beam search ends with as many finished hypotheses as beams, where ours goes on while a
    better one is possible; both rank them alike. Where tokens are forced or ruled out it counts
    shares of what is left, so those hypotheses are scored once more, by what the model gives them.

    Args:
        folder: What `export_ctranslate2` wrote.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target.
        device: "cpu", "cuda" or "auto".
        compute_type: How it computes: "default" (as the weights are kept), "int8", "float32", ...

    Raises:
        OSError: The folder is none of CTranslate2's.
        ValueError: Its tokenizers are not the exported model's.
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
        exported = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        found = [vocabulary_sha256(each) for each in (source_tokenizer, target_tokenizer)]
        if exported.get(VOCABULARIES_FIELD, found) != found:
            raise ValueError(
                f"{folder}: its tokenizers are not those that it was exported with. Export it anew."
            )
        self.positions = {
            half: exported.get(POSITIONS_FIELD.format(half=half)) for half in ("encoder", "decoder")
        }
        self.source_tokens, self.target_tokens = (
            exported_tokens(Path(folder), side) for side in ("source", "target")
        )
        self.target_ids = {token: index for index, token in enumerate(self.target_tokens)}
        decoding = GenerationConfig.from_pretrained(folder, local_files_only=True)
        refuse_what_the_decoder_lacks(decoding)
        self.end = sole_end(decoding)
        self.beyond_source = max_tokens_beyond_source(decoding)
        self.suppressed = [[self.target_tokens[index]] for index in suppressed_tokens(decoding)]

    def check(self, options: SearchOptions, with_phrases: bool) -> None:
        """Refuse what the engine does not have.

        Args:
            options: How to search.
            with_phrases: Whether translations are to contain phrases.

        Raises:
            ValueError: As `refuse_what_the_engine_lacks`.
        """
        refuse_what_the_engine_lacks(options, with_phrases)

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
        self.check(options, any(sentence.phrases for sentence in sentences))
        limits = [
            length_limit(sentence, options, self.beyond_source, self.positions["decoder"])
            for sentence in sentences
        ]
        longest = max(limits)
        results = self._translated(sentences, options, longest)
        # The engine has one limit for all that it is given at a time: who came to his own, again.
        for limit in sorted({*limits} - {longest}):
            late = [
                index
                for index, its in enumerate(limits)
                if its == limit and any(len(each) >= limit for each in results[index].hypotheses)
            ]
            again = self._translated([sentences[index] for index in late], options, limit)
            for index, result in zip(late, again, strict=True):
                results[index] = result
        is_free = not (options.min_length or options.no_repeat_ngram_size or self.suppressed)
        return [
            self._ranked(sentence, result, options, limit, is_free and not sentence.prefix)
            for sentence, result, limit in zip(sentences, results, limits, strict=True)
        ]

    def _translated(
        self, sentences: Sequence[SourceSentence], options: SearchOptions, limit: int
    ) -> list[ctranslate2.TranslationResult]:
        # One that is cut has its end behind it.
        cut = max(1, limit - 1)
        results: list[ctranslate2.TranslationResult] = self.translator.translate_batch(
            [_at(self.source_tokens, sentence.input_ids) for sentence in sentences],
            [_at(self.target_tokens, sentence.prefix) for sentence in sentences],
            beam_size=options.num_beams,
            num_hypotheses=options.num_beams,
            # Any but 0, at which it ends with the first hypothesis: the ranking is ours.
            length_penalty=1,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            min_decoding_length=min(options.min_length, cut),
            max_decoding_length=cut,
            max_input_length=0,
            suppress_sequences=self.suppressed or None,
            return_scores=True,
            return_end_token=True,
        )
        return results

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
            [_at(self.source_tokens, source) for source in sources],
            # The engine adds the end itself.
            [_at(self.target_tokens, target[:-1]) for target in targets],
            max_input_length=0,
        )
        return [sum(result.log_probs) for result in results]

    def _ranked(
        self,
        sentence: SourceSentence,
        result: ctranslate2.TranslationResult,
        options: SearchOptions,
        limit: int,
        is_free: bool,
    ) -> list[Hypothesis]:
        """The nbest of a sentence's hypotheses, by our penalties."""
        end = self.end
        found = [[self.target_ids[token] for token in each] for each in result.hypotheses]
        totals = [score * len(ids) for score, ids in zip(result.scores, found, strict=True)]
        if not is_free or any(ids[-1:] != [end] for ids in found):
            # One that was cut at its limit ends there, for what that costs.
            found = [ids if ids[-1:] == [end] else [*ids[: limit - 1], end] for ids in found]
            totals = self.score([sentence.input_ids] * len(found), found)
        hypotheses = [
            Hypothesis(tuple(ids), total, normalized_score(total, len(ids), options))
            for ids, total in zip(found, totals, strict=True)
        ]
        return sorted(hypotheses, key=lambda each: -each.score)[: options.nbest]


def sole_end(generation_config: GenerationConfig) -> int:
    """The id that ends a sentence, for an engine that knows one.

    Args:
        generation_config: The model's.

    Returns:
        The id.

    Raises:
        ValueError: There are several.
    """
    ends = generation_config.eos_token_id
    ends = ends if isinstance(ends, list) else [ends]
    if len(ends) != 1:
        raise ValueError(f"CTranslate2 has one end, got eos_token_id={ends}.")
    return int(ends[0])


def _at(tokens: Sequence[str], ids: Sequence[int]) -> list[str]:
    return [tokens[index] for index in ids]


def exported_tokens(folder: Path, side: str) -> list[str]:
    """The token of each id in an exported model's vocabulary, of "source" or "target"."""
    own = folder / f"{side}_vocabulary.json"
    path = own if own.is_file() else folder / "shared_vocabulary.json"
    tokens: list[str] = json.loads(path.read_text("utf-8"))
    return tokens


def refuse_what_the_engine_lacks(options: SearchOptions, with_phrases: bool = False) -> None:
    """Name the first thing asked for that CTranslate2 does not have, or not as we do.

    Args:
        options: How to search.
        with_phrases: Whether translations are to contain phrases.

    Raises:
        ValueError: There is one.
    """
    lacking = {
        "do_sample": options.do_sample,
        "coverage_penalty": options.coverage_penalty,
        "required phrases": with_phrases,
    }
    for name, is_asked in lacking.items():
        if is_asked:
            raise ValueError(f"The engine ctranslate2 has no {name}: use our own, engine='torch'.")
