"""A generated corpus: English-German pairs of a synchronous grammar, with gold alignment.

It has the main difficulties of German: nouns with gender, articles and adjectives that agree with
them in case and number, and verbs in the second or the last position.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

# A hash of the sentence puts one in SPLIT_SHARE into "validation", and as many into "test".
SPLIT_SHARE = 20
SPLITS = ("validation", "test", "train")


@dataclass(frozen=True)
class AlignedPair:
    """A sentence and its translation as words; a punctuation mark is a word of its own.

    alignment has pairs (index in source_words, index in target_words), sorted.
    """

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]

    @property
    def source(self) -> str:
        """The English sentence as text."""
        return as_text(self.source_words)

    @property
    def target(self) -> str:
        """The German sentence as text."""
        return as_text(self.target_words)


def as_text(words: tuple[str, ...]) -> str:
    """Join words into a sentence that starts with a capital, without spaces before punctuation."""
    text = " ".join(words).replace(" ,", ",").replace(" .", ".")
    return text[0].upper() + text[1:]


def generate_pairs(split: str, size: int, seed: int = 0) -> list[AlignedPair]:
    """Generate distinct pairs of one split; splits share no sentence, whatever their seeds.

    Raises:
        ValueError: split is not "train", "validation" or "test".
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}.")
    generator = random.Random(f"{split} {seed}")
    pairs: dict[str, AlignedPair] = {}
    while len(pairs) < size:
        pair = _Sentence(generator).pair()
        if _split_of(pair.source) == split:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def _split_of(sentence: str) -> str:
    digest = hashlib.sha256(sentence.encode()).digest()
    return SPLITS[min(int.from_bytes(digest[:8]) % SPLIT_SHARE, 2)]


@dataclass(frozen=True)
class _Noun:
    english: str
    english_plural: str
    german: str
    german_plural: str
    dative_plural: str
    gender: str


@dataclass(frozen=True)
class _Verb:
    english: str
    english_singular: str
    english_participle: str
    german: str
    german_singular: str
    german_participle: str


def _rows(table: str) -> list[list[str]]:
    return [line.split() for line in table.strip().splitlines()]


def _nouns(table: str) -> tuple[_Noun, ...]:
    return tuple(_Noun(*row) for row in _rows(table))


def _verbs(table: str) -> tuple[_Verb, ...]:
    return tuple(_Verb(*row) for row in _rows(table))


def _pairs(words: str) -> tuple[list[str], ...]:
    return tuple(pair.split() for pair in words.split(","))


_BEINGS = _nouns("""
    man men Mann Männer Männern masculine
    woman women Frau Frauen Frauen feminine
    child children Kind Kinder Kindern neuter
    teacher teachers Lehrer Lehrer Lehrern masculine
    mother mothers Mutter Mütter Müttern feminine
    girl girls Mädchen Mädchen Mädchen neuter
    friend friends Freund Freunde Freunden masculine
    cat cats Katze Katzen Katzen feminine
    horse horses Pferd Pferde Pferden neuter
    dog dogs Hund Hunde Hunden masculine
""")
_THINGS = _nouns("""
    apple apples Apfel Äpfel Äpfeln masculine
    flower flowers Blume Blumen Blumen feminine
    book books Buch Bücher Büchern neuter
    letter letters Brief Briefe Briefen masculine
    lamp lamps Lampe Lampen Lampen feminine
    picture pictures Bild Bilder Bildern neuter
    key keys Schlüssel Schlüssel Schlüsseln masculine
    bag bags Tasche Taschen Taschen feminine
    glass glasses Glas Gläser Gläsern neuter
    ball balls Ball Bälle Bällen masculine
""")
_PLACES = _nouns("""
    garden gardens Garten Gärten Gärten masculine
    kitchen kitchens Küche Küchen Küchen feminine
    house houses Haus Häuser Häusern neuter
    park parks Park Parks Parks masculine
    school schools Schule Schulen Schulen feminine
    hotel hotels Hotel Hotels Hotels neuter
""")
_TRANSITIVE = _verbs("""
    see sees seen sehen sieht gesehen
    find finds found finden findet gefunden
    carry carries carried tragen trägt getragen
    love loves loved lieben liebt geliebt
    paint paints painted malen malt gemalt
    hear hears heard hören hört gehört
    hold holds held halten hält gehalten
    seek seeks sought suchen sucht gesucht
""")
_DITRANSITIVE = _verbs("""
    give gives given geben gibt gegeben
    show shows shown zeigen zeigt gezeigt
    send sends sent schicken schickt geschickt
    bring brings brought bringen bringt gebracht
""")
# English auxiliary, German auxiliary in singular and plural, and whether a participle follows.
_AUXILIARIES = (
    (("has", "have"), ("hat", "haben"), True),
    (("will", "will"), ("wird", "werden"), False),
    (("can", "can"), ("kann", "können"), False),
    (("must", "must"), ("muss", "müssen"), False),
)
_ADJECTIVES = _pairs("""
    old alt, young jung, small klein, big groß, red rot, new neu, beautiful schön, black schwarz
""")
_ADVERBS = _pairs("today heute, often oft, sometimes manchmal, now jetzt, here hier")
_PREPOSITIONS = _pairs("in in, behind hinter, near bei, before vor")
_CONJUNCTIONS = _pairs("because weil, while während, although obwohl")
_PRONOUNS = (("he", "er", False), ("she", "sie", False), ("we", "wir", True))

