"""Run `aiayn export-ctranslate2` from a checkout."""

from aiayn import run_job

if __name__ == "__main__":
    run_job("export-ctranslate2")
