r"""Compare detectors of a sentence's language: how often they are right, and how fast.

pip install py3langid lingua-language-detector
python benchmarks/language_detectors.py --english_german en-de.tsv --english_french en-fr.tsv

The files have two columns, separated by a tab. Of their English, German and French sentences, 6,000
are drawn with seed 0.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

LANGUAGES = ("en", "de", "fr")


def main() -> None:
    """Read the files, and print a line for each detector."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("english_german", "english_french"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    flags = parser.parse_args()
    german, french = (
        [line.split("\t") for line in path.read_text("utf-8").splitlines()]
        for path in (flags.english_german, flags.english_french)
    )
    texts = [(english, "en") for english, _ in german] + [(text, "de") for _, text in german]
    texts += [(text, "fr") for _, text in french]
    random.Random(0).shuffle(texts)
    for name, detect in detectors().items():
        detect("Hello, world.")  # loads its model
        started = time.perf_counter()
        found = [(detect(text), language) for text, language in texts[:6000]]
        rate = len(found) / (time.perf_counter() - started)
        shares = (_share(found, language) for language in LANGUAGES)
        sys.stdout.write(f"{name:<28} {' '.join(shares)}  {rate:,.0f} sentences/s\n")


def detectors() -> dict[str, Callable[[str], str | None]]:
    """Functions that return the ISO 639 code of a text, by name."""
    import py3langid
    from lingua import LanguageDetectorBuilder

    builder = LanguageDetectorBuilder.from_all_languages
    accurate, fast = builder().build(), builder().with_low_accuracy_mode().build()
    return {
        "py3langid": lambda text: str(py3langid.classify(text)[0]),
        "lingua": lambda text: _code(accurate.detect_language_of(text)),
        "lingua, low accuracy mode": lambda text: _code(fast.detect_language_of(text)),
    }


def _code(language: object) -> str | None:
    return None if language is None else language.iso_code_639_1.name.lower()  # type: ignore[attr-defined, no-any-return]


def _share(found: list[tuple[str | None, str]], language: str) -> str:
    own = [guess == expected for guess, expected in found if expected == language]
    return f"{language} {100 * sum(own) / len(own):.1f} %"


if __name__ == "__main__":
    main()
