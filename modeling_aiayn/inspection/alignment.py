"""Which word is whose translation, read off the attention over the source."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Self

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..tokenization import clean_text, decode_lines
from ..translation import Translator
from ..translation.translator import Translation
from .attention_weights import AttentionMaps, attention_maps

Links = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class AttentionChoice:
    """Which of a model's attentions to read.

    Args:
        layer: A layer of the decoder, from 0. None: the mean of all.
        head: One of its heads, from 0. None: the mean of all.
    """

    layer: int | None = None
    head: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The choice that a text names: "mean", a layer, or a layer and a head between commas.

        Raises:
            ValueError: It names none.
        """
        if text == "mean":
            return cls()
        try:
            layer, *heads = map(int, text.split(","))
            head = heads.pop() if heads else None
            if heads:
                raise ValueError(text)
        except ValueError:
            raise ValueError(
                f"An attention is named mean, LAYER or LAYER,HEAD, got {text!r}."
            ) from None
        return cls(layer, head)

    @property
    def flag(self) -> str:
        """What `parse` reads as this."""
        chosen = [str(index) for index in (self.layer, self.head) if index is not None]
        return ",".join(chosen) or "mean"

    def require(self, layers: int, heads: int) -> None:
        """Refuse a layer or head that a model does not have.

        Raises:
            ValueError: There is no such layer or head.
        """
        for name, index, size in (("layer", self.layer, layers), ("head", self.head, heads)):
            if index is not None and not 0 <= index < size:
                raise ValueError(f"{name} must be in [0, {size}), got {index}.")

    def of(self, weights: Tensor) -> Tensor:
        """The chosen attention, [T, S], of all, [layers, H, T, S].

        Raises:
            ValueError: There is no such layer or head.
        """
        self.require(*weights.shape[:2])
        chosen = weights if self.layer is None else weights[self.layer][None]
        chosen = chosen if self.head is None else chosen[:, self.head][:, None]
        return chosen.mean((0, 1))

    def __str__(self) -> str:
        layer = "mean" if self.layer is None else f"{self.layer}"
        head = "mean" if self.head is None else f"{self.head}"
        return f"layer {layer}, head {head}"


def words_of_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, words: Sequence[str], limit: int | None = None
) -> list[int | None]:
    """Which word each token of a text belongs to.

    Args:
        tokenizer: Any tokenizer. Of one that does not say where in the text its tokens are, as
            imported models have, the text is compared with what the tokens say.
        text: The text.
        words: Its words in their order, their case aside.
        limit: Tokens at which the text was cut, the last `</s>`. None: nowhere.

    Returns:
        A number for each token; None for `</s>` and where there is no word.

    Raises:
        ValueError: A word is not in the text where it should be.
    """
    word_at: list[int | None] = [None] * (len(text) + 1)
    position = 0
    for number, word in enumerate(words):
        found = re.compile(re.escape(word), re.IGNORECASE).search(text, position)
        if found is None:
            raise ValueError(f"The word {word!r} is not in {text!r}, or not in its place.")
        start, position = found.span()
        word_at[start:position] = [number] * (position - start)
    if not tokenizer.is_fast:
        places = _places_of_tokens(tokenizer, text, limit)
        return [None if place is None else word_at[place] for place in places]
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    word_of = [
        None if is_special else word_at[max(end - 1, start)]
        for (start, end), is_special in zip(
            encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True
        )
    ]
    return word_of if limit is None or len(word_of) <= limit else [*word_of[: limit - 1], None]


