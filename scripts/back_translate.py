"""Run `aiayn back-translate` from a checkout."""

from aiayn import run_job

if __name__ == "__main__":
    run_job("back-translate")
