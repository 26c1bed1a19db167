"""Nothing of another library is imported before its adapter is."""

import subprocess
import sys


def test_importing_setwise_imports_no_adapter():
    code = "import setwise, sys; print('\\n'.join(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    assert "setwise.losses.modules" in loaded
    theirs = {"pytorch_metric_learning", "sklearn", "timm", "torchvision", "lightly", "lightning"}
    assert not theirs & {name.partition(".")[0] for name in loaded}
    assert not [name for name in loaded if name.startswith("setwise.adapters")]
