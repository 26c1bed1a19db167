"""Locks between processes, and words for why one cannot be had. The system frees a dead process's lock."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class LockTaken(ValueError):
    """Another process holds the lock, or the lock is another user's."""


@contextmanager
def locked(path: Path, *, option: str, wait: bool = False) -> Iterator[None]:
    """Hold the lock of the file ``path``, in a folder that is there, until the block ends.

    Without ``wait`` a lock that another holds raises ``LockTaken``. A file system without locks raises an OSError,
    which says by which ``option`` to give another place. (filelock would take a file that merely exists for a lock
    there, and one that a killed process left would block for ever.)
    """
    from filelock import FileLock, Timeout

    _check_locks(path, option)
    lock = FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout as error:
        raise LockTaken(f"another process is at work there and holds {path.name}") from error
    except PermissionError as error:
        raise LockTaken(f"{path} cannot be opened: {error.strerror}; it may be another user's") from error
    try:
        yield
    finally:
        lock.release()


def _check_locks(path: Path, option: str) -> None:
    """Raise unless the folder's file system has locks; a lock file that is there already says nothing of that."""
    with TemporaryFile(dir=path.parent) as probe:
        try:
            import fcntl

            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # Windows has locks of its own
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise OSError(
                f"expected a file system with locks for {path.parent}, got: {error.strerror}; use a folder on a local "
                f"disk, by {option}, or have locks switched on where it is mounted"
            ) from error
