"""Section 5.1: vocabularies, as fast tokenizers that AutoTokenizer loads without this package."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from transformers import AddedToken, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

# In the order of their ids. If padding had the id 0, generate() would pad beams with eos.
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# Stands before a source that a model wrote (Caswell et al. 2019, arXiv:1906.06442).
BACK_TRANSLATED = "<bt>"
# Subfolder of the source's tokenizer in the folder of an exported model.
SOURCE_TOKENIZER_FOLDER = "source_tokenizer"
# Subfolder of the target's tokenizer in a model folder, if the vocabulary is not shared.
TARGET_TOKENIZER_FOLDER = "target_tokenizer"
MAX_WORD_LENGTH = 1000
MAX_WORDS = 500_000  # words whose ids are cached
# All Unicode whitespace except the plain space: tab, line ends, the non-breaking space, ...
BLANKS = [blank for blank in map(chr, range(0x3001)) if blank.isspace() and blank != " "]
LONG_WORD = re.compile(rf"\S{{{MAX_WORD_LENGTH}}}(?=\S)")
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
# The first character of a word that is spelled like a special token.
SPECIAL_TEXT = Regex("^<(?=(s|pad|/s|unk)>$)")
# Language tags of NLLB-200, and language tags in sources of OPUS-MT and of our own models.
NLLB_TAG = re.compile("([a-z]{3}_[A-Z][a-z]{3})")
TYPED_TAG = re.compile(r">>([\w-]+)<<|<2([\w-]+)>")


class PortableTokenizer(PreTrainedTokenizerFast):
    """A tokenizer that is saved under a class name that both transformers 4 and 5 know."""


# transformers 5 would write "TokenizersBackend", which transformers 4 does not have.
PortableTokenizer.__name__ = "PreTrainedTokenizerFast"


def portable_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Turn a loaded PreTrainedTokenizerFast into a `PortableTokenizer`; leave others unchanged."""
    if type(tokenizer) is PreTrainedTokenizerFast:
        tokenizer.__class__ = PortableTokenizer
    return tokenizer


def train_tokenizer(
    texts: Iterable[str], kind: str, vocab_size: int, min_frequency: int, lowercase: bool = False
) -> PreTrainedTokenizerFast:
    """Train a tokenizer; kind is "bpe", "word" or "token".

    Only "bpe" uses vocab_size; "word" and "token" use min_frequency. "word" always lower-cases.
    """
    if kind == "bpe":
        return train_bpe_tokenizer(texts, vocab_size, lowercase)
    if kind == "word":
        return train_word_tokenizer(texts, min_frequency)
    if kind == "token":
        return train_word_tokenizer(texts, min_frequency, lowercase, is_tokenized=True)
    raise ValueError(f"vocabulary must be bpe, word or token, got {kind!r}.")


