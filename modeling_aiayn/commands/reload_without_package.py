"""Translate with a saved folder and transformers alone; check-reload runs this file by its path.

Arguments: a model folder, then sentences.
"""

import os
import signal
import sys
from pathlib import Path

signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer  # noqa: E402


def main() -> None:
    """Load, translate, write."""
    folder, *texts = sys.argv[1:]
    # Any import of the package now raises ImportError.
    sys.modules["modeling_aiayn"] = None  # type: ignore[assignment]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    target = Path(folder, "target_tokenizer")
    if target.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=True)
    translations = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    sys.stdout.write(f"Reloaded {type(model).__name__} with code from {folder}:\n")
    for text, translation in zip(texts, translations, strict=True):
        sys.stdout.write(f"  {text}\n    -> {translation}\n")


if __name__ == "__main__":
    main()