_GENDERS = ("masculine", "feminine", "neuter", "plural")
_CASES = ("nominative", "accusative", "dative")


def _paradigm(table: str) -> dict[tuple[str, str], str]:
    """Endings by case (rows) and gender or plural (columns); "-" means no ending."""
    return {
        (case, gender): ending.strip("-")
        for case, row in zip(_CASES, _rows(table), strict=True)
        for gender, ending in zip(_GENDERS, row, strict=True)
    }


_DEFINITE = _paradigm("""
    er ie as ie
    en ie as ie
    em er em en
""")
_DEMONSTRATIVE = _paradigm("""
    er e es e
    en e es e
    em er em en
""")
_INDEFINITE = _paradigm("""
    - e - e
    en e - e
    em er em en
""")
_ADJECTIVE_AFTER_DEFINITE = _paradigm("""
    e e e en
    en e e en
    en en en en
""")
_ADJECTIVE_AFTER_INDEFINITE = _paradigm("""
    er e es en
    en e es en
    en en en en
""")
# English singular and plural, German stem, endings of the stem and of an adjective after it.
_DETERMINERS = (
    ("the", "the", "d", _DEFINITE, _ADJECTIVE_AFTER_DEFINITE),
    ("this", "these", "dies", _DEMONSTRATIVE, _ADJECTIVE_AFTER_DEFINITE),
    ("my", "my", "mein", _INDEFINITE, _ADJECTIVE_AFTER_INDEFINITE),
    ("a", None, "ein", _INDEFINITE, _ADJECTIVE_AFTER_INDEFINITE),
)

_Word = tuple[str, int]


@dataclass
class _Phrase:
    """A phrase in both languages; words with the same number translate each other."""

    english: list[_Word] = field(default_factory=list)
    german: list[_Word] = field(default_factory=list)
    is_plural: bool = False


