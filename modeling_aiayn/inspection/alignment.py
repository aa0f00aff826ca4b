"""Links between the words or ids of a text and its translation, read from cross-attention."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm

from ..losses import IGNORED_LABEL
from ..tokenization import clean_text
from ..translation import Translator
from ..translation.pools import BATCH_SIZE, MAX_TOKENS_PER_BATCH, batches_by_length
from ..translation.segments.token_words import Tokens, words_of_tokens
from ..translation.shortlist import LinkCounts
from ..translation.torch_engine import showing_weights
from ..translation.translator import Translation
from .attention_weights import AttentionChoice, AttentionMaps, attention_maps

Links = frozenset[tuple[int, int]]


def links_of(
    attention: Tensor, source_words: Sequence[int | None], target_words: Sequence[int | None]
) -> Links:
    """Link each target token to the source token with the largest weight, and merge to words.

    Attention is [T, S]. source_words and target_words give the word of each token, or None.
    """
    best_words = [source_words[token] for token in attention.argmax(-1).tolist()]
    links = zip(best_words, target_words, strict=True)
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

    If the words of the target are None, it is split at spaces. Words must occur in their sentence.
    """

    def assigned(tokens: Tokens, tokenizer: Any, text: str, words: Sequence[str]) -> Tokens:
        ids = tokenizer.convert_tokens_to_ids(tokens.tokens)
        word_of = words_of_tokens(tokenizer, text, words, ids)
        return Tokens(tokens.tokens, word_of, list(words))

    source = translator.source_text(source)
    maps = attention_maps(translator, source, target)
    source_words = [translator.source_text(word) for word in words[0]]
    source_tokens = assigned(maps.source, translator.source_tokenizer, source, source_words)
    target_tokens = maps.target
    if words[1] is not None and isinstance(target, str):
        text = clean_text(target)
        target_tokens = assigned(maps.target, translator.target_tokenizer, text, words[1])
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

    Without `words`, source and target are split at spaces.
    """
    words = words or (clean_text(source).split(), clean_text(target).split())
    maps = maps_with_words(translator, source, target, words)
    return [_links_of_maps(maps, choice) for choice in choices]


def aligner(translator: Translator, choice: AttentionChoice) -> Callable[[Translation], str]:
    """Return a function that writes a translation's links in Pharaoh format."""
    config = translator.model.config
    choice.check(config.decoder_layers, config.decoder_attention_heads)

    def links(translation: Translation) -> str:
        words: Any = (clean_text(translation.source).split(), None)
        if not translation.token_ids:  # a copied text
            return to_pharaoh(frozenset((n, n) for n, _ in enumerate(words[0])))
        if translation.read is None:  # use the ids: encoding the text may give others
            target: str | Sequence[int] = translation.token_ids
        else:
            target, words = translation.text, (words[0], translation.text.split())
        maps = maps_with_words(translator, translation.source, target, words)
        return to_pharaoh(_links_of_maps(maps, choice))

    return links


def to_pharaoh(links: Links) -> str:
    """Write links in Pharaoh format: source-target pairs with spaces between them."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


@torch.inference_mode()
def count_links(
    translator: Translator,
    sources: Sequence[str],
    targets: Sequence[str],
    batch_size: int = BATCH_SIZE,
    max_tokens_per_batch: int = MAX_TOKENS_PER_BATCH,
) -> LinkCounts:
    """Count which target ids attend to which source ids, averaged over all layers and heads."""
    model = translator.model
    config = model.config
    counts = LinkCounts(config.vocab_size, config.decoder_vocab_size or config.vocab_size)
    source_ids = [translator.encode(text) for text in sources]
    target_ids = [translator.encode_target(text) for text in targets]
    pairs = zip(source_ids, target_ids, strict=True)
    lengths = [max(len(source), len(target)) for source, target in pairs]
    with showing_weights(model):
        for batch in tqdm(batches_by_length(lengths, batch_size, max_tokens_per_batch)):
            inputs, mask = _padded([source_ids[index] for index in batch], model.device)
            labels, is_real = _padded([target_ids[index] for index in batch], model.device)
            output = model(
                inputs,
                attention_mask=mask,
                labels=labels.masked_fill(is_real == 0, IGNORED_LABEL),
                output_attentions=True,
            )
            weights = torch.stack([layer.float().mean(1) for layer in output.cross_attentions])
            attention = weights.mean(0) * mask[:, None] * is_real[..., None]  # [N, T, S]
            counts.add(inputs.cpu(), labels.cpu(), attention.cpu())
    return counts


def _padded(sequences: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ids and their mask, [N, S] both."""
    rows = [torch.tensor(sequence) for sequence in sequences]
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return pad_sequence(rows, batch_first=True).to(device), mask.to(device)
