"""The command line: one module for each job, with the job's flags and its `main()`."""
