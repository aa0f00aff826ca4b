"""Write the lower-cased tokens of sentence pairs, split by spaCy's rules, with spaces between them.

pip install --constraint constraints.txt '.[seeds]'
python examples/spacy_tokens.py --file data/train --output data/tokens-train --languages de en

Reads data/train.de and data/train.en, and writes data/tokens-train.de and data/tokens-train.en, for
--vocabulary token. The rules are part of spaCy: no model is downloaded.
"""

from argparse import ArgumentParser

import spacy

from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.saved.whole_files import write_file

parser = ArgumentParser()
parser.add_argument("--file", required=True, help="data/train for data/train.de and .en")
parser.add_argument("--output", required=True, help="the same for the two files that are written")
parser.add_argument("--languages", nargs=2, required=True, help="ISO 639 codes, such as de en")
flags = parser.parse_args()

pairs = read_pairs(flags.file, *flags.languages)
for language, column in zip(flags.languages, ("source", "target"), strict=True):
    tokenizer = spacy.blank(language).tokenizer
    lines = (" ".join(token.lower_ for token in each) for each in tokenizer.pipe(pairs[column]))
    write_file(f"{flags.output}.{language}", "".join(f"{line}\n" for line in lines))
