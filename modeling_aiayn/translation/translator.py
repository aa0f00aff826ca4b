"""Section 6.1: translate text."""

import copy
import logging
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.folders import check_directory, find_int8_weights, location_options
from ..saved.languages import (
    DEFAULT_LANGUAGES,
    Languages,
    LanguageTags,
    iso_639,
    languages_of,
    saved_languages,
)
from ..saved.loading import find_model, load_model
from ..saved.tokenizers import load_tokenizer, load_tokenizers
from ..tokenization import (
    BLANKS,
    SOURCE_TOKENIZER_FOLDER,
    TARGET_TOKENIZER_FOLDER,
    clean_text,
    decode_lines,
    has_vocabulary,
    has_words,
    hidden_ids,
    text_encoder,
    vocabulary_sha256,
)
from .glossary import Glossary, Term, read_terms
from .hypotheses import SourceSentence, normalized_score
from .options import SearchOptions
from .pools import (
    BATCH_SIZE,
    MAX_TOKENS_PER_BATCH,
    POOL_SIZE,
    SourceText,
    batches_by_length,
    check_several,
    read_pools,
    source_texts,
)
from .progress import translation_bar
from .segments.marks import Mark
from .segments.numbers import with_numbers
from .segments.segment import Segment
from .segments.whole_texts import SplitText
from .segments.word_attention import word_attentions
from .shortlist import Shortlist
from .torch_engine import TorchEngine

if TYPE_CHECKING:
    from .ctranslate2_engine import CTranslate2Engine

# Names of dtypes: auto is the dtype of the saved weights.
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")

# Soft hyphens, direction marks, and other invisible characters without meaning.
INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u200e\u200f\u2060\ufeff"))

# Characters that may end a text, and characters inside a text that may end a sentence.
LAST_SIGNS = " \t\r\n.!?…。\"')"
INNER_END = re.compile(r"[^\w\s,;:()'\"-]|\n")

logger = logging.getLogger(__name__)

MAX_SOURCE_TOKENS = 512
# For prefixes and translations to score: memory grows with the square of their length.
MAX_TARGET_TOKENS = 2048


@dataclass(frozen=True)
class Translation:
    """A translation of a sentence."""

    source: str  # the sentence
    text: str  # its translation, one line
    score: float  # ranks the translations: log-probability / length penalty
    log_probability: float  # sum over the tokens, `</s>` included, in nats
    token_ids: tuple[int, ...]  # `</s>` last
    read: str | None = None  # the text that the model read, if it is not the whole sentence