def _places_of_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, limit: int | None
) -> list[int | None]:
    """Where in a text the last character of each token is; None where it has none there."""
    ids = tokenizer(text).input_ids
    ids = ids if limit is None or len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
    said = decode_lines(tokenizer, (ids[: end + 1] for end in range(len(ids))))
    # What was cut off is far behind, and would be compared with all that is said.
    text = text[: 2 * len(said[-1]) + 100]
    matcher = SequenceMatcher(None, said[-1], text, autojunk=False)
    place_of = {
        block.a + offset: block.b + offset
        for block in matcher.get_matching_blocks()
        for offset in range(block.size)
    }
    places: list[int | None] = []
    end, last = 0, -1
    for beginning in said:
        before, end = end, max(end, len(beginning.rstrip()))
        if end == before:
            places.append(None)
            continue
        # What is unknown says nothing of the text: it stands for what comes next there.
        rest = (place for place in range(last + 1, len(text)) if not text[place].isspace())
        last = place_of.get(end - 1, next(rest, last))
        places.append(last)
    return places


def links_of(
    attention: Tensor, source_words: Sequence[int | None], target_words: Sequence[int | None]
) -> Links:
    """Each target token's link to the source token it looks at most; of words, the union.

    Args:
        attention: Attention from each target token, [T, S].
        source_words: The word of each source token; None: no word.
        target_words: The same for the target.

    Returns:
        Links between words, (source, target).
    """
    looked_at = attention.argmax(-1).tolist()
    links = (
        (source_words[token], target) for token, target in zip(looked_at, target_words, strict=True)
    )
    return frozenset(
        (source, target) for source, target in links if source is not None and target is not None
    )


def words_of_maps(
    translator: Translator,
    source: str,
    target: str,
    words: tuple[Sequence[str], Sequence[str]],
    maps: AttentionMaps,
) -> tuple[list[int | None], list[int | None]]:
    """Which of given words each token of a sentence pair's maps belongs to.

    Args:
        translator: The model and tokenizers that gave the maps.
        source: The sentence.
        target: Its translation.
        words: The words of either.
        maps: Their maps.

    Returns:
        The words of the source's tokens and of the target's; None: no word.

    Raises:
        ValueError: A word is not in its sentence.
    """
    limit = len(maps.source_tokens)
    of_source = words_of_tokens(translator.source_tokenizer, source, words[0], limit)
    return of_source, words_of_tokens(translator.target_tokenizer, target, words[1])


def align(
    translator: Translator,
    source: str,
    target: str,
    choices: Iterable[AttentionChoice],
    words: tuple[Sequence[str], Sequence[str]] | None = None,
) -> list[Links]:
    """Links between the words of a sentence and of its translation.

    Args:
        translator: A model and its tokenizers.
        source: A sentence.
        target: A translation of it, which the model is made to say.
        choices: Which attentions to read.
        words: The words of either. None: what stands between blanks.

    Returns:
        The links by each of them.
    """
    source, target = clean_text(source), clean_text(target)
    source_words, target_words = words or (source.split(), target.split())
    maps = attention_maps(translator, source, target)
    words_of = words_of_maps(translator, source, target, (source_words, target_words), maps)
    weights = maps.view("cross").weights
    return [links_of(choice.of(weights), *words_of) for choice in choices]


def aligner(translator: Translator, choice: AttentionChoice) -> Callable[[Translation], str]:
    """What gives a translation's links as Pharaoh writes them.

    Args:
        translator: A model and its tokenizers.
        choice: Which attention to read.

    Returns:
        A function; nothing is linked where there is no text.

    Raises:
        ValueError: The model has no such layer or head, or the engine no attention to read.
    """
    config = translator.model.config
    choice.require(config.decoder_layers, config.decoder_attention_heads)

    def links(translation: Translation) -> str:
        if not translation.text:
            return ""
        source = clean_text(translation.source)
        # The very tokens: the text might be cut into others.
        maps = attention_maps(translator, source, translation.token_ids)
        limit = len(maps.source_tokens)
        words = words_of_tokens(translator.source_tokenizer, source, source.split(), limit)
        target_words = maps.target.word_of if maps.target else []
        return to_pharaoh(links_of(choice.of(maps.view("cross").weights), words, target_words))

    return links


def to_pharaoh(links: Links) -> str:
    """Links as Pharaoh writes them: source-target, between blanks."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))
