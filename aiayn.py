"""The `aiayn` command: start a job after making Ctrl-C safe.

Importing torch and transformers takes seconds. This module imports neither before it has installed
a handler for Ctrl-C, so an interrupt during startup ends with exit code 130 and no traceback.
"""

import importlib
import io
import os
import signal
import sys

# Variables that switch off the progress bars of tqdm, huggingface_hub, transformers and datasets.
NO_BARS = ("TQDM_DISABLE", "HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
JOBS = (
    "demo",
    "train-translation",
    "translate",
    "serve",
    "app",
    "evaluate-translation",
    "train-classifier",
    "classify",
    "train-language-model",
    "complete",
    "average-checkpoints",
    "import-weights",
    "quantize",
    "compile",
    "make-shortlist",
    "distill",
    "back-translate",
    "export-ctranslate2",
    "export-onnx",
    "export-marian",
    "check-reload",
    "push-to-hub",
    "show-attention",
    "score-alignment",
)


def main() -> None:
    """Run the job that the first argument names."""
    job = sys.argv[1].replace("_", "-") if len(sys.argv) > 1 else "--help"
    if job in ("-h", "--help"):
        sys.stdout.write(_help())
    elif job not in JOBS:
        sys.stderr.write(f"error: unknown job {job!r}. Choose one of: {', '.join(JOBS)}.\n")
        sys.exit(2)
    else:
        sys.argv = [f"aiayn {job}", *sys.argv[2:]]
        run_job(job)


def run_job(job: str) -> None:
    """Run a job, one of JOBS, with the flags in sys.argv."""
    _open_closed_streams()
    if not sys.stderr.isatty():  # in a log file, a progress bar is one endless line
        for name in NO_BARS:
            os.environ.setdefault(name, "1")
    # torch's OpenMP reads this when it is imported. Its threads then stop spinning sooner: beside a
    # busy program of another terminal, training was eight times as fast, and alone 2 % slower.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # KeyboardInterrupt would show a traceback, or get lost while an extension is imported.
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    command_line = importlib.import_module("modeling_aiayn.commands.command_line")

    def run() -> None:
        command = importlib.import_module(f"modeling_aiayn.commands.{job.replace('-', '_')}")
        # From here on, Ctrl-C raises KeyboardInterrupt and the job can close its files.
        signal.signal(signal.SIGINT, handler)
        command.main()

    if isinstance(sys.stdout, io.TextIOWrapper):  # nobody has replaced it
        is_log = job == "demo" or job.startswith("train-")
        sys.stdout.reconfigure(encoding="utf-8", line_buffering=is_log or None)
    command_line.run_command(run)


def _open_closed_streams() -> None:
    """Reopen standard streams that the caller closed; else new files would get their descriptors.

    Writing to such a stream raises an error, because the descriptor is open for reading only.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _help() -> str:
    jobs = "\n".join(f"  {job:<22}{_summary(job)}" for job in JOBS)
    return f"usage: aiayn JOB [flags]\n\njobs:\n{jobs}\n\naiayn JOB --help lists its flags.\n"


def _summary(job: str) -> str:
    import ast
    from pathlib import Path

    # Read the file instead of importing it: an import takes seconds.
    file = Path(__file__).with_name("modeling_aiayn") / "commands" / f"{job.replace('-', '_')}.py"
    return (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "").splitlines()[0]


if __name__ == "__main__":
    main()
