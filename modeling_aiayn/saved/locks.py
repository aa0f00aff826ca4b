"""File locks, which the system releases when their process ends, even if it is killed."""

import logging
from contextlib import ExitStack
from pathlib import Path

from filelock import FileLock

try:
    import fcntl
except ImportError:  # Windows, which forks no workers
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)


def lock_file(path: Path, *, is_waiting: bool = False) -> ExitStack:
    """Lock a file for this process until the returned context is closed.

    Without is_waiting, a BlockingIOError or Timeout is raised if another process has the lock.
    Forked workers would inherit a lock of the package filelock and, after the trainer is killed,
    hold it for some seconds. They do not inherit this lock.
    """
    lock = ExitStack()
    if fcntl is None:
        lock.enter_context(FileLock(path).acquire(timeout=-1 if is_waiting else 0))
        return lock
    file = lock.enter_context(path.open("a"))
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if is_waiting else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        raise
    except OSError as error:  # some network file systems have no locks
        logger.warning(
            "%s cannot be locked (%s). Start only one run that uses it.", path, error.strerror
        )
    return lock