def train_bpe_tokenizer(
    texts: Iterable[str], vocab_size: int = 10_000, lowercase: bool = False
) -> PreTrainedTokenizerFast:
    """Train section 5.1's byte-pair encoding, shared by source and target.

    A character that does not occur in the texts is encoded as its bytes, so there are no unknown
    tokens. Decoding restores every text, with two exceptions: U+2581 becomes a space, and with
    lowercase all text is lower-case.

    Args:
        texts: Sentences of both languages. Words of more than 1,000 characters are split, because
            training time grows with the square of their length.
        vocab_size: Maximum number of entries, including special tokens and the 256 bytes.
        lowercase: Whether to lower-case all text, for case-insensitive scores (Wu et al. 2021).

    Returns:
        A tokenizer that appends `</s>`, and encodes special tokens in user text as ordinary text.

    Raises:
        ValueError: vocab_size is too small for the characters of the texts.
    """
    tokenizer = _untrained_bpe(lowercase)
    trainer = BpeTrainer(
        vocab_size=max(0, vocab_size - len(BYTE_TOKENS)),
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(map(_split_long_words, texts), trainer)
    # The trainer adds every character, even if there are more than vocab_size.
    entries = tokenizer.get_vocab_size() + len(BYTE_TOKENS)
    if entries > vocab_size:
        raise ValueError(
            f"vocab_size must hold special tokens, bytes and every character of the texts, at "
            f"least {entries} entries, got {vocab_size}."
        )
    tokenizer.model = _with_byte_fallback(tokenizer)
    return wrap_tokenizer(tokenizer)


def train_word_tokenizer(
    texts: Iterable[str], min_frequency: int = 2, lowercase: bool = True, is_tokenized: bool = False
) -> PreTrainedTokenizerFast:
    """Train a vocabulary of frequent words (docs/seeds.md), with `<unk>` for all other words.

    The tokenizer appends `</s>`, and encodes special tokens in user text as ordinary text. With
    is_tokenized, it splits texts only at spaces; but it also splits words that are spelled like
    special tokens, such as `</s>` into `<` and `/s>`.

    Raises:
        ValueError: There is no text, or no word occurs min_frequency times.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    if is_tokenized:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(SPECIAL_TEXT, "isolated")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    trainer = WordLevelTrainer(
        vocab_size=2**31,
        min_frequency=min_frequency,
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= len(SPECIAL_TOKENS):
        raise ValueError(
            f"Training a vocabulary needs words that occur at least min_frequency={min_frequency} "
            "times, got none."
        )
    return wrap_tokenizer(tokenizer)


class WordIds:
    """Encodes texts as a tokenizer of `train_bpe_tokenizer` does, and caches the ids of words.

    The tokenizer encodes each word between spaces separately, and most words of a corpus occur
    again. So a sentence takes a quarter of the time.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.backend: Tokenizer = tokenizer.backend_tokenizer
        self.end = np.int32(tokenizer.eos_token_id).tobytes()
        self.ids: dict[str, bytes] = {}  # int32

    def encode(self, texts: list[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each text, with `</s>` at the end."""
        words = [text.split(" ") if text else [] for text in texts]
        new = {*chain.from_iterable(words)}.difference(self.ids)
        if len(self.ids) + len(new) > MAX_WORDS:
            self.ids.clear()
            new = {*chain.from_iterable(words)}
        # Between two adjacent spaces is an empty word; a text of one space has two empty words.
        for word, ids in zip(new, self._encode([word or " " for word in new]), strict=True):
            self.ids[word] = np.array(ids if word else ids[::2], np.int32).tobytes()
        joined = (b"".join([*map(self.ids.__getitem__, text), self.end]) for text in words)
        return [np.frombuffer(ids, np.int32) for ids in joined]

    def _encode(self, words: list[str]) -> list[list[int]]:
        self.backend.encode_special_tokens = True
        self.backend.no_truncation()
        self.backend.no_padding()
        encodings = self.backend.encode_batch_fast(words, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]


def text_encoder(tokenizer: Any) -> Callable[[list[str]], Sequence[Any]]:
    """Return a function that encodes texts exactly as a tokenizer does, and faster if possible."""
    encode = None if language_tags(tokenizer) else word_encoder(tokenizer)
    return encode or partial(_library_ids, tokenizer)


def word_encoder(tokenizer: Any) -> Callable[[list[str]], Sequence[NDArray[np.int32]]] | None:
    """Return `WordIds.encode` if it gives the tokenizer's ids of texts without tags, else None."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    alike = [_untrained_bpe(lowercase) for lowercase in (False, True)]
    if (
        backend is not None
        and any(_splits_alike(backend, one) for one in alike)
        # An added token may span several words. Special tokens are encoded as text.
        and all(x.special or TYPED_TAG.fullmatch(x.content) for x in added)
        and tokenizer.split_special_tokens
    ):
        return WordIds(tokenizer).encode
    return None


def _library_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    return tokenizer(texts, return_attention_mask=False).input_ids


def _splits_alike(tokenizer: Tokenizer, other: Tokenizer) -> bool:
    parts = [(str(one.normalizer), str(one.pre_tokenizer)) for one in (tokenizer, other)]
    return parts[0] == parts[1]


def train_character_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Build a vocabulary of a text's characters, for language models.

    Ids follow the order of code points. The tokenizer does not append `</s>`. In a text, `</s>` is
    the special token; a call with split_special_tokens=True reads it as four characters.
    """
    tokens = [*SPECIAL_TOKENS, *sorted(set(text))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return wrap_tokenizer(tokenizer, has_eos=False)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Build the vocabulary of the 256 bytes, for language models.

    A text becomes its UTF-8 bytes; byte b has the id 4 + b. The tokenizer does not append `</s>`.
    In a text, `</s>` is the special token; a call with split_special_tokens=True reads four bytes.
    """
    # Each byte becomes GPT-2's visible character for it, for the ByteLevel decoder: only this
    # decoder keeps valid UTF-8 next to an invalid byte.
    signs = bytes_to_unicode()
    tokens = [*SPECIAL_TOKENS, *(signs[byte] for byte in range(256))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrap_tokenizer(tokenizer, has_eos=False)


def clean_text(text: str) -> str:
    """Strip a text, and replace lone surrogates, which no encoding can represent."""
    return replace_surrogates(text.strip())


def has_words(text: str) -> bool:
    """Whether there is anything to translate: a letter of any script."""
    return any(map(str.isalpha, text))


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which no encoding can represent, with U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def is_tokenizer_failure(error: BaseException) -> bool:
    """Whether an error is from the package tokenizers: a plain Exception, or a PanicException."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


def decode_lines(
    tokenizer: PreTrainedTokenizerBase, sequences: Iterable[Iterable[int]]
) -> list[str]:
    """Decode generated ids, each sequence into one line, without start, end and padding."""
    hidden = hidden_ids(tokenizer)
    texts = (
        tokenizer.decode([token_id for token_id in sequence if token_id not in hidden])
        for sequence in sequences
    )
    return [" ".join(text.splitlines()) for text in texts]


def hidden_ids(tokenizer: PreTrainedTokenizerBase) -> set[int | None]:
    """Return the ids that decoding leaves out: start, end, padding and language tags.

    skip_special_tokens would also drop `<unk>`, and hide that a word is missing.
    """
    ends = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    return ends.union(language_tags(tokenizer).values())


def language_tags(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Map each language of a tokenizer to the id of its tag."""
    return _language_tags(tokenizer, len(tokenizer))


@lru_cache(maxsize=16)
def _language_tags(tokenizer: PreTrainedTokenizerBase, _: int) -> dict[str, int]:
    if ids := getattr(tokenizer, "lang_code_to_id", None):  # M2M100Tokenizer's
        return ids
    shape = NLLB_TAG if hasattr(tokenizer, "set_src_lang_special_tokens") else TYPED_TAG
    tokens = [*tokenizer.get_added_vocab(), *getattr(tokenizer, "supported_language_codes", ())]
    tags = {tag[tag.lastindex or 1]: tag[0] for tag in map(shape.fullmatch, tokens) if tag}
    return {name: tokenizer.convert_tokens_to_ids(tags[name]) for name in sorted(tags)}


def _split_long_words(text: str) -> str:
    return LONG_WORD.sub(r"\g<0> ", text) if len(text) > MAX_WORD_LENGTH else text


def _untrained_bpe(lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    spaces = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), *spaces] if lowercase else spaces
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            # Splits like Split(SPACE, "merged_with_next"), which transformers.js implements
            # differently. The normalizer has put SPACE before the first word.
            pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=True),
            pre_tokenizers.Punctuation(behavior="isolated"),
        ]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def _with_byte_fallback(tokenizer: Tokenizer) -> models.BPE:
    # Insert the byte tokens, which the trainer does not add.
    trained = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    first_learned = len(SPECIAL_TOKENS)
    tokens[first_learned:first_learned] = BYTE_TOKENS
    return models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge) for merge in trained["merges"]],
        unk_token="<unk>",
        byte_fallback=True,
    )


