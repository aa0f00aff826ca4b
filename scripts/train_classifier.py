"""Run `aiayn train-classifier` from a checkout."""

from aiayn import run_job

if __name__ == "__main__":
    run_job("train-classifier")
