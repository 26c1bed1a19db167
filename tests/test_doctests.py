"""The examples in docstrings are true, and every public function and class has one."""

import doctest
import importlib
import pkgutil
import re

import pytest
import torch

import setwise as sw

NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")
FINDER = doctest.DocTestFinder(exclude_empty=True)
ROOMS = ("similarity", "assignment", "losses", "encoders", "data", "views", "methods", "evaluation", "front")
PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (sw, sw.functional, sw.assignment)
    for name in module.__all__
    if callable(getattr(module, name)) and not hasattr(getattr(module, name), "__match_args__")  # results of others
}


def examples():
    """Every docstring with an example, by its full name; examples know ``torch`` and ``sw``."""
    modules = [sw]
    for room in ROOMS:
        found = importlib.import_module(f"setwise.{room}")
        modules.append(found)
        below = pkgutil.iter_modules(getattr(found, "__path__", []), f"{found.__name__}.")
        modules += [importlib.import_module(info.name) for info in below]
    tests = [test for module in modules for test in FINDER.find(module, globs={"torch": torch, "sw": sw})]
    return {test.name: test for test in tests if test.examples}


EXAMPLES = examples()


class Near(doctest.OutputChecker):
    """Numbers with a point may differ in their last digit, which processors round differently."""

    def check_output(self, want, got, optionflags):
        numbers = [[float(x) for x in NUMBER.findall(text)] for text in (want, got)]
        words = [NUMBER.sub("#", text) for text in (want, got)]
        return words[0] == words[1] and numbers[0] == pytest.approx(numbers[1], abs=1.5e-4)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_is_true(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = []
    runner = doctest.DocTestRunner(checker=Near(), verbose=False)
    runner.run(EXAMPLES[name], out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_what_is_public_has_an_example(name):
    assert ">>> " in PUBLIC[name].__doc__


def test_near_is_not_far():
    assert Near().check_output("tensor(0.3408)\n", "tensor(0.3409)\n", 0)
    assert not Near().check_output("tensor(0.3408)\n", "tensor(0.3418)\n", 0)
    assert not Near().check_output("tensor(0.3408)\n", "(0.3408)\n", 0)
