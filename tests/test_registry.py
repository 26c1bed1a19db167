"""Registries: names, options, families, functions by path, files and entry points; words as annotated kinds."""

import importlib.metadata
import inspect
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

import setwise.register as register
from setwise.registry import Registry, convert, load_entry_points, load_file, words
from setwise.views.pipeline import Views, add_preset


@pytest.fixture
def shapes():
    made = Registry("shape", given=("size",))

    @made("box", about="Six sides.")
    def box(size: int, *, colour: Literal["red", "blue"] = "red", edge: float = 1.0):
        return ("box", size, colour, edge)

    @made("lens/", about="Any lens of that name.")
    def lens(name: str, size: int, *, focus: float):
        return (name, size, focus)

    @made("ball", about="No sides.", takes=("air",))
    @dataclass
    class Ball:
        size: int
        soft: bool = False

    return made


def test_a_thing_is_made_with_its_options_and_what_the_library_gives(shapes):
    assert shapes.make("box", {"edge": "2"}, size=3) == ("box", 3, "red", 2.0)
    assert shapes.make("ball", {"soft": "true"}, size=1).soft is True
    assert list(shapes) == ["box", "lens/", "ball"]
    assert len(shapes) == 3
    assert shapes["ball"].takes == ("air",)
    assert {name: option.default for name, option in shapes["box"].options.items()} == {"colour": "red", "edge": 1.0}


def test_a_family_has_members_by_name(shapes):
    assert shapes.make("lens/wide", {"focus": 0.5}, size=2) == ("wide", 2, 0.5)
    assert list(shapes["lens/wide"].options) == ["focus"]
    with pytest.raises(ValueError, match="expected focus for 'lens/wide', got none"):
        shapes.make("lens/wide", size=2)
    with pytest.raises(ValueError, match="got 'prism/wide'"):
        shapes["prism/wide"]


def test_what_is_unknown_is_answered_with_the_nearest(shapes):
    for wrong, message in (("bax", "did you mean 'box'"), ("zzz", "one of box, lens/, ball, got 'zzz'$")):
        with pytest.raises(ValueError, match=message):
            shapes[wrong]
    with pytest.raises(ValueError, match="expected an option of 'box', .*got 'colur'; did you mean 'colour'"):
        shapes.make("box", {"colur": "red"}, size=1)
    with pytest.raises(ValueError, match="expected colour, one of red, blue, got 'rad'; did you mean 'red'"):
        shapes.make("box", {"colour": "rad"}, size=1)


def test_a_name_is_taken_once_but_a_definition_may_come_again(shapes):
    def define(module, name="box", scale=1):
        def make(size: int):
            return scale * size

        make.__module__, make.__qualname__ = module, name
        return make

    with pytest.raises(ValueError, match="a new name for the shape, got 'box'"):
        shapes("box", about="Another one.")(define("elsewhere"))
    for cell, (first, second) in enumerate(
        [(("ideas", "cone"), ("ideas", "cone")), (("__main__", "cone"), ("__main__", "renamed"))]
    ):
        shapes(f"cone-{cell}", about="First.")(define(*first))
        shapes(f"cone-{cell}", about="Second.")(define(*second, scale=2))
        assert shapes.make(f"cone-{cell}", size=3) == 6
    with pytest.raises(ValueError, match="a new name"):
        shapes("cone-1", about="Third.")(define("ideas"))
    with pytest.raises(ValueError, match="a new name for the preset of views"):
        add_preset("flip", Views(), about="Mine.")


