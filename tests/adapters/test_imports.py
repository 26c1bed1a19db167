"""Nothing of another library is imported before its adapter is."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("code", "package", "wanted"),
    [
        ("import setwise.adapters.metric_learning", "pytorch_metric_learning", "pytorch-metric-learning"),
        (
            "import setwise.adapters.sentence_transformers",
            "sentence_transformers",
            "'sentence-transformers>=5.7'",
        ),
        ("import setwise as sw; sw.encoders.create('timm/resnet18')", "timm", "timm torchvision"),
    ],
)
def test_a_missing_package_is_named_with_the_way_to_get_it(code, package, wanted):
    code = f"import sys; sys.modules[{package!r}] = None; {code}"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert f"ModuleNotFoundError: expected the package {package}, got" in shown
    assert f"; pip install {wanted}, see `setwise help other-libraries#" in shown


def test_no_message_names_a_package_that_does_not_exist():
    """Setwise is on no index: whoever registers that name there would be installed."""
    source = Path(__file__).parents[2] / "src"
    assert not [path for path in source.rglob("*.py") if "install 'setwise" in path.read_text()]
