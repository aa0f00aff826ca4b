"""Scores of word alignment: error rate, precision and recall against hand-made links."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean

from tqdm import tqdm

from ..data.embedded_corpus import generate_pairs
from ..data.lines import read_lines
from ..translation import Translator
from .alignment import Links, align
from .attention_weights import AttentionChoice


@dataclass(frozen=True)
class GoldPair:
    """A sentence pair with its required links and its optional links."""

    source: str
    target: str
    words: tuple[Sequence[str], Sequence[str]]
    sure: Links
    possible: Links


def embedded_gold(size: int, split: str = "test", is_reversed: bool = False) -> list[GoldPair]:
    """Generate pairs of the built-in grammar, English to German or reversed, with sure links."""
    gold = []
    for pair in generate_pairs(split, size):
        links = frozenset(pair.alignment)
        texts, words = (pair.source, pair.target), (pair.source_words, pair.target_words)
        if is_reversed:
            links = frozenset((target, source) for source, target in links)
            texts, words = texts[::-1], words[::-1]
        gold.append(GoldPair(*texts, words, links, links))
    return gold


def read_gold(source: str, target: str, gold: str, is_reversed: bool = False) -> list[GoldPair]:
    """Read pairs of tokenized text with their links.

    Each line of the file gold has the links of a pair: s-t for a sure link and spt for a possible
    one. Words are counted from 0. With is_reversed, the target's word comes first.
    """
    pairs = []
    files = (read_lines(path) for path in (source, target, gold))
    for number, (source_text, target_text, links) in enumerate(zip(*files, strict=True), start=1):
        words = (source_text.split(), target_text.split())
        sure, possible = parse_links(links, is_reversed)
        for side, name in enumerate(("source", "target")):
            if any(link[side] >= len(words[side]) for link in possible):
                raise ValueError(
                    f"{Path(gold)}:{number}: links count words from 0, and the {name} has only "
                    f"{len(words[side])} words."
                )
        pairs.append(GoldPair(source_text, target_text, words, sure, possible))
    return pairs


def parse_links(text: str, is_reversed: bool = False) -> tuple[Links, Links]:
    """Parse one line into sure links and possible links, which include the sure links."""
    sure, possible = set(), set()
    for link in text.split():
        first, second = map(int, link.split("-" if "-" in link else "p"))
        pair = (second, first) if is_reversed else (first, second)
        possible.add(pair)
        if "-" in link:
            sure.add(pair)
    return frozenset(sure), frozenset(possible)


@dataclass
class AlignmentScore:
    """Numbers of links in a corpus, and the scores computed from them (Och and Ney 2003)."""

    found: int = 0
    found_sure: int = 0
    found_possible: int = 0
    sure: int = 0

    def add(self, links: Links, gold: GoldPair) -> None:
        """Add one pair's links to the counts."""
        self.found += len(links)
        self.found_sure += len(links & gold.sure)
        self.found_possible += len(links & gold.possible)
        self.sure += len(gold.sure)

    @property
    def error_rate(self) -> float:
        """Alignment error rate, 1 - (|A & S| + |A & P|) / (|A| + |S|); 0 is perfect."""
        return 1 - (self.found_sure + self.found_possible) / max(1, self.found + self.sure)

    @property
    def precision(self) -> float:
        """The share of the found links that are possible."""
        return self.found_possible / max(1, self.found)

    @property
    def recall(self) -> float:
        """The share of the sure links that were found."""
        return self.found_sure / max(1, self.sure)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return harmonic_mean((self.precision, self.recall))


def score_attentions(
    translator: Translator, pairs: Iterable[GoldPair]
) -> dict[AttentionChoice, AlignmentScore]:
    """Score each head, the mean of each layer, and the mean of all heads as word alignment."""
    config = translator.model.config
    heads = (None, *range(config.decoder_attention_heads))
    choices = [
        AttentionChoice(layer, head) for layer in range(config.decoder_layers) for head in heads
    ]
    scores = {choice: AlignmentScore() for choice in (AttentionChoice(), *choices)}
    for pair in tqdm(pairs, unit="sentence"):
        alignments = align(translator, pair.source, pair.target, scores, pair.words)
        for score, links in zip(scores.values(), alignments, strict=True):
            score.add(links, pair)
    return scores


def alignment_table(scores: dict[AttentionChoice, AlignmentScore]) -> str:
    """Format scores as a table of plain text, in percent."""
    lines = [f"{'attention':<22}{'AER':>6}{'precision':>11}{'recall':>8}{'F1':>7}"]
    lines += [
        f"{choice!s:<22}{100 * score.error_rate:6.1f}{100 * score.precision:11.1f}"
        f"{100 * score.recall:8.1f}{100 * score.f1:7.1f}"
        for choice, score in scores.items()
    ]
    return "\n".join(lines)
