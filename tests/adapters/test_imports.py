"""Nothing of another library is imported before its adapter is."""

import subprocess
import sys

import pytest


def test_importing_setwise_imports_no_adapter():
    code = "import setwise, sys; setwise.InfoNCE; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert "setwise.losses.modules" in loaded
    theirs = {"pytorch_metric_learning", "sklearn", "timm", "torchvision", "lightly", "lightning"}
    assert not theirs & {name.partition(".")[0] for name in loaded}
    assert not [name for name in loaded if name.startswith("setwise.adapters")]


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [("metric_learning", "pytorch_metric_learning", "metric-learning"), ("backbones", "timm", "backbones")],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(adapter, package, extra):
    code = f"import sys; sys.modules[{package!r}] = None; from setwise.adapters import {adapter}; "
    code += "adapter.backbone('timm/resnet18')".replace("adapter", adapter) if adapter == "backbones" else ""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert f"ModuleNotFoundError: expected the package {package}, got" in shown
    assert f"; pip install 'setwise[{extra}]', see docs/how-to/other-libraries.md#" in shown
