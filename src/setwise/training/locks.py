"""Locks: one process at a time, and words for why a lock cannot be had."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Taken(ValueError):
    """Another process holds the lock, or the lock is another user's."""


@contextmanager
def locked(path: Path, *, option: str) -> Iterator[None]:
    """Hold the lock file ``path``. Raise ``Taken`` if another does, a ValueError if the file system has no locks.

    The system frees a dead process's lock. Where it cannot lock at all, filelock notes the holder in the file instead
    and takes over from one that died on this machine; a file without such a note has to be removed by a person.
    ``option`` of the command line gives another place.
    """
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        by_hand = f", or one was killed: then remove {path}" if isinstance(lock, SoftFileLock) else ""
        raise Taken(f"another process is at work there and holds {path.name}{by_hand}") from error
    except PermissionError as error:
        raise Taken(f"{path} cannot be opened: {error.strerror}; it may be another user's") from error
    except (NotImplementedError, OSError) as error:  # the former: filelock of 2023 where flock is missing
        if isinstance(error, OSError) and error.errno not in NO_LOCKS:
            raise
        raise ValueError(
            f"expected to lock {path}, got a file system without locks ({error}); "
            f"give a folder on a local disk with {option}"
        ) from error
    try:
        yield
    finally:
        lock.release()
