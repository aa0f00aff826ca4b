"""Run what users of other libraries do with our saved folders, each in an environment of its own.

    python tests/clients [client ...]

Prints a table. Exits with 1 if a client fails. The environments are in .versions.
"""

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "versions"), str(ROOT / "tests")]

from environments import environment, run  # noqa: E402

CLIENTS = {
    "trl": ("trl==1.16.0",),
    "lm_eval": ("lm_eval[hf]==0.4.13",),
    "sentence_transformers": ("sentence-transformers==6.2.0",),
    "lightning": ("lightning==2.6.6",),
    "quanto": ("optimum-quanto==0.2.7",),
    "torchao": ("torchao==0.18.0",),
    "bertviz": ("bertviz==1.4.1",),
    "onnx": ("onnx==1.23.2", "onnxruntime==1.32.0"),
    "optimum": ("optimum-onnx==0.1.0", "transformers==4.57.6", "datasets==4.0.0"),
    "examples": ("scikit-learn==1.7.2",),
    "libretranslate": ("deep-translator==1.11.4", "libretranslatepy==2.1.4"),
    "libreoffice": (),
    "ray": ("ray[data]==2.60.0",),
    "spark": ("pyspark==4.1.0",),
}


def save_folders(folder: Path) -> None:
    """Save a translator, its encoder, and a language model of bytes."""
    import torch

    import modeling_aiayn as aiayn
    from modeling_aiayn.data.embedded_corpus import generate_pairs
    from modeling_aiayn.tokenization import byte_tokenizer, train_bpe_tokenizer

    torch.manual_seed(0)
    pairs = generate_pairs("train", 200)
    texts = [text for pair in pairs for text in (pair.source, pair.target)]
    words = train_bpe_tokenizer(texts, 600)
    for name, cls, tokenizer in (
        ("translation", aiayn.AiaynForConditionalGeneration, words),
        ("language_model", aiayn.AiaynForCausalLM, byte_tokenizer()),
    ):
        sizes = {"d_model": 48, "vocab_size": len(tokenizer)}
        config = aiayn.AiaynConfig.from_preset("tiny", dropout=0.0, **sizes)
        cls(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    encoder = aiayn.AiaynEncoderModel.from_pretrained(folder / "translation")
    encoder.save_pretrained(folder / "encoder")
    words.save_pretrained(folder / "encoder")


def save_onnx(folder: Path) -> None:
    """Save the bundled model as ONNX, with sentences and the ids of generate() for them."""
    from modeling_aiayn.data.embedded_corpus import generate_pairs
    from modeling_aiayn.interop.onnx_export import export_onnx
    from modeling_aiayn.translation import Translator

    translator = Translator.from_pretrained("aiayn-en-de")
    export_onnx(translator, folder / "onnx", ["float32"])
    sentences = [pair.source for pair in generate_pairs("test", 50)]
    batch = translator.source_tokenizer(sentences, padding=True, return_tensors="pt")
    ids = translator.model.float().generate(**batch, num_beams=4, max_new_tokens=60)
    expected = {"sentences": sentences, "ids": ids.tolist()}
    (folder / "onnx" / "expected.json").write_text(json.dumps(expected), "utf-8")


def main(clients: list[str]) -> None:
    """Check the named clients, or all of them."""
    failed = False
    with tempfile.TemporaryDirectory() as name:
        save_folders(Path(name))
        if not clients or "optimum" in clients:
            save_onnx(Path(name))
        sys.stdout.write("| client | result |\n|---|---|\n")
        for client in clients or CLIENTS:
            requirements = CLIENTS[client]
            python = environment(ROOT / ".versions" / f"client-{client}", *requirements)
            checks = ROOT / "tests" / "clients" / "checks.py"
            done = run(python, checks, client, name, home=Path(name) / "home")
            lines = (done.stderr if done.returncode else done.stdout).splitlines() or ["no output"]
            failed |= done.returncode != 0
            result = f"failed: {lines[-1]}" if done.returncode else lines[-1]
            sys.stdout.write(f"| {' '.join(requirements) or client} | {result} |\n")
            sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main(sys.argv[1:])