class Translator:
    """Translates texts with an engine and tokenizers.

    Our own engine has its own attention code and ignores the model's `attn_implementation`.

    A translator that has already translated also works in forked processes, such as those of
    `datasets.map(num_proc=2)`; each computes in one thread. On a GPU, or with an exported model
    (CTranslate2), start processes with "spawn" instead.

    Args:
        model: A translation model, or an ensemble with one vocabulary, whose probabilities are
            averaged. None: the given engine has its own.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target. None: the source's.
        engine: An engine that has its own model. None: our own engine with the given model.

    Raises:
        ValueError: Model and tokenizers do not fit each other, or a model is of another class.
    """

    def __init__(
        self,
        model: AiaynForConditionalGeneration | Sequence[AiaynForConditionalGeneration] | None,
        source_tokenizer: PreTrainedTokenizerBase,
        target_tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        engine: "TorchEngine | CTranslate2Engine | None" = None,
    ) -> None:
        self.source_tokenizer = source_tokenizer
        self._encode_texts = text_encoder(source_tokenizer)
        self.target_tokenizer = target_tokenizer or source_tokenizer
        models: Any = model if isinstance(model, Sequence) else [model]
        self.engine = engine = engine or TorchEngine(models)
        # A table of learned positions may be shorter than our limits.
        self.max_source_tokens = min(
            engine.source_positions or MAX_SOURCE_TOKENS, MAX_SOURCE_TOKENS
        )
        self.max_target_tokens = min(
            engine.target_positions or MAX_TARGET_TOKENS, MAX_TARGET_TOKENS
        )
        # Empty for an exported model.
        self.models: Sequence[AiaynForConditionalGeneration] = engine.models
        for loaded in self.models:
            self._check_tokenizers(loaded)
        self._several: list[str] = []  # the first text with several sentences, to warn once
        self._glossary: tuple[Languages | None, Glossary] | None = None
        self._memory: tuple[Languages | None, Mapping[str, str]] | None = None
        self._tags = LanguageTags.of(source_tokenizer)
        self._languages: tuple[str | None, str | None] = (None, None)
        if self._tags:
            source, target = languages_of(source_tokenizer)
            self._languages = (source, None if self._tags.is_optional else target)

    def set_languages(self, source_lang: str | None, target_lang: str | None) -> None:
        """Set the default languages; each call checks that both exist."""
        earlier = self._languages
        self._languages = (source_lang or earlier[0], target_lang or earlier[1])

    def directed(self, languages: Languages | None) -> Self:
        """Return a copy of this translator with other default languages."""
        directed = copy.copy(self)
        directed.set_languages(*(languages or (None, None)))
        return directed

    def use_glossary(self, terms: str | Path | Mapping[str, str]) -> None:
        """Translate terms with a glossary, in the current default direction.

        Args:
            terms: Terms and their translations, or a file with a line for each: the term, a tab,
                and its translation. "" or "=" keeps the term unchanged, and "=x" writes exactly x.
                Words of other translations may be inflected.

        Raises:
            ValueError: The vocabulary cannot write a translation, or a line of the file has no tab.
        """
        check_package("snowballstemmer", "glossary")
        pairs = terms.items() if isinstance(terms, Mapping) else read_terms(terms)
        source, target = (x or y for x, y in zip(self.codes, DEFAULT_LANGUAGES, strict=True))
        glossary = Glossary(pairs, self.target_tokenizer, (source, target))
        self._glossary = (self.direction(), glossary)

    def use_memory(self, pairs: Mapping[str, str]) -> None:
        """Use given translations of sentences unchanged, in the current default direction."""
        self._memory = self.direction(), {clean_text(text): pairs[text] for text in pairs}

    @property
    def codes(self) -> tuple[str | None, str | None]:
        """The ISO 639 codes of source and target, either set or saved; None: unknown."""
        saved = languages_of(self.source_tokenizer)
        source, target = (x or y for x, y in zip(self._languages, saved, strict=True))
        return iso_639(source) if source else None, iso_639(target) if target else None

    @property
    def languages(self) -> list[str]:
        """The languages of a multilingual model; empty for a model of one direction."""
        return list(self._tags.ids) if self._tags else []

    @property
    def needs_languages(self) -> bool:
        """Whether translating a text requires its languages."""
        return self._tags is not None and not self._tags.is_optional

    @property
    def directions(self) -> list[Languages]:
        """All directions, (source, target), of a multilingual model."""
        if self._tags and self._tags.is_optional:
            return [(self._languages[0] or "auto", target) for target in self.languages]
        return list(permutations(self.languages, 2))

    def direction(
        self, source_lang: str | None = None, target_lang: str | None = None
    ) -> Languages | None:
        """Complete and check the languages of a sentence; None for a model of one direction."""
        source_lang = source_lang or self._languages[0]
        target_lang = target_lang or self._languages[1]
        if self._tags is not None:
            names: dict[int | None, str] = {token: name for name, token in self._tags.ids.items()}
            forced = names.get(self.engine.rules.forced_bos_token_id)
            languages = self._tags.direction(source_lang, target_lang or forced)
            shortlist = getattr(self.engine, "shortlist", None)
            if shortlist and self.needs_languages and languages != shortlist.languages:
                raise ValueError(f"The shortlist is for {shortlist.languages}, got {languages}.")
            return languages
        if source_lang or target_lang:
            raise ValueError(
                "source_lang and target_lang need a model of several languages, and this one has "
                "one direction."
            )
        return None

    def _check_tokenizers(self, model: AiaynForConditionalGeneration) -> None:
        tokenizers = (self.source_tokenizer, self.target_tokenizer)
        config = model.config
        sizes = (config.vocab_size, config.decoder_vocab_size or config.vocab_size)
        for tokenizer, size in zip(tokenizers, sizes, strict=True):
            if len(tokenizer) > size:
                raise ValueError(
                    f"The tokenizer has {len(tokenizer)} entries and the model {size}. Load the "
                    "tokenizer that the model was trained with."
                )
        trained_with = getattr(config, "vocabulary_sha256", None)
        if trained_with and not all(map(has_vocabulary, tokenizers, trained_with)):
            logger.warning(
                "The model was trained with another tokenizer. Words may have other ids, and then "
                "translations are wrong."
            )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | Sequence[str | Path],
        *,
        hub: bool = False,
        device: str | torch.device | None = None,
        engine: Literal["torch", "ctranslate2"] = "torch",
        dtype: str | torch.dtype | None = None,
        shortlist: str | Path | None = None,
        source_lang: str | None = None,
        target_lang: str | None = None,
        glossary: str | Path | Mapping[str, str] | None = None,
        **model_options: Any,
    ) -> Self:
        """Load a model from a folder or, with hub, from a repository.

        Args:
            path: A folder, or a bundled model: "aiayn-en-de" or "aiayn-de-en"; with hub, a
                repository's name. Several form an ensemble, with the tokenizers of the first.
            hub: Whether path names a repository on the Hub. Without it, the network is not used.
            device: Device of the model. None: the CPU, or the devices of a given device_map.
            engine: "ctranslate2" for a folder that `aiayn export-ctranslate2` wrote. It accepts
                only device, the languages and glossary.
            dtype: Type of the weights, such as "float32". None or "auto": the folder's. On a CPU,
                float16 weights become float32. "int8" (CPU only) is the fastest and a little less
                exact: 8-bit products with the extra `fast`, else only rounded weights. On a CPU,
                "auto" loads folders that `aiayn quantize` wrote as "int8".
            shortlist: A file that `aiayn make-shortlist` wrote. The output layer then computes only
                target ids that are likely translations of the batch's source tokens.
            source_lang: Language of the texts, for a multilingual model.
            target_lang: Language of the translations.
            glossary: See `use_glossary`.
            **model_options: As for AutoModelForSeq2SeqLM.from_pretrained: device_map, ...

        Raises:
            OSError: There is no such folder, or it holds no model.
            ValueError: Weights are missing or not finite, models or the shortlist do not fit each
                other, or the engine does not support the options.
        """
        paths = [path] if isinstance(path, (str, Path)) else list(path)
        if engine == "torch":
            translator = cls._from_torch(paths, hub, device, dtype, shortlist, model_options)
        elif any((hub, dtype, shortlist, model_options)) or len(paths) > 1:
            raise ValueError(
                "CTranslate2 runs one exported folder, and takes no other options than device and "
                "languages."
            )
        else:
            translator = cls._from_ctranslate2(Path(paths[0]), str(device or "cpu"))
        translator.set_languages(source_lang, target_lang)
        if glossary is not None:
            translator.use_glossary(glossary)
        return translator

    @classmethod
    def _from_torch(
        cls,
        paths: Sequence[str | Path],
        hub: bool,
        device: str | torch.device | None,
        dtype: str | torch.dtype | None,
        shortlist: str | Path | None,
        model_options: dict[str, Any],
    ) -> Self:
        options = {"trust_remote_code": False, "local_files_only": not hub}
        model_options = options | model_options
        is_int8 = dtype in ("int8", torch.int8)
        if dtype is not None:
            model_options["dtype"] = torch.float32 if is_int8 else dtype
        if not hub:
            subfolder = model_options.pop("subfolder", "")
            paths = [Path(find_model(path), subfolder) for path in paths]
        languages = _common_languages(paths, hub, model_options)
        models = [load_model(path, hub, **model_options) for path in paths]
        if device is not None:
            models = [model.to(device) for model in models]
        if dtype in (None, "auto") and all(model.device.type == "cpu" for model in models):
            is_int8 = all(find_int8_weights(path, **model_options) for path in paths)
        models = [convert_for_cpu(model) for model in models]
        options |= location_options(model_options)
        tokenizers = load_tokenizers(paths[0], models[0].config, **options)
        target_ids = None
        if shortlist is not None:
            hashes = [vocabulary_sha256(tokenizer) for tokenizer in tokenizers]
            target_ids = Shortlist.read(shortlist)
            target_ids.check_model(hashes, languages, shortlist)
        engine = TorchEngine(models, int8=is_int8, shortlist=target_ids)
        return cls(None, *tokenizers, engine=engine)

    @classmethod
    def _from_ctranslate2(cls, folder: Path, device: str) -> Self:
        check_package("ctranslate2", "ctranslate2")
        from .ctranslate2_engine import CTranslate2Engine

        folders = (folder / SOURCE_TOKENIZER_FOLDER, folder / TARGET_TOKENIZER_FOLDER)
        # transformers would read the path of a missing folder as a repository.
        check_directory(folders[0], "Write one with: aiayn export-ctranslate2.")
        source, target = (
            load_tokenizer(path, trust_remote_code=False, local_files_only=True) for path in folders
        )
        return cls(None, source, target, engine=CTranslate2Engine(folder, source, target, device))

    @property
    def model(self) -> AiaynForConditionalGeneration:
        """The model, or the first of an ensemble. An exported model raises a ValueError."""
        if not self.models:
            raise ValueError(
                "This translator runs an exported model, which gives neither weights nor "
                "attention. Load the folder that it was exported from."
            )
        return self.models[0]

    def search_options(self, **given: Any) -> SearchOptions:
        """Complete options with an imported model's defaults, else those of SearchOptions."""
        return SearchOptions(**{**self.engine.search_defaults, **given})

    def __call__(
        self,
        texts: Iterable[str],
        *,
        source_lang: str | None = None,
        target_lang: str | Sequence[str] | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
        show_progress: bool = False,
        split_sentences: bool = False,
        **search_options: Any,
    ) -> list[str]:
        """Translate texts, each into one line, in their order.

        Args:
            texts: Sentences. If one has more than 512 tokens, it is truncated, with a warning.
            source_lang: Language of the texts, for a multilingual model. None: the default.
            target_lang: Language of the translations, or a list with a language for each text.
            batch_size: Maximum number of sentences in a batch.
            max_tokens_per_batch: Maximum number of source tokens in a batch, padding included.
            show_progress: Whether to show a bar on stderr.
            split_sentences: Whether a text may have several sentences and lines.
            **search_options: Fields of `SearchOptions`, such as num_beams; `search_options` gives
                the defaults. nbest must be 1: use `stream` for several translations.

        Raises:
            ValueError: nbest is more than 1, the model does not have a language, or as for
                `stream`.
        """
        check_several(texts)
        options = self.search_options(**search_options)
        options.check_one_translation()
        self.engine.check_options(options)
        splits = [
            self.split(text, source_lang) if split_sentences else SplitText([text], ["", ""])
            for text in texts
        ]
        is_one = target_lang is None or isinstance(target_lang, str)
        targets: Any = [target_lang] * len(splits) if is_one else target_lang
        pairs = zip(splits, targets, strict=True)
        sentences = [(text, target) for split, target in pairs for text in split.sentences]
        pool = [
            SourceText(number, text, languages=self.direction(source_lang, target))
            for number, (text, target) in enumerate(sentences)
        ]
        with translation_bar(len(pool), show_progress) as report:
            results = self.translate_pool(pool, options, batch_size, max_tokens_per_batch, report)
        translations = iter([best.text for best, *_ in results])
        return [split.joined([next(translations) for _ in split.sentences]) for split in splits]

    def split(self, text: str, source_lang: str | None = None) -> SplitText:
        """Split a text into sentences, by the rules of source_lang or the model's language."""
        language = iso_639(source_lang) if source_lang else self.codes[0]
        return SplitText.of(text, language or DEFAULT_LANGUAGES[0])

    def stream(
        self,
        texts: Iterable[str],
        options: SearchOptions | None = None,
        *,
        prefixes: Iterable[str] | None = None,
        batch_size: int = BATCH_SIZE,
        max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
        pool_size: int = POOL_SIZE,
        report: Callable[[int, int], object] | None = None,
    ) -> Iterator[list[Translation]]:
        """Translate texts as they come; memory does not grow with their number.

        Args:
            texts: Sentences.
            options: How to search. None: the defaults of `search_options`.
            prefixes: The beginning of each translation, one for each text.
            batch_size: Maximum number of sentences in a batch.
            max_tokens_per_batch: Maximum number of source tokens in a batch, padding included.
            pool_size: Sentences to read before the first translation; they are sorted by length.
            report: Called after each batch with its numbers of sentences and of target tokens.

        Returns:
            The nbest translations of each text, best first, in the order of the texts.

        Raises:
            ValueError: The engine does not support the options. While texts are read: the numbers
                of texts and prefixes differ.
        """
        options = options or self.search_options()
        self.engine.check_options(options)
        for column in (texts, prefixes):
            check_several(column)
        pools = read_pools(source_texts(texts, prefixes), pool_size)
        return self.translate_pools(pools, options, batch_size, max_tokens_per_batch, report)

    def translate_pools(
        self, pools: Iterable[Sequence[SourceText]], *arguments: Any, **named: Any
    ) -> Iterator[list[Translation]]:
        """Translate one pool after another; the arguments are those of `translate_pool`."""
        for pool in pools:
            yield from self.translate_pool(pool, *arguments, **named)

    def translate_pool(
        self,
        pool: Sequence[SourceText],
        options: SearchOptions,
        batch_size: int = BATCH_SIZE,
        max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
        report: Callable[[int, int], object] | None = None,
    ) -> list[list[Translation]]:
        """Translate texts that are all in memory; arguments are those of `stream`."""
        report = report or (lambda *_: None)
        segments = [Segment.of(given.text) for given in pool]
        results: list[list[Translation]] = []
        read: dict[int, SourceText] = {}  # what the model reads, by index
        for index, (given, segment) in enumerate(zip(pool, segments, strict=True)):
            known = self._remembered(given)
            is_forced = given.text.strip() and given.prefix
            if known is None and (has_words(segment.block.text) or is_forced):
                languages = given.languages or self.direction()
                read[index] = given._replace(text=segment.block.text, languages=languages)
                results.append([])
            else:  # in the memory, or no words
                copied = known or " ".join(clean_text(given.text).splitlines())
                results.append([Translation(given.text, copied, 0.0, 0.0, ())])
        report(len(pool) - len(read), 0)
        filled = [*read]
        terms = [self._terms(given) for given in read.values()]
        sentences = self._encoded([*read.values()], terms)
        for batch, hypotheses in self.engine.searches(
            sentences, options, batch_size, max_tokens_per_batch
        ):
            found = [
                (index, each)
                for index, best in zip(batch, hypotheses, strict=True)
                for each in best
            ]
            ids = [each.token_ids[sentences[index].certain :] for index, each in found]
            texts = decode_lines(self.target_tokenizer, ids)
            for (index, each), text in zip(found, texts, strict=True):
                place, scores = filled[index], (each.score, each.log_probability)
                if not pool[place].prefix:  # which must stay
                    text = with_numbers(read[place].text, text)
                results[place].append(Translation(pool[place].text, text, *scores, each.token_ids))
            report(len(batch), sum(len(best[0].token_ids) for best in hypotheses if best))
        for index in filled:
            if not results[index]:
                text = "Sentence %d: no translation is allowed by the options of the search."
                logger.warning(text, pool[index].number + 1)
                results[index] = [Translation(pool[index].text, "", 0.0, 0.0, ())]
        self._complete(results, segments, pool, dict(zip(filled, terms, strict=True)))
        return results

    def _complete(
        self,
        results: list[list[Translation]],
        segments: Sequence[Segment],
        pool: Sequence[SourceText],
        terms: Mapping[int, Sequence[Term]],
    ) -> None:
        """Insert the copied parts of the sources, and missing terms, into the translations."""
        rows: dict[Languages | None, list[tuple[int, int, list[Mark]]]] = defaultdict(list)
        for index, some in terms.items():
            segment = segments[index]
            for rank, found in enumerate(results[index]):
                marks = [term.mark() for term in some if not term.is_in(found.text)]
                if found.token_ids and (segment.bullet or segment.block.marks or marks):
                    rows[pool[index].languages].append((index, rank, marks))
        for languages, these in rows.items():
            pairs = [
                (segments[index].block.text, results[index][rank].text)
                for index, rank, marks in these
                if marks or segments[index].has_inner_marks
            ]
            found_at = dict(
                zip(pairs, word_attentions(self.directed(languages), pairs), strict=True)
            )
            for index, rank, marks in these:
                segment, found = segments[index], results[index][rank]
                text = segment.joined(found.text, lambda *pair, at=found_at: at[pair], marks)
                results[index][rank] = replace(found, text=text, read=segment.block.text)

    def score(
        self,
        texts: Iterable[str],
        targets: Iterable[str],
        options: SearchOptions | None = None,
        *,
        batch_size: int = BATCH_SIZE,
        max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
    ) -> list[Translation]:
        """Compute the log-probability of given translations.

        Args:
            texts: Sentences.
            targets: A translation of each; truncated to `max_target_tokens`, with a warning.
            options: Only the length penalty is used.
            batch_size: Maximum number of sentences in a batch.
            max_tokens_per_batch: Maximum number of source, or of target, tokens in a batch, padding
                included.

        Returns:
            The translations with their scores, in the order of the texts.

        Raises:
            ValueError: There are more texts than targets, or fewer.
        """
        check_several(texts)
        check_several(targets)
        options = options or self.search_options()
        given = list(zip(texts, targets, strict=True))
        certain = len(self.first_ids(self.direction()))
        sources, ids = [], []
        for number, (text, target) in enumerate(given, start=1):
            sources.append(self.encode(text, f"Sentence {number}"))
            ids.append(self.encode_target(target, f"Sentence {number}"))
        lengths = [max(len(a), len(b)) for a, b in zip(sources, ids, strict=True)]
        scored: dict[int, Translation] = {}
        for batch in batches_by_length(lengths, batch_size, max_tokens_per_batch):
            totals = self.engine.score(
                [sources[i] for i in batch], [ids[i] for i in batch], certain
            )
            for i, total in zip(batch, totals, strict=True):
                score = normalized_score(total, len(ids[i]), options)
                scored[i] = Translation(*given[i], score, total, tuple(ids[i]))
        return [scored[index] for index in range(len(given))]

    def encode(self, text: str, name: str = "A text") -> list[int]:
        """Encode a text, truncated to `max_source_tokens`; the warning calls it `name`."""
        return self._cut(self._source_ids([text])[0], name, self.max_source_tokens)

    def is_too_long(self, text: str) -> bool:
        """Whether a text has more than `max_source_tokens`, so that it would be truncated."""
        return len(self._source_ids([text])[0]) > self.max_source_tokens

    def source_text(self, text: str) -> str:
        """Prepare a sentence for its tokenizer: strip it, and replace unusual characters.

        A special space inside a longer token stays: French models may know the space before "?". A
        character that the vocabulary lacks, such as a ligature, is normalized by NFKC, or removed
        if it is invisible.
        """
        text = clean_text(text.translate(INVISIBLE))
        text = self._blanks.sub(lambda found: found[1] or " ", text)
        if self._signs.issuperset(text):
            return text
        signs = (x if x in self._signs else unicodedata.normalize("NFKC", x) for x in text)
        visible = (x for x in signs if x in self._signs or unicodedata.category(x[:1]) != "Cf")
        return unicodedata.normalize("NFC", "".join(visible))

    @cached_property
    def _signs(self) -> set[str]:
        return {" "}.union(*self.source_tokenizer.get_vocab())

    @cached_property
    def _blanks(self) -> re.Pattern[str]:
        # A special space that is a token by itself, or is spelled in bytes, was too rare to learn.
        blanks = f"[{''.join(BLANKS)}]"
        tokens = (token for token in self.source_tokenizer.get_vocab() if len(token) > 1)
        known = [re.escape(token) for token in tokens if re.search(blanks, token)]
        return re.compile(f"({'|'.join(known) or '(?!)'})|{blanks}")

    def encode_target(self, text: str, name: str = "A translation") -> list[int]:
        """Encode a translation, truncated to `max_target_tokens`; the warning calls it `name`."""
        languages = self.direction()
        if self.needs_languages and self._tags and languages:
            (ids,) = self._tags.encode_target([clean_text(text)], languages[1])
        else:
            ids = self.target_tokenizer(clean_text(text)).input_ids
            ids = [*self.first_ids(languages), *ids]
        return self._cut(ids, name, self.max_target_tokens)

    def first_ids(self, languages: Languages | None) -> list[int]:
        """Return the ids that begin every translation of a direction."""
        if self._tags and languages:
            return self._tags.first_ids(languages[1])
        forced = self.engine.rules.forced_bos_token_id
        return [] if forced is None else [forced]

    def _cut(self, ids: list[int], name: str, limit: int) -> list[int]:
        if len(ids) <= limit:
            return ids
        logger.warning("%s: cut from %d to %d tokens.", name, len(ids), limit)
        ends = hidden_ids(self.source_tokenizer) | hidden_ids(self.target_tokenizer)
        kept = next((n for n, token in enumerate(reversed(ids)) if token not in ends), 0)
        return [*ids[: limit - kept], *ids[len(ids) - kept :]]

    def _source_ids(
        self, texts: Sequence[str], languages: Languages | None = None
    ) -> list[list[int]]:
        """Encode texts of one direction, by default the translator's."""
        self._warn_of_several(texts)
        clean = [self.source_text(text) for text in texts]
        languages = languages or self.direction()
        if self._tags and languages:
            return self._tags.encode(clean, *languages)
        return [np.asarray(ids).tolist() for ids in self._encode_texts(clean)]

    def _warn_of_several(self, texts: Sequence[str]) -> None:
        for text in texts if not self._several else ():
            # Splitting takes as long as tokenizing, so only likely texts are split.
            is_likely = INNER_END.search(text.rstrip(LAST_SIGNS))
            if is_likely and sum(map(has_words, self.split(text).sentences)) > 1:
                self._several.append(text)
                logger.warning(
                    "A text has several sentences: %r. A model translates one at a time. Split "
                    "such texts: pass split_sentences=True, or --format text.",
                    text[:80],
                )
                return

    def _encoded(
        self, pool: Sequence[SourceText], terms: Sequence[Sequence[Term]]
    ) -> list[SourceSentence]:
        encoded: dict[Languages | None, Iterator[list[int]]] = {}
        for languages in dict.fromkeys(given.languages for given in pool):
            texts = [given.text for given in pool if given.languages == languages]
            encoded[languages] = iter(self._source_ids(texts, languages))
        return [
            self._sentence(given, next(encoded[given.languages]), some)
            for given, some in zip(pool, terms, strict=True)
        ]

    def _sentence(self, given: SourceText, ids: list[int], terms: Sequence[Term]) -> SourceSentence:
        name = f"Sentence {given.number + 1}"
        room = self.max_target_tokens - 1  # leaves room for `</s>`
        tag = self.first_ids(given.languages)
        prefix = [*tag, *self._part_ids(given.prefix)]
        prefix = self._cut(prefix, f"{name}, prefix", room)
        phrases = [term.forms for term in terms]
        source = self._cut(ids, name, self.max_source_tokens)
        return SourceSentence(source, prefix, phrases, len(tag), given.number)

    def _terms(self, given: SourceText) -> list[Term]:
        """Find the glossary's terms in a text."""
        if self._glossary is None or self._glossary[0] != given.languages:
            return []
        return self._glossary[1].terms(given.text)

    def _remembered(self, given: SourceText) -> str | None:
        """Return a text's translation in the translation memory."""
        if self._memory is None or self._memory[0] != (given.languages or self.direction()):
            return None
        return self._memory[1].get(clean_text(given.text))

    def _part_ids(self, text: str) -> list[int]:
        part = clean_text(text)
        options: Any = {"add_special_tokens": False, "split_special_tokens": True}
        return self.target_tokenizer(part, **options).input_ids if part else []


def _common_languages(
    paths: Sequence[str | Path], hub: bool, location: dict[str, Any]
) -> Languages | None:
    saved = {str(path): saved_languages(path, hub, **location) for path in paths}
    known = {languages for languages in saved.values() if languages is not None}
    if len(known) > 1:
        raise ValueError(f"The models of an ensemble must have the same languages, got {saved}.")
    return next(iter(known), None)


def convert_for_cpu(model: AiaynForConditionalGeneration) -> AiaynForConditionalGeneration:
    """Copy a float16 model on a CPU to float32, which CPUs compute; return others unchanged."""
    if model.device.type == "cpu" and model.dtype == torch.float16:
        return copy.deepcopy(model).float()
    return model


def check_package(name: str, extra: str) -> None:
    """Check that an optional package is installed; extra is the extra that installs it."""
    if find_spec(name) is None:
        raise ModuleNotFoundError(
            f"The package {name} is not installed. Install it, or modeling_aiayn[{extra}]."
        )
