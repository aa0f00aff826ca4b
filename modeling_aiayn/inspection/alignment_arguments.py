"""What the script that scores alignments is told."""

from dataclasses import dataclass, field

from .alignment_scores import GoldPair, embedded_gold, read_gold

EMBEDDED_PAIRS = 500


@dataclass
class GoldArguments:
    """Which pairs, and the links that they should have.

    Raises:
        ValueError: A file of three is missing, or a flag says nothing to the pairs that are meant.
    """

    source: str | None = field(default=None, metadata={"help": "A file of tokenised sentences."})
    target: str | None = field(default=None, metadata={"help": "Their translations, tokenised."})
    gold: str | None = field(
        default=None, metadata={"help": "Their links, a line each: 0-0 1-2, and 3p4 if possible."}
    )
    reversed: bool = field(default=False, metadata={"help": "Links name the target's word first."})
    pairs: int | None = field(
        default=None,
        metadata={"help": f"Of the embedded grammar, how many; default: {EMBEDDED_PAIRS}."},
    )

    def __post_init__(self) -> None:
        named = [self.source, self.target, self.gold]
        if any(named) and not all(named):
            raise ValueError("--source, --target and --gold belong together.")
        if self.gold and self.pairs is not None:
            raise ValueError(
                "--pairs counts those of the embedded grammar: leave it out, or --gold."
            )
        if self.reversed and not self.gold:
            raise ValueError("--reversed says how --gold is written: give --gold, or leave it out.")

    def read(self) -> list[GoldPair]:
        """The pairs, two at least: attention is chosen on one half and scored on the other.

        Raises:
            OSError: A file cannot be read.
            ValueError: The files differ in length, a link is none, or there are too few pairs.
        """
        if self.source and self.target and self.gold:
            pairs = read_gold(self.source, self.target, self.gold, self.reversed)
        else:
            pairs = embedded_gold(EMBEDDED_PAIRS if self.pairs is None else self.pairs)
        if len(pairs) < 2:
            raise ValueError(
                f"Choosing on one half and scoring on the other needs 2 pairs, got {len(pairs)}."
            )
        return pairs
