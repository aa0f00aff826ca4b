"""Score a translator on texts as careless people write them.

python benchmarks/benchmark_robustness.py --model aiayn-en-de --file data/multi30k/test_2016_flickr

The sources get each kind of noise of `--noisy_sources`; the references stay as they are.
"""

import random
import sys
from dataclasses import dataclass

from sacrebleu import corpus_bleu
from transformers.hf_argparser import HfArg

from modeling_aiayn.commands.command_line import parse_arguments, run_command
from modeling_aiayn.data.augmentation import NOISES
from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.translation import Translator
from modeling_aiayn.translation.letter_case import natural_case


@dataclass
class BenchmarkArguments:
    """The models and the sentences."""

    file: str = HfArg(help="Sentence pairs.")
    model: list[str] = HfArg(
        default_factory=lambda: ["aiayn-en-de"], help="Folders of trained models."
    )
    source_lang: str = HfArg(default="en", help="Source language.")
    target_lang: str = HfArg(default="de", help="Target language.")
    num_beams: int = HfArg(default=4, help="Number of beams.")
    restore_case: bool = HfArg(default=False, help="As --restore_case of `aiayn translate`.")
    seed: int = HfArg(default=1, help="Of the typing errors.")


def main() -> None:
    """Translate each kind of text with each model, and print BLEU and its loss."""
    (arguments,) = parse_arguments(__doc__, BenchmarkArguments)
    pairs = read_pairs(arguments.file, arguments.source_lang, arguments.target_lang)
    texts = {"as it is": list(pairs["source"])}
    for name, noise in NOISES.items():
        generator = random.Random(arguments.seed)
        texts[name.replace("_", " ")] = [noise(text, generator) for text in pairs["source"]]
    if arguments.restore_case:
        texts = {
            name: [natural_case(text, arguments.source_lang) for text in sources]
            for name, sources in texts.items()
        }
    for model in arguments.model:
        translator = Translator.from_pretrained(model)
        sys.stdout.write(f"{model}\n")
        clean = None
        for name, sources in texts.items():
            translations = translator(sources, num_beams=arguments.num_beams)
            score = corpus_bleu(translations, [list(pairs["target"])]).score
            clean = score if clean is None else clean
            sys.stdout.write(f"  {name:<22}{score:>6.2f} BLEU  {score - clean:>+6.2f}\n")


if __name__ == "__main__":
    run_command(main)
