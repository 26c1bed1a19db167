"""Shared by all tests: one thread, the same examples every time, seeded embeddings, CUHK-03 in small."""

import importlib.util
import json
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import settings
from torch import Tensor

torch.set_num_threads(1)
settings.register_profile("setwise", derandomize=True, deadline=None)
settings.load_profile("setwise")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, none here")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def hooks() -> Callable[..., ModuleType]:
    """Imports a module of the site by its name."""

    def load(name: str = "hooks") -> ModuleType:
        path = Path(__file__).parent.parent / "docs" / f"{name}.py"
        specification = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(specification)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(path.parent)  # as mkdocs does
            specification.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session", autouse=True)
def own_root(tmp_path_factory: pytest.TempPathFactory):
    """Nothing of the tests is kept in the user's own folder of data sets."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SETWISE_DATA", str(tmp_path_factory.mktemp("root")))
        yield


@pytest.fixture
def views() -> Callable[..., tuple[Tensor, Tensor]]:
    """Two noisy views of the same random items, [N, E] float64, leaves that require a gradient."""

    def make(n: int = 6, e: int = 4, *, noise: float = 0.7, seed: int = 0, dtype: torch.dtype = torch.float64):
        generator = torch.Generator().manual_seed(seed)
        items = torch.randn(n, e, generator=generator, dtype=torch.float64)
        pair = [items + noise * torch.randn(n, e, generator=generator, dtype=torch.float64) for _ in "ab"]
        return tuple(z.to(dtype).requires_grad_() for z in pair)

    return make


@pytest.fixture
def registries(monkeypatch) -> None:
    """What the test registers is gone after it."""
    import setwise.register as register

    for registry in vars(register).values():
        if isinstance(registry, register.Registry):
            monkeypatch.setattr(registry, "_entries", dict(registry._all()))


@pytest.fixture
def shown(tmp_path: Path) -> Callable[..., str]:
    """Opens HTML in Chromium and gives the document that its scripts leave."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("needs Chromium, none here")
    options = ["headless", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"]
    options += ["disable-component-update", "disable-sync", f"user-data-dir={tmp_path / 'profile'}", "dump-dom"]

    def show(html: str, *more: str) -> str:
        page = tmp_path / "shown.html"
        page.write_text(html, encoding="utf-8")
        command = [browser, *(f"--{option}" for option in (*options, *more)), page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    return show


@pytest.fixture
def on_a_telephone(shown):
    """What a script puts into ``said`` of a page that stands unchanged, with its policy, in a frame of 360 pixels."""

    def ask(html: str, script: str, *options: str) -> dict:
        frame = f'<iframe width=360 height=800 style="border:0" srcdoc="{escape(html)}"></iframe>'
        begin = 'const frame = document.querySelector("iframe"), page = frame.contentDocument, said = {};'
        end = """
        said.width = page.documentElement.clientWidth;  // less than the frame's by a scroll bar
        said.wide = page.documentElement.scrollWidth;
        document.querySelector("pre").textContent = JSON.stringify(said);
        """
        script = f"<script>onload = () => {{{begin}{script}{end}}}</script>"
        answer = re.search(
            r"<pre>(.+?)</pre>", shown(f"<!DOCTYPE html>{frame}<pre></pre>{script}", *options), re.DOTALL
        )
        assert answer, "the page did not answer"
        said = json.loads(unescape(answer[1]))
        assert said["wide"] == said["width"] <= 360, "the page does not scroll sideways"
        return said

    return ask


@pytest.fixture
def write_mat():
    """Writes a cuhk-03.mat as MATLAB v7.3 does: cells are references, arrays are transposed, empty cells are 0 0."""
    import h5py  # the dev extra has it

    def write(path: Path, sets: dict) -> None:
        # sets: variable -> five lists of identities, each a list of ten images [H, W, 3] or None
        with h5py.File(path, "w", userblock_size=512) as file:
            store = file.create_group("#refs#")

            def keep(data, **kind):
                made = store.create_dataset(str(len(store)), data=data, **kind)
                return made.ref

            for variable, pairs in sets.items():
                outer = np.empty((1, len(pairs)), h5py.ref_dtype)
                for p, identities in enumerate(pairs):
                    inner = np.empty((10, len(identities)), h5py.ref_dtype)
                    for i, shots in enumerate(identities):
                        for s, image in enumerate(shots):
                            if image is None:
                                inner[s, i] = keep(np.zeros(2, np.uint64))
                            else:
                                inner[s, i] = keep(image.T, compression="gzip")
                    outer[0, p] = keep(inner, dtype=h5py.ref_dtype)
                file.create_dataset(variable, data=outer, dtype=h5py.ref_dtype)
        with path.open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")

    return write


@pytest.fixture
def package() -> Callable[[str], ModuleType]:
    """The module of that name, which need not be installed; a skip with the reason where it does not import."""

    def find(name: str) -> ModuleType:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # their own, about each other
                return importlib.import_module(name)
        except (ImportError, RuntimeError) as error:  # the latter: a torchvision built for another torch
            pytest.skip(f"needs {name}, which does not import here: {error}")

    return find


class Tree(HTMLParser):
    """Elements in order as (tag, attributes, text directly within); fails on what is not well nested."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.elements, self.open = [], []
        self.feed(html)
        self.close()
        assert not self.open, "elements left open"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute twice in {tag}"
        self.elements.append((tag, dict(attrs), []))
        if tag not in ("meta", "br", "img", "link", "input", "hr", "wbr"):
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.elements[self.open.pop()][0] == tag

    def handle_data(self, data):
        if self.open:
            self.elements[self.open[-1]][2].append(data)

    def all(self, tag, **attributes):
        return [e for e in self.elements if e[0] == tag and all(e[1].get(k) == v for k, v in attributes.items())]

    def texts(self, tag, **attributes):
        return ["".join(text) for _, _, text in self.all(tag, **attributes)]


@pytest.fixture(scope="session")
def tree_of():
    """Makes the tree of a page's text."""
    return Tree
