"""Compiled kernels are kept, and only what is whole and one's own is taken back."""

import os
from unittest.mock import Mock

import pytest

from setwise.kernels.stored import stored

KERNEL = (b"\x7fELF\n\x00 code", "_Z3addPf")


@pytest.fixture
def compiler():
    return Mock(return_value=KERNEL)


@pytest.fixture
def place(tmp_path, monkeypatch):
    folder = tmp_path / "kernels"
    monkeypatch.setenv("SETWISE_KERNELS", str(folder))
    return folder


def test_a_kernel_is_compiled_once(place, compiler):
    first, again = stored("source, sm_90", compiler), stored("source, sm_90", compiler)
    assert first == again == KERNEL
    assert compiler.call_count == 1
    stored("source, sm_100", compiler)
    assert compiler.call_count == 2
    assert len(list(place.iterdir())) == 2
    assert place.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [b"", b"short", b"\n\n", bytes(100), b"a\nb\nc"])
def test_a_damaged_file_is_compiled_anew(place, compiler, damage):
    stored("key", compiler)
    (file,) = place.iterdir()
    whole = file.read_bytes()
    for text in (damage, whole[:-1], whole + b"x", whole.replace(b"_Z3", b"_Z4")):
        file.write_bytes(text)
        assert stored("key", compiler) == KERNEL
        assert file.read_bytes() == whole
    assert compiler.call_count == 5


def test_what_others_could_have_written_is_not_taken(place, compiler):
    stored("key", compiler)
    (file,) = place.iterdir()
    for path in (file, place):
        usual = path.stat().st_mode
        path.chmod(usual | 0o020)
        stored("key", compiler)
        path.chmod(usual)
    assert compiler.call_count == 3
    if hasattr(os, "getuid") and os.getuid() == 0:  # only root can give a file away
        os.chown(file, 12345, -1)
        stored("key", compiler)
        assert compiler.call_count == 4


@pytest.mark.parametrize("lacks", ["folder", "home"])
def test_where_nothing_can_be_written_it_compiles_each_time(tmp_path, monkeypatch, compiler, lacks):
    if lacks == "folder":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("SETWISE_KERNELS", str(tmp_path / "file" / "below"))
    else:
        monkeypatch.delenv("SETWISE_KERNELS", raising=False)
        monkeypatch.setattr("setwise.kernels.stored.Path.home", Mock(side_effect=RuntimeError("no home")))
    assert stored("key", compiler) == stored("key", compiler) == KERNEL
    assert compiler.call_count == 2
