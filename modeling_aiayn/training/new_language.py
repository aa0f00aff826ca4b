"""Teach a saved model's vocabulary a new language: its tag, and its letters and frequent pieces."""

import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AddedToken, PreTrainedTokenizerBase

from ..data.lines import read_lines
from ..modeling_aiayn import AiaynForConditionalGeneration
from ..saved.languages import LanguageTags
from ..tokenization import NLLB_TAG, SPACE, vocabulary_sha256

logger = logging.getLogger(__name__)

MIN_COUNT = 2  # minimum count of a new character or piece in the texts
# Each piece of a word is written as one character, from this code point on. None is whitespace.
FIRST_CHARACTER = 0x10000


def add_language(
    model: AiaynForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, name: str, like: str
) -> None:
    """Append a language's tag to the vocabulary; its embedding is a copy of like's.

    Raises:
        ValueError: The model does not have the language like, has name already, or its tokenizer
            cannot have a language of that name.
    """
    tags: Any = LanguageTags.of(tokenizer)
    if tags is None or not tokenizer.is_fast:
        raise ValueError("add_language needs a model with tags of languages, such as NLLB-200.")
    like = tags.check(like, "like")
    if name in tags.ids or not (tags.is_typed or NLLB_TAG.fullmatch(name)):
        raise ValueError(f"add_language must be a new language, as in gsw_Latn, got {name!r}.")
    token = str(tokenizer.convert_ids_to_tokens(tags.ids[like])).replace(like, name)
    known = tokenizer.added_tokens_decoder[tags.ids[like]]
    options = {option: getattr(known, option) for option in ("normalized", "lstrip", "rstrip")}
    tokenizer.add_tokens([AddedToken(token, **options)], special_tokens=known.special)
    new = tokenizer.convert_tokens_to_ids(token)
    set_embeddings(model, tokenizer, {new: [tags.ids[like]]})
    logger.info("Added the language %s as token %d, like %s.", name, new, like)


def add_pieces(
    model: AiaynForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    files: Sequence[str],
    limit: int,
) -> None:
    """Add characters of texts that are missing in a vocabulary, and at most limit frequent pieces.

    Byte-pair encoding (Sennrich et al. 2016) continues on the pieces of the texts' words, so new
    merges come after all others. The embedding of a new piece is the mean of the embeddings of the
    pieces that spelled it before. If they were unknown, it is the mean of all embeddings.

    Raises:
        ValueError: The tokenizer does not use byte-pair encoding.
    """
    texts = [line for file in files for line in read_lines(file)]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.BPE):
        raise ValueError("add_pieces_from needs a tokenizer of byte-pair encoding, as NLLB-200's.")
    before, words = _statistics(tokenizer, texts), _words(backend, texts)
    characters = Counter[str]()
    for word, count in words.items():
        characters.update({character: word.count(character) * count for character in {*word}})
    # Include added tokens: if the BPE model's ids had a gap, loading would change their ids.
    vocabulary = tokenizer.get_vocab()
    missing = sorted(x for x, n in characters.items() if x not in vocabulary and n >= MIN_COUNT)
    spelled = {x: [piece.id for piece in backend.model.tokenize(x)] for x in missing}
    vocabulary |= {character: len(vocabulary) + n for n, character in enumerate(missing)}
    _replace_model(backend, vocabulary, [])
    merges = _new_merges(backend.model, words, limit)
    for left, right in merges:
        if (piece := left + right) not in vocabulary:
            spelled[piece] = [vocabulary[left], vocabulary[right]]
            vocabulary[piece] = len(vocabulary)
    _replace_model(backend, vocabulary, merges)
    set_embeddings(model, tokenizer, {vocabulary[piece]: ids for piece, ids in spelled.items()})
    logger.info(
        "Added %d characters and %d pieces. The texts had %s, and now have %s.",
        *(len(missing), len(spelled) - len(missing), before, _statistics(tokenizer, texts)),
    )


def _statistics(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> str:
    options: Any = {"add_special_tokens": False, "split_special_tokens": True}
    ids = [token for text in tokenizer(texts, **options).input_ids for token in text]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    unknown = sum(token == tokenizer.unk_token or token.startswith("<0x") for token in tokens)
    return f"{unknown:,} unknown of {len(ids):,} pieces"


def _words(backend: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    words = Counter[str]()
    for text in texts:
        normal = backend.normalizer.normalize_str(text) if backend.normalizer else text
        words.update(word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal))
    return words


def _replace_model(
    backend: Tokenizer, vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]]
) -> None:
    old = json.loads(backend.to_str())["model"]
    kept = [tuple(merge) for merge in old["merges"]]
    given = {"type", "vocab", "merges"}
    options = {name: old[name] for name in old.keys() - given if old[name] is not None}
    backend.model = models.BPE(dict(vocabulary), [*kept, *merges], **options)


def _is_of_word(piece: str) -> bool:
    return piece == SPACE or any(unicodedata.category(sign)[0] in "LM" for sign in piece)


def _new_merges(bpe: models.BPE, words: Mapping[str, int], limit: int) -> list[tuple[str, str]]:
    """Learn the next merges of byte-pair encoding from words and their counts."""
    pieces: dict[str, str] = {}
    written = Counter[str]()
    for word, count in words.items():
        tokens = [token.value for token in bpe.tokenize(word)]
        if any(token.startswith("<") and token not in word for token in tokens):
            continue  # with an unknown character, or its bytes
        for token in tokens:
            # A space replaces punctuation and digits, so that no merge crosses them.
            character = chr(FIRST_CHARACTER + len(pieces)) if _is_of_word(token) else " "
            pieces.setdefault(token, character)
        written["".join(map(pieces.__getitem__, tokens))] += count
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=len({*pieces.values()} - {" "}) + limit,
        min_frequency=MIN_COUNT,
        show_progress=False,
    )
    learner.train_from_iterator((w for w, n in written.items() for _ in range(n)), trainer)
    spelling = {ord(character): piece for piece, character in pieces.items()}
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(left.translate(spelling), right.translate(spelling)) for left, right in merges]


@torch.no_grad()
def set_embeddings(
    model: AiaynForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    spelled: Mapping[int, Sequence[int]],
) -> None:
    """Set the embeddings of new ids to the mean of the embeddings of the ids that spelled them."""
    size = model.config.vocab_size
    if len(tokenizer) > size:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    layers = (model.get_input_embeddings(), model.model.decoder.embed_tokens, model.lm_head)
    weights = {parameter for layer in layers for parameter in layer.parameters()}
    for weight in weights:
        mean = weight[:size].mean(0)
        for new, ids in spelled.items():
            known = [token for token in ids if token != tokenizer.unk_token_id]
            weight[new] = weight[known].mean(0) if known else mean
    if hasattr(model.config, "vocabulary_sha256"):
        model.config.vocabulary_sha256 = [vocabulary_sha256(tokenizer)] * 2
