"""The state of a training run: its folder, its checkpoints, and how it resumes."""