class _Sentence:
    """A random sentence; all parts use one random generator and one numbering of words."""

    def __init__(self, generator: random.Random) -> None:
        self.generator = generator
        self.numbers: Iterator[int] = count()

    def pair(self) -> AlignedPair:
        clause = self.clause(is_main=True)
        if self.chance(0.3):
            clause = self.with_subordinate(clause)
        stop = next(self.numbers)
        english, german = [*clause.english, (".", stop)], [*clause.german, (".", stop)]
        alignment = sorted(
            (i, j)
            for i, (_, source_number) in enumerate(english)
            for j, (_, target_number) in enumerate(german)
            if source_number == target_number
        )
        return AlignedPair(
            tuple(word for word, _ in english), tuple(word for word, _ in german), tuple(alignment)
        )

    def chance(self, probability: float) -> bool:
        return self.generator.random() < probability

    def word(self, english: str, german: str) -> _Phrase:
        number = next(self.numbers)
        return _Phrase([(english, number)], [(german, number)])

    def noun_phrase(self, nouns: tuple[_Noun, ...], case: str, adjectives: float = 0.4) -> _Phrase:
        noun = self.generator.choice(nouns)
        singular, plural, stem, endings, adjective_endings = self.generator.choice(_DETERMINERS)
        is_plural = plural is not None and self.chance(0.3)
        form = (case, "plural" if is_plural else noun.gender)
        parts = [self.word((is_plural and plural) or singular, stem + endings[form])]
        if self.chance(adjectives):
            english, german = self.generator.choice(_ADJECTIVES)
            parts.append(self.word(english, german + adjective_endings[form]))
        if is_plural:
            german = noun.dative_plural if case == "dative" else noun.german_plural
            parts.append(self.word(noun.english_plural, german))
        else:
            parts.append(self.word(noun.english, noun.german))
        phrase = _join(*parts)
        phrase.english = _with_an(phrase.english)
        phrase.is_plural = is_plural
        return phrase

    def subject(self) -> _Phrase:
        if self.chance(0.2):
            english, german, is_plural = self.generator.choice(_PRONOUNS)
            phrase = self.word(english, german)
            phrase.is_plural = is_plural
            return phrase
        return self.noun_phrase(_BEINGS, "nominative")

    def verb(self, verb: _Verb, is_plural: bool) -> tuple[_Phrase, _Phrase]:
        """The finite verb, and the participle or infinitive, which German puts last."""
        if self.chance(0.5):
            english = verb.english if is_plural else verb.english_singular
            return self.word(english, verb.german if is_plural else verb.german_singular), _Phrase()
        english_forms, german_forms, has_participle = self.generator.choice(_AUXILIARIES)
        finite = self.word(english_forms[is_plural], german_forms[is_plural])
        if has_participle:
            return finite, self.word(verb.english_participle, verb.german_participle)
        return finite, self.word(verb.english, verb.german)

    def objects(self, is_ditransitive: bool) -> _Phrase:
        """German puts the receiver before the thing: "der Frau das Buch"."""
        if not is_ditransitive:
            return self.noun_phrase(_BEINGS + _THINGS, "accusative")
        thing = self.noun_phrase(_THINGS, "accusative")
        receiver = self.noun_phrase(_BEINGS, "dative", adjectives=0.2)
        article_number = receiver.german[0][1]
        english = [*thing.english, ("to", article_number), *receiver.english]
        return _Phrase(english, receiver.german + thing.german)

    def place(self) -> _Phrase:
        if self.chance(0.6):
            return _Phrase()
        preposition = self.word(*self.generator.choice(_PREPOSITIONS))
        return _join(preposition, self.noun_phrase(_PLACES, "dative", adjectives=0.2))

    def clause(self, is_main: bool) -> _Phrase:
        is_ditransitive = self.chance(0.3)
        verb = self.generator.choice(_DITRANSITIVE if is_ditransitive else _TRANSITIVE)
        subject = self.subject()
        finite, rest = self.verb(verb, subject.is_plural)
        middle = _join(self.objects(is_ditransitive), self.place())
        english = subject.english + finite.english + rest.english + middle.english
        german = middle.german + rest.german
        if not is_main:  # the finite verb is last
            return _Phrase(english, subject.german + german + finite.german)
        if not self.chance(0.3):  # the finite verb is second
            return _Phrase(english, subject.german + finite.german + german)
        # The finite verb is second, so the subject follows it.
        adverb = self.word(*self.generator.choice(_ADVERBS))
        german = adverb.german + finite.german + subject.german + german
        return _Phrase(adverb.english + english, german)

    def with_subordinate(self, clause: _Phrase) -> _Phrase:
        conjunction = self.word(*self.generator.choice(_CONJUNCTIONS))
        comma = _Phrase(german=[(",", next(self.numbers))])
        return _join(clause, comma, conjunction, self.clause(is_main=False))


def _join(*phrases: _Phrase) -> _Phrase:
    return _Phrase(
        [word for phrase in phrases for word in phrase.english],
        [word for phrase in phrases for word in phrase.german],
    )


def _with_an(english: list[_Word]) -> list[_Word]:
    (article, number), following = english[0], english[1][0]
    if article == "a" and following[0] in "aeio":
        return [("an", number), *english[1:]]
    return english
