"""Measure the memory of an import: a model of NLLB-200's size with random weights. Linux only.

python benchmarks/import_memory.py --size 600M
python benchmarks/import_memory.py --size 3.3B  # in bfloat16; needs 20 GB of memory and of disk
"""

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration
from transformers.hf_argparser import HfArg

from modeling_aiayn.commands.command_line import parse_arguments, run_command

# Width, layers of each half, and type of the weights.
SIZES = {"600M": (1024, 12, torch.float32), "3.3B": (2048, 24, torch.bfloat16)}
MIB = 2**20


@dataclass
class Arguments:
    """The model and the comparison."""

    size: str = HfArg(default="600M", metadata={"choices": list(SIZES)}, help="Parameters.")
    sources: int = HfArg(default=4, help="Random sources to compare on.")


def write_model(folder: Path, size: str) -> None:
    """Write a model with random weights; norms and biases are those of a new model."""
    width, layers, dtype = SIZES[size]
    halves = {}
    for half in ("encoder", "decoder"):
        halves |= {f"{half}_layers": layers, f"{half}_ffn_dim": 4 * width}
        halves |= {f"{half}_attention_heads": 16}
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    config = M2M100Config(**halves, vocab_size=256206, d_model=width, init_std=width**-0.5)
    M2M100ForConditionalGeneration(config).save_pretrained(folder, max_shard_size="2GB")


def peak_memory(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return its peak memory without and with mapped files, in MiB, and seconds."""
    start, peaks = time.monotonic(), [0, 0]
    with subprocess.Popen(command) as process:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            found = re.findall(r"(?:RssAnon|VmRSS):\s+(\d+)", status.read_text())
            # The status names VmRSS first.
            peaks = [max(a, int(b)) for a, b in zip(peaks, reversed(found), strict=False)] or peaks
            time.sleep(0.05)
    if process.returncode:
        raise OSError(f"The import ended with {process.returncode}.")
    return peaks[0] / 1024, peaks[1] / 1024, time.monotonic() - start


def main() -> None:
    """Write, import and measure; print the report."""
    (given,) = parse_arguments(__doc__, Arguments)
    with TemporaryDirectory() as place:
        folder = Path(place)
        write_model(folder / "peer", given.size)
        weights = sum(x.stat().st_size for x in (folder / "peer").glob("*.safetensors")) / MIB
        command = [sys.executable, "-m", "modeling_aiayn", "import-weights", "--system", "m2m100"]
        command += ["--source", str(folder / "peer"), "--output", str(folder / "ours")]
        own, whole, seconds = peak_memory([*command, "--sources", str(given.sources)])
    sys.stdout.write(
        f"weights {weights:,.0f} MiB; memory {own:,.0f} MiB ({own / weights:.2f} times), with "
        f"mapped files {whole:,.0f} MiB ({whole / weights:.2f}); {seconds:.0f} s\n"
    )


if __name__ == "__main__":
    run_command(main)
