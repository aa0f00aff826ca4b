"""Section 6.1: translating text."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, Self

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..loading import (
    HUB_HINT,
    check_directory,
    check_package,
    convert_for_cpu,
    load_model,
    load_target_tokenizer,
)
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..tokenization import TARGET_TOKENIZER_FOLDER, clean_text, decode_lines, vocabulary_sha256
from .batching import batches_by_length, pools
from .engine import Engine, SourceSentence, TorchEngine, positions_of
from .hypotheses import Hypothesis
from .options import SearchOptions
from .penalties import normalized_score
from .progress import TranslationBar

logger = logging.getLogger(__name__)

MAX_SOURCE_TOKENS = 512
# Of a translation to score, which costs the square of them.
MAX_TARGET_TOKENS = 2048
BATCH_SIZE = 256
# Of the source, padding counted.
MAX_TOKENS_PER_BATCH = 4096
# Sentences of a stream that are in memory at a time, and sorted by length.
POOL_SIZE = 1024


@dataclass(frozen=True)
class Translation:
    """A translation of a sentence.

    Args:
        source: The sentence.
        text: Its translation, one line.
        score: What translations of a sentence are ranked by: the log-probability divided by the
            length penalty.
        log_probability: Sum over the tokens, `</s>` counted, in nats.
        token_ids: The tokens, `</s>` last.
    """

    source: str
    text: str
    score: float
    log_probability: float
    token_ids: tuple[int, ...]


# A text with its prefix and required phrases.
Row = tuple[str, str, Sequence[str]]
# What stands for a missing prefix or list of phrases.
MISSING = object()


class Translator:
    """Translates texts with a model and its tokenizers.

    The search attends in a way of its own, whatever `attn_implementation` the model has.

    Args:
        model: A translation model, or several of one vocabulary that vote at each token. None:
            engine has its own.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target. None: the source's.
        compile: Whether torch.compile rewrites the decoding step.
        engine: What translates ids. None: our own decoder loop over model.

    Raises:
        ValueError: A tokenizer has more entries than the model, a model is no translation model
            of ours, or several have vocabularies of different sizes.
    """

    def __init__(
        self,
        model: AiaynForConditionalGeneration | Sequence[AiaynForConditionalGeneration] | None,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        compile: bool = False,
        engine: Engine | None = None,
    ) -> None:
        self.models = list(model) if isinstance(model, Sequence) else [model] if model else []
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self._compile = compile
        self._engine = engine
        for loaded in self.models:
            if not isinstance(loaded, AiaynForConditionalGeneration):
                raise ValueError(
                    "Translator takes AiaynForConditionalGeneration, got "
                    f"{type(loaded).__name__}. Merge adapters first: model.merge_and_unload()."
                )
            loaded.eval()
            self._check_tokenizers(loaded)
        sizes = {loaded.lm_head.out_features for loaded in self.models}
        if len(sizes) > 1:
            raise ValueError(
                "Models that vote must have one target vocabulary, got some of "
                f"{' and '.join(map(str, sorted(sizes)))} entries."
            )

    def _check_tokenizers(self, model: AiaynForConditionalGeneration) -> None:
        tokenizers = (self.source_tokenizer, self.target_tokenizer)
        config = model.config
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
    def from_pretrained(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        hub: bool = False,
        device: str | torch.device | None = None,
        compile: bool = False,
        engine: Literal["torch", "ctranslate2"] = "torch",
        **model_options: Any,
    ) -> Self:
        """Load a model's folder, or with hub a repository.

        Args:
            path: A folder; with hub, a repository's name. Several: models that vote, with the
                tokenizers of the first.
            hub: Whether path names a repository on the Hub. Without it nothing leaves the machine.
            device: Where the model goes. None: where it is loaded, the CPU.
            compile: Whether torch.compile rewrites the decoding step.
            engine: "ctranslate2" for a folder that scripts/export_ctranslate2.py wrote; it takes
                no other options than device.
            **model_options: As for AutoModelForSeq2SeqLM.from_pretrained: dtype, device_map, ...
                On a CPU weights of float16 are kept so, and computed with in float32.

        Returns:
            The translator.

        Raises:
            OSError: There is no such folder, or it holds no model.
            ValueError: The model's weights are not all there, or not all numbers; or there is no
                such engine, or it does not take what is given.
        """
        paths = [path] if isinstance(path, (str, Path)) else list(path)
        if engine == "ctranslate2":
            if hub or compile or model_options or len(paths) > 1:
                raise ValueError(
                    "The engine ctranslate2 runs one exported folder, and takes neither hub nor "
                    f"compile nor {', '.join(model_options) or 'other options'}."
                )
            return cls._from_ctranslate2(Path(paths[0]), str(device or "cpu"))
        if engine != "torch":
            raise ValueError(f"engine must be torch or ctranslate2, got {engine!r}.")
        options = {"trust_remote_code": False, "local_files_only": not hub}
        models = [load_model(each, hub, **{**options, **model_options}) for each in paths]
        if device is not None:
            models = [model.to(device) for model in models]
        models = [convert_for_cpu(model) for model in models]
        source_tokenizer = AutoTokenizer.from_pretrained(paths[0], **options)
        target_tokenizer = load_target_tokenizer(paths[0], models[0].config, **options)
        return cls(models, source_tokenizer, target_tokenizer, compile=compile)

    @classmethod
    def _from_ctranslate2(cls, folder: Path, device: str) -> Self:
        check_package("ctranslate2", "ctranslate2")
        from .ctranslate2_engine import SOURCE_TOKENIZER_FOLDER, CTranslate2Engine

        check_directory(folder, HUB_HINT)
        if not (folder / SOURCE_TOKENIZER_FOLDER).is_dir():
            raise FileNotFoundError(
                f"{folder}: no exported model. Export one with scripts/export_ctranslate2.py."
            )
        options = {"trust_remote_code": False, "local_files_only": True}
        source, target = (
            AutoTokenizer.from_pretrained(folder / name, **options)
            for name in (SOURCE_TOKENIZER_FOLDER, TARGET_TOKENIZER_FOLDER)
        )
        return cls(None, source, target, engine=CTranslate2Engine(folder, source, target, device))

    @property
    def model(self) -> AiaynForConditionalGeneration:
        """The model, or the first of them.

        Raises:
            ValueError: The engine has a model of its own, which cannot be looked into.
        """
        if not self.models:
            raise ValueError(
                "This translator runs an exported model, which gives neither weights nor "
                "attention. Load the folder that it was exported from."
            )
        return self.models[0]

    @cached_property
    def engine(self) -> Engine:
        """What translates ids, made when first asked for.

        What is done to the model's weights afterwards may not reach it.
        """
        return self._engine or TorchEngine(self.models, compile=self._compile)

    def __call__(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = BATCH_SIZE,
        max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
        show_progress: bool = False,
        **search_options: Any,
    ) -> list[str]:
        """Translate texts.

        Args:
            texts: Sentences. One without text has an empty translation; one of more than 512
                tokens is cut there, with a warning.
            batch_size: Sentences at a time, at most.
            max_tokens_per_batch: Source tokens at a time, padding counted.
            show_progress: Whether to show a bar on stderr.
            **search_options: As for `SearchOptions`: num_beams, length_penalty, ...

        Returns:
            As many translations in the order of the texts, each one line.
        """
        _refuse_one_text(texts)
        texts = list(texts)
        with TranslationBar(len(texts), show_progress) as bar:
            found = self.stream(
                texts,
                SearchOptions(**search_options),
                batch_size=batch_size,
                max_tokens_per_batch=max_tokens_per_batch,
                pool_size=max(1, len(texts)),
                report=bar.report,
            )
            return [best.text for best, *_ in found]

    def stream(
        self,
        texts: Iterable[str],
        options: SearchOptions | None = None,
        *,
        prefixes: Iterable[str] | None = None,
        phrases: Iterable[Sequence[str]] | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
        pool_size: int = POOL_SIZE,
        report: Callable[[int, int], object] | None = None,
    ) -> Iterator[list[Translation]]:
        """Translate texts as they come; memory does not grow with their number.

        Args:
            texts: Sentences.
            options: How to search.
            prefixes: What each translation begins with, one for each text.
            phrases: What each translation contains, a list for each text.
            batch_size: Sentences at a time, at most.
            max_tokens_per_batch: Source tokens at a time, padding counted.
            pool_size: Sentences to read before the first translation comes; they are sorted by
                length.
            report: Called after each batch with its sentences and target tokens.

        Returns:
            The nbest translations of each text, best first, in the order of the texts.

        Raises:
            ValueError: The options do not fit each other or the engine; or, as texts come, one is
                no text, or there are fewer prefixes or phrases than texts.
        """
        options = options or SearchOptions()
        self.engine.check(options, phrases is not None)
        _refuse_one_text(texts)
        rows = enumerate(_rows(texts, prefixes, phrases))
        limits = (batch_size, max_tokens_per_batch)
        return self._translations(pools(rows, pool_size), options, limits, report)

    def _translations(
        self,
        pools_: Iterable[Sequence[tuple[int, Row]]],
        options: SearchOptions,
        limits: tuple[int, int],
        report: Callable[[int, int], object] | None,
    ) -> Iterator[list[Translation]]:
        for pool in pools_:
            sentences = self._sentences(pool)
            found = [[Translation(text, "", 0.0, 0.0, ())] for _, (text, *_) in pool]
            filled = [
                index
                for index, (_, (text, *_)) in enumerate(pool)
                if text.strip() and self._has_room_for_phrases(sentences[index])
            ]
            lengths = [len(sentences[index].input_ids) for index in filled]
            if report and len(filled) < len(pool):
                report(len(pool) - len(filled), 0)
            for batch in batches_by_length(lengths, *limits):
                indices = [filled[position] for position in batch]
                hypotheses = self.engine.search([sentences[index] for index in indices], options)
                for index, best in zip(indices, hypotheses, strict=True):
                    if best:
                        found[index] = self._decoded(found[index][0].source, best)
                    else:
                        number = sentences[index].number + 1
                        logger.warning("Line %d: no translation holds all of its phrases.", number)
                if report:
                    tokens = sum(len(found[index][0].token_ids) for index in indices)
                    report(len(indices), tokens)
            yield from found

    def score(
        self,
        texts: Sequence[str],
        targets: Sequence[str],
        options: SearchOptions | None = None,
        *,
        batch_size: int = BATCH_SIZE,
        max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
    ) -> list[Translation]:
        """How likely the model finds given translations.

        Args:
            texts: Sentences.
            targets: A translation of each. One of more than MAX_TARGET_TOKENS, or than the model
                has positions for, is cut there, with a warning.
            options: The length penalty; there is no coverage penalty here.
            batch_size: Sentences at a time, at most.
            max_tokens_per_batch: Source tokens at a time, padding counted.

        Returns:
            The translations with their scores, in the order of the texts.

        Raises:
            ValueError: There are not as many targets as texts.
        """
        if len(texts) != len(targets):
            raise ValueError(
                f"Each text needs a target, got {len(texts)} texts and {len(targets)} targets."
            )
        options = options or SearchOptions()
        names = [f"Line {number}" for number in range(1, len(texts) + 1)]
        sources = [self.encode(text, name) for text, name in zip(texts, names, strict=True)]
        ids = [
            tuple(
                self._cut(
                    self.target_tokenizer(clean_text(target)).input_ids,
                    name,
                    self.max_target_tokens,
                )
            )
            for name, target in zip(names, targets, strict=True)
        ]
        lengths = [max(len(a), len(b)) for a, b in zip(sources, ids, strict=True)]
        found: dict[int, Translation] = {}
        for batch in batches_by_length(lengths, batch_size, max_tokens_per_batch):
            totals = self.engine.score([sources[i] for i in batch], [ids[i] for i in batch])
            for index, total in zip(batch, totals, strict=True):
                score = normalized_score(total, len(ids[index]), options)
                found[index] = Translation(texts[index], targets[index], score, total, ids[index])
        return [found[index] for index in range(len(texts))]

    @cached_property
    def max_source_tokens(self) -> int:
        """The longest source: 512 tokens, or as many as a table of learned positions has."""
        return min(MAX_SOURCE_TOKENS, self._positions["encoder"] or MAX_SOURCE_TOKENS)

    @property
    def max_target_tokens(self) -> int:
        """The longest target that may be given: 2,048 tokens, or as many as there are positions."""
        return min(MAX_TARGET_TOKENS, self._positions["decoder"] or MAX_TARGET_TOKENS)

    @property
    def _positions(self) -> dict[str, int | None]:
        # To make an engine takes time and memory, and models know theirs.
        return positions_of(self.models) if self.models else self.engine.positions

    def encode(self, text: str, name: str = "A text") -> list[int]:
        """Ids of a text, as many as `max_source_tokens` at most.

        Args:
            text: A sentence.
            name: What to call it in the warning that it was cut.

        Returns:
            Ids, the last of which is eos where the model's sources have one.
        """
        ids: list[int] = self.source_tokenizer(clean_text(text)).input_ids
        return self._cut(ids, name, self.max_source_tokens)

    def _cut(self, ids: list[int], name: str, limit: int) -> list[int]:
        if len(ids) <= limit:
            return ids
        logger.warning("%s: cut from %d to %d tokens.", name, len(ids), limit)
        ends = (self.source_tokenizer.eos_token_id, self.target_tokenizer.eos_token_id)
        return [*ids[: limit - 1], ids[-1]] if ids[-1] in ends else ids[:limit]

    def _has_room_for_phrases(self, sentence: SourceSentence) -> bool:
        number = sum(map(len, sentence.phrases))
        has_room = number < self.max_target_tokens
        if not has_room:
            logger.warning(
                "Line %d: not translated, for its phrases have %d tokens, and a translation at "
                "most %d.",
                sentence.number + 1,
                number,
                self.max_target_tokens,
            )
        return has_room

    def _sentences(self, pool: Sequence[tuple[int, Row]]) -> list[SourceSentence]:
        """What the engine translates of some rows, whose texts are split into sub-words at once."""
        texts = [clean_text(text) for _, (text, _, _) in pool]
        for (number, (text, _, _)), whole in zip(pool, texts, strict=True):
            if text.strip() != whole:
                logger.warning("Line %d: what is no character is U+FFFD here.", number + 1)
        return [
            SourceSentence(
                self._cut(ids, f"Line {number + 1}", self.max_source_tokens),
                # With room for its end.
                self._cut(
                    self._target_ids(prefix),
                    f"Line {number + 1}, prefix",
                    self.max_target_tokens - 1,
                ),
                [ids for ids in map(self._target_ids, phrases) if ids],
                number,
            )
            for ids, (number, (_, prefix, phrases)) in zip(
                self.source_tokenizer(texts).input_ids, pool, strict=True
            )
        ]

    def _target_ids(self, text: str) -> list[int]:
        """Ids of a part of a translation."""
        if not text.strip():
            return []
        ids: list[int] = self.target_tokenizer(clean_text(text), add_special_tokens=False).input_ids
        return ids

    def _decoded(self, source: str, hypotheses: list[Hypothesis]) -> list[Translation]:
        texts = decode_lines(self.target_tokenizer, [each.token_ids for each in hypotheses])
        return [
            Translation(source, text, each.score, each.log_probability, each.token_ids)
            for text, each in zip(texts, hypotheses, strict=True)
        ]


def _refuse_one_text(texts: Iterable[str]) -> None:
    if isinstance(texts, str | bytes):
        raise ValueError(
            f"Texts must be several, got a {type(texts).__name__}: put it into a list."
        )


def _rows(
    texts: Iterable[str], prefixes: Iterable[str] | None, phrases: Iterable[Sequence[str]] | None
) -> Iterator[Row]:
    """Each text with its prefix and phrases."""
    given: list[Iterable[Any]] = [
        column for column in (texts, prefixes, phrases) if column is not None
    ]
    for number, row in enumerate(zip_longest(*given, fillvalue=MISSING), start=1):
        if MISSING in row:
            raise ValueError(
                "Each text needs its prefix and its phrases, where there are any, an empty line "
                f"for none: line {number} is not in all of them."
            )
        text, *rest = row
        if not isinstance(text, str):
            raise ValueError(f"Line {number} must be a str, got {type(text).__name__}.")
        yield text, "" if prefixes is None else rest.pop(0), rest.pop() if rest else ()
