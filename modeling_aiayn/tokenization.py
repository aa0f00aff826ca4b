"""Section 5.1: vocabularies, as fast tokenizers that AutoTokenizer loads without code of ours."""

import hashlib
import json
import re
from collections.abc import Iterable

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.trainers import BpeTrainer, WordLevelTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

# In the order of their ids. Padding is not 0: beam search fills with eos where it is.
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
# Where a model folder keeps the target's tokenizer, if the vocabulary is not shared.
TARGET_TOKENIZER_FOLDER = "target_tokenizer"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def train_bpe_tokenizer(
    texts: Iterable[str], vocab_size: int = 10_000, lowercase: bool = False
) -> PreTrainedTokenizerFast:
    """Section 5.1's byte-pair encoding, shared by source and target.

    Characters that the texts do not have are spelt in bytes, so nothing is unknown and every text
    but one with the space sign U+2581 in it comes back as it was; in lower case if asked.

    Args:
        texts: Sentences of both languages.
        vocab_size: Entries at most, special tokens and the 256 bytes included.
        lowercase: Whether case is given up, for scores without case (Wu et al. 2021).

    Returns:
        A tokenizer that ends what it encodes in `</s>` and takes special tokens in user text for
        text.

    Raises:
        ValueError: vocab_size leaves no room for the characters of the texts, or there are none.
    """
    if vocab_size <= len(BYTE_TOKENS) + len(SPECIAL_TOKENS):
        raise ValueError(
            f"vocab_size must hold {len(SPECIAL_TOKENS)} special tokens, {len(BYTE_TOKENS)} bytes "
            f"and the characters of the texts, got {vocab_size}."
        )
    tokenizer = Tokenizer(models.BPE())
    spaces = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Lowercase(), *spaces] if lowercase else spaces
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(SPACE, behavior="merged_with_next"),
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
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(BYTE_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() <= len(SPECIAL_TOKENS):
        raise ValueError("Training a vocabulary needs text, got none.")
    if tokenizer.get_vocab_size() + len(BYTE_TOKENS) > vocab_size:
        raise ValueError(
            f"vocab_size must hold special tokens, bytes and every character of the texts, at "
            f"least {tokenizer.get_vocab_size() + len(BYTE_TOKENS)} entries, got {vocab_size}."
        )
    tokenizer.model = _with_byte_fallback(tokenizer)
    return _wrap(tokenizer)


def train_word_tokenizer(
    texts: Iterable[str], min_frequency: int = 2, lowercase: bool = True
) -> PreTrainedTokenizerFast:
    """The seed documents' vocabulary: lower-case words seen often enough, `<unk>` for others.

    Args:
        texts: Sentences. For a vocabulary of its own on either side, train one on each.
        min_frequency: How often a word must occur to have an entry.
        lowercase: Whether case is given up.

    Returns:
        A tokenizer that ends what it encodes in `</s>` and takes special tokens in user text for
        text.

    Raises:
        ValueError: There is no text, or no word is frequent enough.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
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
    return _wrap(tokenizer)


def train_character_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """A vocabulary of a text's characters, for language models.

    Args:
        text: The text to train on.

    Returns:
        A tokenizer whose ids go up with the characters' code points; it ends nothing in `</s>`.

    Raises:
        ValueError: There is no text.
    """
    if not text:
        raise ValueError("Training a vocabulary needs text, got none.")
    tokens = [*SPECIAL_TOKENS, *sorted(set(text))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrap(tokenizer, ends_texts=False)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A vocabulary of the 256 bytes, for language models: nothing is to be learnt.

    Returns:
        A tokenizer of UTF-8, byte b being 4 + b; it ends nothing in `</s>`.
    """
    # A visible character for each byte, as GPT-2 has them: only this decoder keeps what is UTF-8
    # where a byte beside it is not.
    signs = bytes_to_unicode()
    tokens = [*SPECIAL_TOKENS, *(signs[byte] for byte in range(256))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrap(tokenizer, ends_texts=False)


def clean_text(text: str) -> str:
    """Stripped text in which a lone surrogate, which is no character, is U+FFFD."""
    return replace_surrogates(text.strip())


def replace_surrogates(text: str) -> str:
    """Text in which a lone surrogate, which is no character, is U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def decode_lines(
    tokenizer: PreTrainedTokenizerBase, sequences: Iterable[Iterable[int]]
) -> list[str]:
    """Generated ids as text, a line each; what a word vocabulary does not know stays `<unk>`.

    The library's skip_special_tokens would drop `<unk>` too, and a hole would look like a sentence.

    Args:
        tokenizer: Tokenizer of the target.
        sequences: Ids of each sentence, with or without start, end and padding.

    Returns:
        As many lines.
    """
    silent = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    texts = (
        tokenizer.decode([token_id for token_id in sequence if token_id not in silent])
        for sequence in sequences
    )
    return [" ".join(text.splitlines()) for text in texts]


def _with_byte_fallback(tokenizer: Tokenizer) -> models.BPE:
    """The trained model with an entry for each byte; the trainer itself knows none."""
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


def _wrap(tokenizer: Tokenizer, ends_texts: bool = True) -> PreTrainedTokenizerFast:
    eos, eos_id = "</s>", SPECIAL_TOKENS.index("</s>")
    if ends_texts:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, eos_id)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token=eos,
        unk_token="<unk>",
        split_special_tokens=True,
    )


def vocabulary_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    """A fingerprint of which token has which id.

    Args:
        tokenizer: Any tokenizer.

    Returns:
        SHA-256 of its entries in the order of their ids, in hexadecimal.
    """
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()
