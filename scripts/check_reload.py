"""Prove that a folder loads like any library model: AutoModelForSeq2SeqLM, in a fresh process.

    python scripts/check_reload.py --model runs/demo --text "The old man sees the dog."

The code beside the weights is used, and the package is hidden: so it is for whoever downloads it.
"""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer


def main() -> None:
    """Load, translate, show."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="A trained model's folder.")
    parser.add_argument("--text", nargs="+", required=True, help="Sentences to translate.")
    arguments = parser.parse_args()
    if not Path(arguments.model).is_dir():
        parser.error(f"no such directory: {arguments.model}")
    # With this an import of the package ends in an ImportError.
    sys.modules["modeling_aiayn"] = None
    model = AutoModelForSeq2SeqLM.from_pretrained(arguments.model, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, trust_remote_code=True)
    batch = tokenizer(arguments.text, padding=True, return_tensors="pt")
    target = Path(arguments.model, "target_tokenizer")
    if target.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=True)
    translations = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    sys.stdout.write(f"Reloaded {type(model).__name__} with code from {arguments.model}:\n")
    for text, translation in zip(arguments.text, translations, strict=True):
        sys.stdout.write(f"  {text}\n    -> {translation}\n")


if __name__ == "__main__":
    main()
