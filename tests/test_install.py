"""What people install: the wheel's content and metadata, the wheel at work outside the repository, its import time."""

import email
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

import pytest

from setwise.version import __version__

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "setwise"
OLDEST_SETUPTOOLS = 77  # knows licences as pyproject.toml writes them
SLOWER = 1.5  # at most, `import setwise` over `import torch`
FEWEST, MOST = 3, 8  # pairs of measurements: a busy machine can make a time longer, never shorter


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that nothing is left in the repository and nothing left there gets in."""
    if int(version("setuptools").split(".")[0]) < OLDEST_SETUPTOOLS:
        pytest.skip(f"needs setuptools {OLDEST_SETUPTOOLS}, {version('setuptools')} is here")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "repository"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, copy)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel):
    """The wheel as pip installs it, in a folder of its own."""
    folder = wheel.parent / "installed"
    pip("install", "--target", folder, wheel)
    return folder


def pip(command, *words):
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    subprocess.run([sys.executable, "-m", "pip", command, *quiet, *words], check=True)


def outside(installed, *command):
    """What a fresh process says that sees the wheel, and nothing of the repository."""
    elsewhere = installed.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    run = subprocess.run(
        command,
        cwd=elsewhere,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_wheel_has_all_of_the_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    about = f"setwise-{__version__}.dist-info/"
    inside = {name for name in names if not name.startswith(about)}
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".cu", ".typed")]
    files += SOURCE.glob("how_to/*.md")
    assert inside == {f"setwise/{path.relative_to(SOURCE).as_posix()}" for path in files}
    assert {
        "setwise/py.typed",
        "setwise/kernels/eigh.cu",
        "setwise/cli/__init__.py",
        "setwise/how_to/errors.md",
    } <= inside
    assert f"{about}licenses/LICENSE" in names


def test_its_metadata(wheel):
    with zipfile.ZipFile(wheel) as file:
        about = email.message_from_bytes(file.read(f"setwise-{__version__}.dist-info/METADATA"))
        points = file.read(f"setwise-{__version__}.dist-info/entry_points.txt").decode()
    assert (about["Name"], about["Version"], about["License-Expression"]) == ("setwise", "0.1.0", "MIT")
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)[1] == "0.1.0"
    extras = {"train", "cuhk03", "onnx", "tensorboard", "backbones", "metric-learning", "cluster", "docs", "dev"}
    assert set(about.get_all("Provides-Extra")) == extras
    needed = {re.match(r"[\w-]+", x)[0] for x in about.get_all("Requires-Dist") if "extra ==" not in x}
    assert needed == {"torch", "numpy", "scipy"}
    assert "setwise = setwise.__main__:main" in points
    assert "sw.SetContrastive(" in about.get_payload(), "the README is its description"


def test_its_command_works_outside_of_the_repository(installed):
    assert "A first walk" in outside(installed, sys.executable, installed / "bin" / "setwise", "--help")
    listed = outside(installed, sys.executable, "-m", "setwise.cli", "recipes", "digits-conv4-simclr")
    assert "paper/digits-conv4-simclr-qare" in listed.split()
    assert "--resume" in outside(installed, sys.executable, "-m", "setwise.cli", "help", "errors#resume")


@pytest.fixture(scope="module")
def light(installed):
    """The wheel beside torch, numpy, scipy and what those need: links into this environment, nothing else of it."""
    folder, left, seen = installed.parent / "light", ["torch", "numpy", "scipy"], set()
    folder.mkdir()
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # needed on other systems only
            continue
        for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():  # some share a folder
                (folder / top).symlink_to(found.locate_file(top))
        left += [re.match(r"[\w.-]+", x)[0] for x in found.requires or () if "extra ==" not in x]
    (folder / "setwise").symlink_to(installed / "setwise")
    return folder


def in_light(folder, code):
    """A process whose only packages are those of ``light``."""
    path = [str(folder), *(x for x in sys.path if x and "site-packages" not in x and Path(x) != ROOT)]
    start = f"import sys; sys.path[:] = {path!r}; "
    return subprocess.run([sys.executable, "-I", "-S", "-c", start + code], capture_output=True, text=True)


def test_the_losses_need_torch_numpy_and_scipy_alone(light):
    code = """
import torch, setwise as sw
z = torch.eye(4)
print(round(sw.SetContrastive(sw.InfoNCE(temperature=0.5), beta=0.5)(z, z).item(), 3), sw.match(z, z).accuracy)
assert not {"PIL", "rich", "tyro", "sklearn", "safetensors"} & set(sys.modules)
try:
    sw.data.load("digits")
except ModuleNotFoundError as error:
    print(error)
"""
    run = in_light(light, code)
    assert run.stdout.startswith("1.216 1.0\n"), run.stderr
    assert "pip install scikit-learn" in run.stdout


def test_the_command_names_what_it_lacks(light):
    run = in_light(light, "from setwise.__main__ import main; main()")
    assert run.returncode == 1
    assert "pip install pillow rich safetensors scikit-learn tyro" in run.stderr.replace("filelock ", "")


def seconds(module):
    code = f"import time, {module}; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)


def test_importing_takes_little_more_than_importing_torch():
    least = {"torch": float("inf"), "setwise": float("inf")}
    for pair in range(1, MOST + 1):
        least = {module: min(before, seconds(module)) for module, before in least.items()}
        if pair >= FEWEST and least["setwise"] < SLOWER * least["torch"]:
            return
    assert least["setwise"] < SLOWER * least["torch"], least
