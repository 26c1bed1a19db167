"""Packages that are not among the dev dependencies: their tests run where they import, and say why elsewhere."""

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def package() -> Callable[[str], ModuleType]:
    """The module of that name, or a skip with the reason why there is none."""

    def find(name: str) -> ModuleType:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # their own, about each other
                return importlib.import_module(name)
        except (ImportError, RuntimeError) as error:  # the latter: a torchvision built for another torch
            pytest.skip(f"needs {name}, which does not import here: {error}")

    return find
