"""Which word is whose translation, read off the attention over the source."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Self

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..tokenization import as_unicode, decode_lines
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

    def of(self, weights: Tensor) -> Tensor:
        """The chosen attention, [T, S], of all, [layers, H, T, S].

        Raises:
            ValueError: There is no such layer or head.
        """
        for name, index, size in zip(
            ("layer", "head"), (self.layer, self.head), weights.shape, strict=False
        ):
            if index is not None and not 0 <= index < size:
                raise ValueError(f"{name} must be in [0, {size}), got {index}.")
        chosen = weights if self.layer is None else weights[self.layer][None]
        chosen = chosen if self.head is None else chosen[:, self.head][:, None]
        return chosen.mean((0, 1))

    def __str__(self) -> str:
        layer = "mean" if self.layer is None else f"{self.layer}"
        head = "mean" if self.head is None else f"{self.head}"
        return f"layer {layer}, head {head}"


def words_of_tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, words: Sequence[str]
) -> list[int | None]:
    """Which word each token of a text belongs to.

    Args:
        tokenizer: Any tokenizer. Of one that does not say where in the text its tokens are, as
            imported models have, the text is compared with what the tokens say.
        text: The text.
        words: Its words in their order, their case aside.

    Returns:
        A number for each token; None for `</s>` and where there is no word.

    Raises:
        ValueError: A word is not in the text where it should be.
    """
    word_at: list[int | None] = [None] * (len(text) + 1)
    position = 0
    for number, word in enumerate(words):
        start = text.lower().find(word.lower(), position)
        if start < 0:
            raise ValueError(f"The word {word!r} is not in {text!r}, or not in its place.")
        position = start + len(word)
        word_at[start:position] = [number] * len(word)
    if not tokenizer.is_fast:
        return [
            None if place is None else word_at[place]
            for place in _places_of_tokens(tokenizer, text)
        ]
    encoded = tokenizer(text, return_offsets_mapping=True, return_special_tokens_mask=True)
    return [
        None if is_special else word_at[max(end - 1, start)]
        for (start, end), is_special in zip(
            encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True
        )
    ]


def _places_of_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int | None]:
    """Where in a text the last character of each token is; None where it has none there."""
    ids = tokenizer(text).input_ids
    said = decode_lines(tokenizer, (ids[: end + 1] for end in range(len(ids))))
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
    of_source = words_of_tokens(translator.source_tokenizer, source, words[0])
    length = len(maps.source_tokens)
    if len(of_source) > length:  # the source was cut, and ends in </s>
        of_source = [*of_source[: length - 1], None]
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
    source, target = as_unicode(source), as_unicode(target)
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
    """

    def links(translation: Translation) -> str:
        if not translation.text:
            return ""
        return to_pharaoh(*align(translator, translation.source, translation.text, [choice]))

    return links


def to_pharaoh(links: Links) -> str:
    """Links as Pharaoh writes them: source-target, between blanks."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))
