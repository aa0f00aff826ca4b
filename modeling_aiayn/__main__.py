"""Run a job: `python -m modeling_aiayn JOB` is the same as `aiayn JOB`."""

from aiayn import main

if __name__ == "__main__":
    main()
