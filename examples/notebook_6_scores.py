"""Score a model of the seeds' recipe as bentrevett's notebook 6 does: on tokens, and per batch.

python examples/notebook_6_scores.py --model runs/seeds --file data/tokens-test --languages de en

BLEU is torchtext's: of the tokens as they are, without smoothing, after greedy search of at most 50
tokens. Perplexity is the exponential of the mean loss of batches of 128 pairs of similar length.
"""

import sys
from argparse import ArgumentParser

import torch
from sacrebleu import corpus_bleu
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq

from modeling_aiayn.data.corpus import read_pairs
from modeling_aiayn.saved.tokenizers import load_tokenizers
from modeling_aiayn.tokenization import decode_lines


def interleaved_lengths(row: dict[str, list[int]]) -> str:
    """The order in which torchtext evaluates: the bits of both lengths in turn, without `</s>`."""
    lengths = (f"{len(row[name]) - 1:016b}" for name in ("input_ids", "labels"))
    return "".join(map("".join, zip(*lengths, strict=True)))


parser = ArgumentParser()
parser.add_argument("--model", required=True, help="a folder that train_translation.py wrote")
parser.add_argument("--file", required=True, help="tokens, as spacy_tokens.py writes them")
parser.add_argument("--languages", nargs=2, required=True, help="ISO 639 codes, such as de en")
flags = parser.parse_args()

model = AutoModelForSeq2SeqLM.from_pretrained(flags.model).eval()
source, target = load_tokenizers(flags.model, model.config)
rows = [
    {"input_ids": source(pair["source"]).input_ids, "labels": target(pair["target"]).input_ids}
    | {"text": pair["target"]}
    for pair in read_pairs(flags.file, *flags.languages)
]
rows.sort(key=interleaved_lengths)
references = [row.pop("text") for row in rows]
collate = DataCollatorForSeq2Seq(source, model)
search = {"num_beams": 1, "do_sample": False, "max_new_tokens": 50}

losses, translations = [], []
for start in range(0, len(rows), 128):
    batch = collate(rows[start : start + 128])
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.inference_mode():
        losses.append(model(**batch).loss)
        translations += decode_lines(target, model.generate(**inputs, **search).tolist())
bleu = corpus_bleu(translations, [references], tokenize="none", smooth_method="none", force=True)
perplexity = torch.stack(losses).mean().exp()
sys.stdout.write(f"BLEU {bleu.score:.2f}, perplexity {perplexity:.3f}\n")
