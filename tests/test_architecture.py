"""Rooms import only from rooms above them; nothing heavy is imported until it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "setwise"
ROOMS = [
    *(
        "version",
        "pages",
        "terminal",
        "locks",
        "walking",
        "checks",
        "registry",
        "register",
        "kernels",
        "similarity",
        "assignment",
    ),
    *("losses", "encoders", "data", "views", "recipe", "methods", "training", "evaluation"),
    *("records", "report", "runs", "paper", "front", "adapters", "demo", "bench", "cli", "__main__"),
]
OPTIONAL = {
    *("pytorch_metric_learning", "timm", "torchvision", "lightly", "lightning", "safetensors", "onnx"),
    *("onnxruntime", "sklearn", "h5py", "PIL", "tensorboard", "rich", "tyro", "ray", "submitit", "pyarrow", "umap"),
}
FILES = sorted(SOURCE.rglob("*.py"))


def room(module: str) -> int:
    return ROOMS.index(module.split(".")[1])


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_upwards(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts in (("__init__",), ("_public",)):
        return
    here = ROOMS.index(parts[0])
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only"
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name == "setwise" or name.startswith("setwise."):
                assert name != "setwise", "import from the room, not from the package"
                assert room(name) <= here, f"{path.name} imports {name} from a room below it"


def test_importing_setwise_imports_nothing_optional():
    code = "import setwise as sw, sys; print([*sys.modules]); sw.QARe; sw.losses.controls; print([*sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    first, later = map(ast.literal_eval, run.stdout.splitlines())
    assert not {"torch", "scipy", "numpy"} & {*first}
    code = "import setwise.cli, sys; assert 'torch' not in sys.modules"  # help does not wait for torch
    subprocess.run([sys.executable, "-c", code], check=True)
    assert not OPTIONAL & {m.split(".")[0] for m in later}
