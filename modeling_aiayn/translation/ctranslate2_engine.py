"""CTranslate2 as an engine of Translator, for folders that were exported to it."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..data.lines import content_sha256
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..tokenization import vocabulary_sha256
from .decoding_rules import DecodingRules
from .hypotheses import Hypothesis, SourceSentence, normalized_score
from .options import SearchOptions, search_defaults
from .pools import search_in_batches

# Fields of the exported config.json.
POSITIONS_FIELD = "{half}_positions"
VOCABULARIES_FIELD = "vocabulary_sha256"


class CTranslate2Engine:
    """Runs an exported model.

    Its beam search stops once num_beams hypotheses are finished; ours continues while a better one
    is possible. Both use the same ranking. If tokens are forced or suppressed, CTranslate2 gives
    probabilities among the remaining tokens only, so such hypotheses are scored a second time.

    `export_ctranslate2` wrote the folder; device is "cpu", "cuda" or "auto".
    """

    # Empty, because the weights are in CTranslate2's own format.
    models: Sequence[AiaynForConditionalGeneration] = ()

    def __init__(
        self,
        folder: str | Path,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase,
        device: str = "cpu",
    ) -> None:
        self._made_by = os.getpid()
        self._folder = folder = Path(folder)
        self.translator = ctranslate2.Translator(str(folder), device=device)
        exported = json.loads((folder / "config.json").read_text("utf-8"))
        hashes = [vocabulary_sha256(source_tokenizer), vocabulary_sha256(target_tokenizer)]
        if exported.get(VOCABULARIES_FIELD, hashes) != hashes:
            raise ValueError(
                f"{folder}: its tokenizers are not those that it was exported with. Export the "
                "model again."
            )
        self.source_positions, self.target_positions = (
            exported.get(POSITIONS_FIELD.format(half=half)) for half in ("encoder", "decoder")
        )
        self.source_tokens = _exported_tokens(folder, "source")
        self.target_tokens = _exported_tokens(folder, "target")
        self.target_ids = {token: index for index, token in enumerate(self.target_tokens)}
        generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
        self.search_defaults = search_defaults(generation_config)
        self.rules = DecodingRules.from_generation_config(
            generation_config, len(self.target_tokens), self.target_positions
        )
        self.end = self.rules.single_eos_token_id

    @property
    def fingerprint(self) -> str:
        """A hash of the files of the folder."""
        return content_sha256(sorted(filter(Path.is_file, self._folder.rglob("*"))))[:16]

    def check_options(self, options: SearchOptions) -> None:
        """Check that CTranslate2 supports the options."""
        options.check_supported("ctranslate2")

    def searches(self, *arguments: Any) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
        """Search for any number of sentences, like `TorchEngine.searches`."""
        return search_in_batches(self.search, *arguments)

    def search(
        self, sentences: Sequence[SourceSentence], options: SearchOptions
    ) -> list[list[Hypothesis]]:
        """Return the nbest finished translations of each sentence of a batch, best first."""
        self._check_process()
        limits = [self.rules.max_length(sentence, options) for sentence in sentences]
        longest = max(limits)
        results = self._translated(sentences, options, longest)
        # CTranslate2 has one limit for a batch. Translations beyond their own limit are redone.
        for limit in sorted({*limits} - {longest}):
            late = [
                index
                for index, result in enumerate(results)
                if limits[index] == limit and max(map(len, result.hypotheses)) >= limit
            ]
            again = self._translated([sentences[index] for index in late], options, limit)
            for index, result in zip(late, again, strict=True):
                results[index] = result
        is_unrestricted = not (
            options.min_length or options.no_repeat_ngram_size or self.rules.suppressed_token_ids
        )
        return [
            self._ranked(sentence, result, options, limit, is_unrestricted and not sentence.prefix)
            for sentence, result, limit in zip(sentences, results, limits, strict=True)
        ]

    def _check_process(self) -> None:
        if os.getpid() != self._made_by:
            raise ValueError(
                "CTranslate2's threads do not exist in a forked process. Load the translator in "
                "each process, or start processes by 'spawn'."
            )

    def _translated(
        self, sentences: Sequence[SourceSentence], options: SearchOptions, limit: int
    ) -> list[ctranslate2.TranslationResult]:
        # Leave room for `</s>`, which truncated translations get afterwards.
        cut = max(1, limit - 1)
        suppressed = [[self.target_tokens[index]] for index in self.rules.suppressed_token_ids]
        results: list[ctranslate2.TranslationResult] = self.translator.translate_batch(
            [_tokens_at(self.source_tokens, sentence.input_ids) for sentence in sentences],
            [_tokens_at(self.target_tokens, sentence.prefix) for sentence in sentences],
            beam_size=options.num_beams,
            num_hypotheses=options.num_beams,
            # With 0, CTranslate2 stops at the first hypothesis. Any other value works, because we
            # rank the hypotheses ourselves.
            length_penalty=1,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            min_decoding_length=min(options.min_length, cut),
            max_decoding_length=cut,
            max_input_length=0,
            suppress_sequences=suppressed or None,
            return_scores=True,
            return_end_token=True,
        )
        return results

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], certain: int = 0
    ) -> list[float]:
        """Return the log-probability of each target of a batch, like `TorchEngine.score`."""
        self._check_process()
        results = self.translator.score_batch(
            [_tokens_at(self.source_tokens, source) for source in sources],
            # CTranslate2 appends `</s>` itself.
            [_tokens_at(self.target_tokens, target[:-1]) for target in targets],
            max_input_length=0,
        )
        return [sum(result.log_probs[certain:]) for result in results]

    def attention(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Average the heads of the last layer; otherwise like `TorchEngine.attention`."""
        self._check_process()
        results = self.translator.translate_batch(
            [_tokens_at(self.source_tokens, source) for source in sources],
            [_tokens_at(self.target_tokens, target[:-1]) for target in targets],
            beam_size=1,
            max_decoding_length=max(map(len, targets)),
            max_input_length=0,
            return_attention=True,
            return_end_token=True,
        )
        return [
            torch.tensor(result.attention[0])[: len(target)]
            for result, target in zip(results, targets, strict=True)
        ]

    def _ranked(
        self,
        sentence: SourceSentence,
        result: ctranslate2.TranslationResult,
        options: SearchOptions,
        limit: int,
        is_unrestricted: bool,
    ) -> list[Hypothesis]:
        end = self.end
        token_ids = [[self.target_ids[token] for token in tokens] for tokens in result.hypotheses]
        totals = [score * len(ids) for score, ids in zip(result.scores, token_ids, strict=True)]
        if not is_unrestricted or any(ids[-1:] != [end] for ids in token_ids):
            # End each hypothesis at its limit; this `</s>` is scored too.
            token_ids = [
                ids if ids[-1:] == [end] else [*ids[: limit - 1], end] for ids in token_ids
            ]
            totals = self.score([sentence.input_ids] * len(token_ids), token_ids, sentence.certain)
        # Hypotheses that reached the limit may have become equal.
        different = dict(zip(map(tuple, token_ids), totals, strict=True))
        hypotheses = [
            Hypothesis(ids, total, normalized_score(total, len(ids), options))
            for ids, total in different.items()
        ]
        return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)[: options.nbest]


def _tokens_at(tokens: Sequence[str], ids: Sequence[int]) -> list[str]:
    return [tokens[index] for index in ids]


def _exported_tokens(folder: Path, side: str) -> list[str]:
    path = folder / f"{side}_vocabulary.json"
    path = path if path.is_file() else folder / "shared_vocabulary.json"
    tokens: list[str] = json.loads(path.read_text("utf-8"))
    return tokens
