"""Word alignment between a sentence and its translation, read from cross-attention."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from ..tokenization import clean_text
from ..translation import Translator
from ..translation.translator import Translation
from .attention_weights import AttentionChoice, AttentionMaps, attention_maps
from .token_words import Tokens, words_of_tokens

Links = frozenset[tuple[int, int]]


def links_of(
    attention: Tensor, source_words: Sequence[int | None], target_words: Sequence[int | None]
) -> Links:
    """Link each target token to the source token with the largest weight, and merge to words.

    Args:
        attention: Attention of each target token, [T, S].
        source_words: The word of each source token; None: no word.
        target_words: The word of each target token; None: no word.
    """
    best_tokens = attention.argmax(-1).tolist()
    links = (
        (source_words[token], target)
        for token, target in zip(best_tokens, target_words, strict=True)
    )
    return frozenset(
        (source, target) for source, target in links if source is not None and target is not None
    )


def maps_with_words(
    translator: Translator,
    source: str,
    target: str | Sequence[int],
    words: tuple[Sequence[str], Sequence[str] | None],
) -> AttentionMaps:
    """Compute attention maps whose tokens are assigned to given words of source and target.

    Without words of the target, its words are separated by spaces. Words must be in their sentence.
    """
    source = translator.source_text(source)
    maps = attention_maps(translator, source, target)
    of_source = words_of_tokens(translator.source_tokenizer, source, words[0], len(maps.source))
    source_tokens = Tokens(maps.source.tokens, of_source, list(words[0]))
    target_tokens = maps.target
    if words[1] is not None and isinstance(target, str):
        of_target = words_of_tokens(
            translator.target_tokenizer, clean_text(target), words[1], len(maps.target)
        )
        target_tokens = Tokens(maps.target.tokens, of_target, list(words[1]))
    inputs = target_tokens.shifted_right(maps.inputs.tokens[0])
    return dataclasses.replace(maps, source=source_tokens, target=target_tokens, inputs=inputs)


def _links_of_maps(maps: AttentionMaps, choice: AttentionChoice) -> Links:
    attention = choice.of(maps.view("cross").weights)
    return links_of(attention, maps.source.word_of, maps.target.word_of)


def align(
    translator: Translator,
    source: str,
    target: str,
    choices: Iterable[AttentionChoice],
    words: tuple[Sequence[str], Sequence[str]] | None = None,
) -> list[Links]:
    """Link the words of a sentence and of its translation, once for each choice of attention.

    The model is teacher-forced to produce the target. Without `words`, the words of source and
    target are separated by spaces.
    """
    words = words or (clean_text(source).split(), clean_text(target).split())
    maps = maps_with_words(translator, source, target, words)
    return [_links_of_maps(maps, choice) for choice in choices]


def aligner(translator: Translator, choice: AttentionChoice) -> Callable[[Translation], str]:
    """Return a function that writes a translation's links in Pharaoh format.

    An empty translation has no links.

    Raises:
        ValueError: The model has no such layer or head, or its engine returns no attention.
    """
    config = translator.model.config
    choice.check(config.decoder_layers, config.decoder_attention_heads)

    def links(translation: Translation) -> str:
        if not translation.text:
            return ""
        words = (clean_text(translation.source).split(), None)
        # Pass the ids, because the text could be split into other tokens.
        maps = maps_with_words(translator, translation.source, translation.token_ids, words)
        return to_pharaoh(_links_of_maps(maps, choice))

    return links


def to_pharaoh(links: Links) -> str:
    """Write links in Pharaoh format: source-target pairs with spaces between them."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))
