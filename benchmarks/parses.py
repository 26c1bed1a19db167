"""Give words to a command's own parser, and stop there: does it take them?

    python benchmarks/parses.py WORDS, of which the first are SCRIPT.py, or -m setwise COMMAND, or -m pytest

A script is imported, so that a package it needs and does not find is told too; pytest collects its tests and runs none.
Exit code 3 says that some of the tests can be collected and others cannot.
"""

from __future__ import annotations

import argparse
import functools
import os
import runpy
import sys
from importlib.util import find_spec
from typing import Any
from unittest import mock

PARTLY = 3
PACKAGES = ("filelock", "PIL", "rich", "safetensors", "scipy", "sklearn", "tyro")  # of training


class Taken(Exception):
    """The parser took the words."""


def parse(words: list[str]) -> None:
    """Raise, or exit with the parser's or pytest's message, unless the words are taken."""
    if words[:2] == ["-m", "pytest"]:
        import pytest

        nowhere = f"--junitxml={os.devnull}"  # the report of a run that was none would look like a result
        code = pytest.main([*words[2:], "--collect-only", "-q", nowhere])
        if code:
            sys.exit(PARTLY if code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED) else int(code))
        return
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        sys.exit(f"expected the packages {', '.join(PACKAGES)}, got no {', '.join(missing)}")
    if words[:2] == ["-m", "setwise"]:
        from setwise import cli

        command: Any = cli.COMMANDS[words[2]]
        with mock.patch.dict(cli.COMMANDS, {words[2]: functools.wraps(command)(lambda *_, **__: None)}):
            return cli.main(words[2:])
    plain = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, *given: Any) -> None:
        plain(parser, *given)
        raise Taken

    with mock.patch.object(argparse.ArgumentParser, "parse_args", parsed), mock.patch.object(sys, "argv", words):
        try:
            runpy.run_path(words[0], run_name="__main__")
        except Taken:
            return
    sys.exit(f"expected a script with a parser, got {words[0]}")


if __name__ == "__main__":
    parse(sys.argv[1:])