def wrap_tokenizer(tokenizer: Tokenizer, has_eos: bool = True) -> PreTrainedTokenizerFast:
    """Convert to a transformers tokenizer, which appends `</s>` unless has_eos is false."""
    eos, eos_id = "</s>", SPECIAL_TOKENS.index("</s>")
    if has_eos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, eos_id)]
        )
    return PortableTokenizer(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token=eos,
        unk_token="<unk>",
        # In a sentence to translate, </s> is ordinary text. In the training text of a language
        # model, it ends a document and must become one token.
        split_special_tokens=has_eos,
        # transformers 4 and transformers.js would remove spaces before punctuation.
        clean_up_tokenization_spaces=False,
    )


def source_token(token: str) -> AddedToken:
    """A token that users may write in a source, such as <2fr>. A written <bt> is ordinary text."""
    # The normalizer would prepend a space.
    options = {"normalized": False, "lstrip": True, "rstrip": True}
    return AddedToken(token, special=token == BACK_TRANSLATED, **options)


def vocabulary_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash the vocabulary: SHA-256 of its entries in the order of their ids, in hexadecimal."""
    return _sha256_of(_entries(tokenizer))


def has_vocabulary(tokenizer: PreTrainedTokenizerBase, sha256: str) -> bool:
    """Whether the vocabulary has this hash, or had it before tokens were appended."""
    entries = _entries(tokenizer)
    sizes = range(len(entries), len(entries) - len(tokenizer.get_added_vocab()) - 1, -1)
    return any(_sha256_of(entries[:size]) == sha256 for size in sizes)


def _entries(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, int]]:
    return sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])


def _sha256_of(entries: list[tuple[str, int]]) -> str:
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()
