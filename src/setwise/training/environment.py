"""What a run ran on: commit, versions, hardware, command."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch

from setwise.version import __version__


def environment(device: torch.device) -> dict[str, Any]:
    """The commit, the versions, the hardware and the command of this process."""
    hardware: dict[str, Any] = {"device": device.type, "machine": platform.machine(), "cores": os.cpu_count()}
    if device.type == "cuda":
        hardware |= {"name": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    else:
        hardware |= {"name": _processor(), "threads": torch.get_num_threads()}
    return {
        "commit": _commit(),
        "versions": {
            "setwise": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "hardware": hardware,
        "command": [Path(sys.argv[0]).name, *map(plain_path, sys.argv[1:])],
    }


def plain_path(word: str) -> str:
    """Paths are private: the last part of an absolute path; any other word itself."""
    option, equals, path = word.partition("=") if word.startswith("--") else ("", "", word)
    return option + equals + (Path(path).name if Path(path).is_absolute() else path)


def _commit() -> str | None:
    """The commit of this source, with "+" if the source was changed since; None where it is not a checkout."""
    source = Path(__file__).parents[1]  # the package

    def git(*words: str) -> str:
        # Without locks: a process that is killed here would leave one, and then nobody could commit.
        command = ["git", "--no-optional-locks", "-C", str(source), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        if not git("ls-files", __file__):
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", str(source)) else "")
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("SETWISE_COMMIT")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
