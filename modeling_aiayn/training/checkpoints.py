"""Where a run goes on from."""

from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from .arguments import AiaynTrainingArguments


def checkpoint_to_resume(args: AiaynTrainingArguments) -> str | None:
    """The checkpoint that args.resume names, or None to start afresh.

    Args:
        args: The run's arguments.

    Returns:
        A checkpoint's folder, or None.

    Raises:
        OSError: There is no such checkpoint, or output_dir is no folder.
        ValueError: output_dir holds another run's checkpoints, and args does not say to resume.
    """
    output_dir = Path(args.output_dir)
    if output_dir.exists() and not output_dir.is_dir():
        raise NotADirectoryError(f"output_dir is not a directory: {output_dir}.")
    newest = get_last_checkpoint(output_dir) if output_dir.is_dir() else None
    if args.resume is None:
        if newest is not None:
            raise ValueError(
                f"output_dir {output_dir} holds the checkpoints of another run. Go on with it by "
                "--resume auto, or give a new --output_dir."
            )
        return None
    if args.resume == "auto":
        return newest
    if not Path(args.resume).is_dir():
        raise FileNotFoundError(f"No such checkpoint: {args.resume}.")
    return args.resume
