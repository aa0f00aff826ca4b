r"""Translate text in one language back, as training pairs for a model of the other direction.

aiayn back-translate --model runs/de-en --input mono.de --output synthetic.jsonl
aiayn train-translation multi30k_tiny.yaml --corpora corpora.yaml --output_dir runs/en-de

The translations are sampled, from which models learn more than from beam search (Edunov et al.
2018, arXiv:1808.09381): pass --do_sample false for beam search. In corpora.yaml, mark the pairs
with back_translated: true.
"""

from .distill import write_pairs


def main() -> None:
    write_pairs(__doc__, do_sample=True)
