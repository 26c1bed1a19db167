"""Locks between processes. The system releases them when a process ends, also when it is killed."""

from __future__ import annotations

import errno
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any


def lock(path: Path) -> AbstractContextManager[Any]:
    """Wait for the lock of the file ``path``, in a folder that is there; it is held until the block ends.

    Raises an OSError where the folder cannot be written or its file system has no locks. There filelock would take a
    file that merely exists for a lock, and one that a killed process left would block for ever.
    """
    from filelock import FileLock

    with TemporaryFile(dir=path.parent) as probe:  # a lock file that is there already says nothing of the folder
        try:
            import fcntl

            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # Windows has locks of its own
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            raise OSError(
                f"expected a file system with locks for {path.parent}, got: {error.strerror}; use a folder on a local "
                "disk, by --root (root= in Python) or $SETWISE_DATA, or have locks switched on where it is mounted"
            ) from error
    return FileLock(path).acquire()