def test_a_name_of_ours_is_taken_before_our_own_is_imported():
    code = (
        "import setwise.register as register\n"
        "try: register.optimizer('adam', about='Mine.')(lambda groups, *, lr: None)\n"
        "except ValueError: print('taken')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"taken\n"


def test_a_function_by_its_path_is_imported_only_if_a_person_says_so(shapes, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "outside_shapes.py").write_text(
        "def cone(size: int, *, tip: float = 1.0): return (size, tip)\nno = 3\n"
    )
    with pytest.raises(ValueError, match="files import nothing"):
        shapes["outside_shapes:cone"]
    assert "outside_shapes" not in sys.modules
    shapes.trust("outside_shapes:cone")
    shapes.trust("box")
    assert shapes.make("outside_shapes:cone", {"tip": "3"}, size=1) == (1, 3.0)
    for wrong in ("outside_shapes:none", "no_such_module:x", "outside_shapes:no"):
        with pytest.raises(ValueError, match=f"expected .*'{wrong}'"):
            shapes.trust(wrong)


@pytest.mark.usefixtures("registries")
def test_files_and_entry_points_register(tmp_path, monkeypatch):
    path = tmp_path / "ideas.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport setwise as sw\n"
        "@sw.register.term('spread', about='Apart.')\n"
        "def spread(z_a, z_b, *, scale: float = 2.0): return scale * (z_a - z_b).square().mean()\n"
        "@sw.register.loss('mine', about='Mine.')\n@dataclass\nclass Mine:\n    scale: float = 2.0\n"
    )
    load_file(path)
    assert register.loss["mine"].fill({"scale": "3"}) == {"scale": 3.0}
    assert register.term["spread"].options["scale"].default == 2.0
    load_file(path)  # again, as --use twice
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ideas.py").write_text(path.read_text())
    with pytest.raises(ValueError, match="a new name"):
        load_file(tmp_path / "other" / "ideas.py")
    with pytest.raises(ValueError, match=r"expected a Python file .*nothing\.py"):
        load_file(tmp_path / "nothing.py")

    class Point:
        def load(self):
            register.term("from-a-package", about="Elsewhere.")(lambda z_a, z_b: 0)

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [Point()] if group == "setwise" else [])
    load_entry_points()
    assert "from-a-package" in register.term


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("3", int, 3),
        (3.0, int, 3),
        (np.int64(3), int, 3),
        ("1e-3", float, 1e-3),
        (2, float, 2.0),
        (np.float32(0.5), float, 0.5),
        ("True", bool, True),
        (False, bool, False),
        ("red", str, "red"),
        ("red", Literal["red", "blue"], "red"),
        ("none", int | None, None),
        (None, int | None, None),
        ("4", int | None, 4),
        ("none", float | str | None, None),
        ("4", float | str, 4.0),
        ("four", float | str, "four"),
        ("1,2", tuple[float, float], (1.0, 2.0)),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("a,b,c", tuple[str, ...], ("a", "b", "c")),
        ({"any": 1}, Any, {"any": 1}),
    ],
)
def test_convert(value, kind, expected):
    found = convert(value, kind, "it")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        *(("x", int), ("1.5", int), (1.5, int), (True, int), (float("inf"), int), (float("nan"), int), (None, int)),
        *(("x", float), (True, float), ([1], float), ("yes", bool), (1, bool), (3, str), (None, str)),
        *(("rad", Literal["red"]), (["red"], Literal["red"]), ("x", int | None), ("x", int | float)),
        *(("1", tuple[int, int]), (3, tuple[int, ...]), ("1,x", tuple[int, ...])),
    ],
)
def test_convert_refuses(value, kind):
    with pytest.raises(ValueError, match=r"expected --it.*\bgot "):
        convert(value, kind, "--it")


def test_words_are_for_people():
    from torch import Tensor

    assert words(float | Tensor) == "a number"
    assert words(int | None) == "a whole number or none"
    assert words(Literal["a", "b"]) == "one of a, b"
    assert "2 values" in words(tuple[float, float])


@pytest.mark.parametrize("kind", ["encoder", "loss", "term", "method", "optimizer", "schedule", "views", "logger"])
def test_every_entry_of_ours_says_what_it_is_and_can_be_read(kind):
    entries = getattr(register, kind)
    assert len(entries) > 2
    for entry in entries.values():
        assert len(entry.about) > 10
        assert entry.about.endswith((".", "?"))
        for option in entry.options.values():
            assert option.default is inspect.Parameter.empty or words(option.kind), (entry.name, option)
