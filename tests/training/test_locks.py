"""Locks: what holds one, and what is said where none can be had."""

import errno
import fcntl
import subprocess
import sys

import pytest
from filelock import FileLock

from setwise.training.locks import Taken, locked


@pytest.fixture
def no_flock(monkeypatch):
    """A file system that says this to a lock."""

    def fail(number: int) -> None:
        def flock(*given: object) -> None:
            raise OSError(number, "no locks")

        monkeypatch.setattr(fcntl, "flock", flock)

    return fail


def test_one_at_a_time(tmp_path):
    path = tmp_path / ".lock"
    with locked(path, option="--out"):
        with pytest.raises(Taken, match="another process") as error, locked(path, option="--out"):
            pass
        assert "remove" not in str(error.value), "the system frees it"
    with FileLock(path, timeout=0):
        pass


def test_an_error_within_is_not_the_locks(tmp_path):
    with pytest.raises(PermissionError), locked(tmp_path / ".lock", option="--out"):
        raise PermissionError(13, "mine")
    with locked(tmp_path / ".lock", option="--out"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_told_with_what_to_do(tmp_path, no_flock, number):
    no_flock(number)
    told = pytest.raises(ValueError, match="no locks.*local disk.*--results")
    with told as error, locked(tmp_path / ".lock", option="--results"):
        pass
    assert not isinstance(error.value, Taken)
    assert str(tmp_path / ".lock") in str(error.value)


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_without_locks_a_dead_holder_is_followed_and_an_unknown_one_is_named(tmp_path, no_flock):
    no_flock(errno.ENOSYS)
    path = tmp_path / ".lock"
    code = "import filelock, os, sys; lock = filelock.SoftFileLock(sys.argv[1]); lock.acquire(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, path], check=True)
    assert path.exists()
    with locked(path, option="--out"):
        pass
    path.touch()  # a process was killed before it wrote its number
    with pytest.raises(Taken, match=f"remove {path}"), locked(path, option="--out"):
        pass
