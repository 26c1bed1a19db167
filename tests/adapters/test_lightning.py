"""The example for PyTorch Lightning does as it says, where lightning is installed; its text is looked at everywhere."""

import ast
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import setwise as sw

EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_module.py"


def test_names_of_setwise_exist_and_it_is_short():
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) <= 50
    used = [
        ast.unparse(x) for x in ast.walk(ast.parse(text)) if isinstance(x, ast.Attribute) and "sw." in ast.unparse(x)
    ]
    names = {x for x in used if all(part.isidentifier() for part in x.split("."))}
    assert names >= {"sw.SetContrastive", "sw.InfoNCE", "sw.distributed", "sw.views.preset", "sw.encoders.create"}
    for name in names:
        found = sw
        for part in name.split(".")[1:]:
            found = getattr(found, part)


@pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and hardware
def test_example_trains(package, capfd):
    lightning = package("lightning")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = runpy.run_path(str(EXAMPLE))
    digits = sw.data.load("digits", split="train")
    loader = DataLoader(TensorDataset(digits.images[:128], torch.arange(128)), batch_size=64, drop_last=True)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    torch.manual_seed(0)
    model = module["SetContrastiveModule"](digits, beta=0.5)
    values = []
    for epochs in (1, 5):
        trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", **options)
        trainer.fit(model, loader)
        values.append({name: value.item() for name, value in trainer.callback_metrics.items()})
    assert set(values[0]) == {"loss", "pairwise", "regularizer"}
    for row in values:
        assert row["loss"] == pytest.approx(row["pairwise"] + 0.5 * row["regularizer"], rel=1e-4)
    assert values[1]["loss"] < 0.9 * values[0]["loss"]
