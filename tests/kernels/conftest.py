"""Kernels' own texts on a CPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def for_cpu(tmp_path_factory):
    """Compiles a kernel's text after block.h for the CPU; products and sums are rounded one by one."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++, none here")
    folder = tmp_path_factory.mktemp("kernels")

    def build(text: str) -> ctypes.CDLL:
        name = folder / str(len(list(folder.iterdir())))
        name.with_suffix(".cpp").write_text(f'#include "{Path(__file__).parent / "block.h"}"\n{text}')
        options = ["-std=c++20", "-O1", "-fPIC", "-shared", "-ffp-contract=off"]
        subprocess.run(["g++", *options, name.with_suffix(".cpp"), "-o", name.with_suffix(".so")], check=True)
        return ctypes.CDLL(str(name.with_suffix(".so")))

    return build
