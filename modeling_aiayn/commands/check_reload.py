"""Check that a saved translation model loads with transformers alone, in a fresh process.

aiayn check-reload --model runs/demo --text "The old man sees the dog."
"""

import os
import subprocess
import sys
from dataclasses import dataclass

from transformers.hf_argparser import HfArg

from ..saved.folders import load_config
from .command_line import parse_arguments

# Arguments: a model folder, then sentences.
PROGRAM = """
import os, signal, sys
from pathlib import Path

signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

sys.modules["modeling_aiayn"] = None  # any import of the package now raises ImportError
folder, *texts = sys.argv[1:]
model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(texts, padding=True, return_tensors="pt")
target = Path(folder, "target_tokenizer")
if target.is_dir():
    tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=True)
translations = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
sys.stdout.write(f"Reloaded {type(model).__name__} with code from {folder}:\\n")
for text, translation in zip(texts, translations, strict=True):
    sys.stdout.write(f"  {text}\\n    -> {translation}\\n")
"""


@dataclass
class ReloadFlags:
    model: str = HfArg(help="Folder of a trained translation model.")
    text: list[str] = HfArg(help="Sentences to translate.")


def main() -> None:
    (flags,) = parse_arguments(__doc__, ReloadFlags)
    config, head = load_config(flags.model), "AiaynForConditionalGeneration"
    saved_as = config.architectures or ["none"]
    if head not in saved_as:  # other models would translate with random weights
        raise ValueError(f"{flags.model} must be saved as {head}, got {saved_as[0]}.")
    if not getattr(config, "auto_map", None):
        raise ValueError(f"{flags.model} holds no code, so only this package can load it.")
    # -P: do not search the working folder for imports.
    command = [sys.executable, "-P", "-c", PROGRAM, flags.model, *flags.text]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, encoding="utf-8", env=environment, check=False
    )
    sys.stdout.write(done.stdout)
    code = done.returncode
    sys.exit(code if code >= 0 else 128 - code)  # negative: ended by a signal
