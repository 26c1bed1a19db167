"""Locks: one process holds one; a file system without locks is an error."""

import errno
import fcntl

import pytest
from filelock import FileLock

from setwise.locks import LockTaken, locked


@pytest.fixture
def no_flock(monkeypatch):
    """A file system that fails a lock with this error."""

    def fail(number: int) -> None:
        def flock(*given: object) -> None:
            raise OSError(number, "no locks")

        monkeypatch.setattr(fcntl, "flock", flock)

    return fail


def test_one_at_a_time(tmp_path):
    path = tmp_path / ".lock"
    with locked(path, option="--out"):
        with pytest.raises(LockTaken, match="another process") as error, locked(path, option="--out"):
            pass
        assert "remove" not in str(error.value), "the system frees it"
    with FileLock(path, timeout=0):
        pass


def test_an_error_within_is_not_the_locks(tmp_path):
    with pytest.raises(PermissionError), locked(tmp_path / ".lock", option="--out"):
        raise PermissionError(13, "mine")
    with locked(tmp_path / ".lock", option="--out"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_an_error_with_advice(tmp_path, no_flock, number):
    no_flock(number)
    path = tmp_path / ".lock"
    path.touch()  # of a process that was killed: no process may wait for it
    error = pytest.raises(OSError, match=f"locks for {tmp_path}.*no locks.*local disk, by --results")
    with error, locked(path, option="--results", wait=True):
        pass
