"""A glossary of terms that the model does not choose by itself: are they there, and at what price?

python benchmarks/glossary.py ../shared/data/multi30k --terms 20

The terms come from the alignment of training pairs, by the bundled model's attention: for each
English word, the second most frequent German noun that is linked to it most often. Measured are
the test sets of 2017: how many of the terms that the model does not write by itself occur, chrF
without the words of terms, and the time. The second row counts only sentences whose reference has
the term.
"""

import argparse
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from sacrebleu.metrics import CHRF

from modeling_aiayn.data.lines import read_lines
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.glossary import Glossary, Term, stem_of
from modeling_aiayn.translation.segments.placement import units_of
from modeling_aiayn.translation.segments.word_attention import word_attentions

Pairs = list[tuple[str, str]]
MIN_COUNT, SHARES = 5, (0.03, 0.5)  # of a term's translation among all translations of its source


def links(translator: Translator, pairs: Pairs) -> Iterator[Pairs]:
    """For each pair, the source word of each target word."""
    for (source, target), weights in zip(pairs, word_attentions(translator, pairs), strict=True):
        words, others = (
            [text[slice(*unit)] for unit in units_of(text)] for text in (source, target)
        )
        yield [(words[int(row.argmax())], word) for row, word in zip(weights, others, strict=True)]


def choose_terms(translator: Translator, pairs: Pairs, number: int) -> dict[str, str]:
    """The most frequent terms."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    sources: dict[str, Counter[str]] = defaultdict(Counter)
    for linked in links(translator, pairs):
        for source, target in linked:
            if source.isalpha() and target.istitle() and len(target) > 3:  # a noun
                counts[source.lower()][target] += 1
                sources[target][source.lower()] += 1
    terms: dict[str, tuple[int, str]] = {}
    for source, found in counts.items():
        for target, count in found.most_common(2)[1:]:
            share = count / found.total()
            is_ours = sources[target].most_common(1)[0][0] == source
            if is_ours and count >= MIN_COUNT and SHARES[0] <= share <= SHARES[1]:
                terms[source] = (count, target)
    best = sorted(terms, key=lambda source: -terms[source][0])[:number]
    return {source: terms[source][1] for source in best}


def other_words(
    translator: Translator, rows: Sequence[tuple[str, str, list[Term]]]
) -> Iterator[str]:
    """The texts of (source, text, terms) without words that are linked to terms, or are terms."""
    pairs = [(source, text) for source, text, _ in rows]
    for (source, _, terms), linked in zip(rows, links(translator, pairs), strict=True):
        gone = {source[term.start : term.end] for term in terms}
        gone_too = {stem_of(target, "de") for term in terms for target in term.targets}
        kept = [b for a, b in linked if a not in gone and stem_of(b, "de") not in gone_too]
        yield " ".join(kept)


def show(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=6000)
    parser.add_argument("--terms", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    def read(name: str) -> Pairs:
        sides = (read_lines(arguments.folder / f"{name}.{side}.gz") for side in ("en", "de"))
        return list(zip(*sides, strict=True))

    free, bound = (Translator.from_pretrained("aiayn-en-de", dtype="int8") for _ in range(2))
    terms = choose_terms(free, read("train")[: arguments.pairs], arguments.terms)
    show(", ".join(f"{source}: {target}" for source, target in terms.items()))
    bound.use_glossary(terms)
    glossary = Glossary(terms.items(), free.target_tokenizer, ("en", "de"))
    test = read("test_2017_flickr") + read("test_2017_mscoco")
    sources = [source for source, _ in test]
    found, seconds = {}, defaultdict(list)
    for _ in range(arguments.rounds):
        for name, translator in (("without", free), ("with", bound)):
            start = time.perf_counter()
            found[name] = translator(sources)
            seconds[name].append(time.perf_counter() - start)
    has_terms = sum(bool(glossary.terms(source)) for source in sources)
    show(f"{has_terms} of {len(test)} sentences have terms")
    for name, is_right in (("all terms", False), ("terms of the reference", True)):
        rows = []
        for index, (source, reference) in enumerate(test):
            every = glossary.terms(source)
            missing = [term for term in every if not term.is_in(found["without"][index])]
            if missing and (not is_right or all(term.is_in(reference) for term in every)):
                rows.append((index, missing))
        total = sum(len(missing) for _, missing in rows)
        present = sum(x.is_in(found["with"][index]) for index, missing in rows for x in missing)
        show(f"{name}: {len(rows)} sentences lack {total}; then {present / total:.1%} occur")
        *ours, references = (
            [*other_words(free, [(sources[index], texts[index], some) for index, some in rows])]
            for texts in (found["without"], found["with"], [reference for _, reference in test])
        )
        scores = [CHRF().corpus_score(texts, [references]).score for texts in ours]
        show(f"  chrF of other words: {scores[0]:.2f} without, {scores[1]:.2f} with glossary")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["with"] / medians["without"]
    show(f"{medians['without']:.2f} s without, {medians['with']:.2f} s with: {ratio:.3f}")


if __name__ == "__main__":
    main()
