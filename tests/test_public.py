"""Every public name has a type for a project of its own: its text below must pass ``mypy --strict``."""

import re
import subprocess
import sys
from pathlib import Path

import setwise as sw

PROJECT = """
from typing import assert_type

import torch
from torch import Tensor, nn

import setwise as sw
from setwise.losses.controls import FrobeniusProduct

z_a, z_b = torch.randn(2, 8, 4)


def own_loss(z_a: Tensor, z_b: Tensor) -> Tensor:
    return (z_a - z_b).square().mean()


class Own(nn.Module):
    def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        return own_loss(z_a, z_b)


def step(loss: sw.SetContrastive) -> Tensor:
    assert_type(loss.terms(z_a, z_b), dict[str, Tensor])
    return loss(z_a, z_b)  # a Tensor, not anything: --strict has warn_return_any


def learned() -> list[Tensor]:
    temperature, ids = nn.Parameter(torch.tensor(0.07)), torch.arange(8) // 2
    losses = [
        sw.InfoNCE(temperature)(z_a, z_b),
        sw.NTXent(temperature, block_size=4)(z_a, z_b, z_b),
        sw.SparseCLR(1.0, temperature=temperature)(z_a, z_b),
        sw.NTLogistic(temperature)(z_a, z_b),
        sw.AssignmentLoss(mining="one-to-one", smoothing="sinkhorn", temperature=temperature)(z_a, z_b),
        sw.TripletMargin(0.5)(z_a, z_b),
        sw.InfoNCE()(z_a, z_b, sets=(ids, ids)),
        sw.functional.nt_xent(z_a, z_b, sets=sw.Sets(ids, ids, truth="one-to-one", price=0.2)),
        sw.SetContrastive(sw.InfoNCE())(z_a, z_b, sets=(ids, ids)),
        sw.QARe(reference="truth")(z_a, z_b),
        sw.VICReg(covariance=2.0)(z_a, z_b),
        sw.BarlowTwins(redundancy=0.01)(z_a, z_b),
        sw.functional.info_nce(z_a, z_b, temperature=temperature.exp()),
        sw.functional.qare(z_a, z_b),
        sw.presets(sw.PRESETS[0])(z_a, z_b),
    ]
    return assert_type(losses, list[Tensor])


assert_type(sw.SetContrastive(sw.InfoNCE()), sw.SetContrastive)
step(sw.SetContrastive(own_loss, 0.5, own_loss))
step(sw.SetContrastive(Own(), 0.5, FrobeniusProduct()))
step(sw.SetContrastive.convex(own_loss, 0.5, sw.functional.qare))
step(sw.distributed(sw.SetContrastive(sw.NTXent(0.5))))
assert_type(sw.distributed(sw.QARe()), sw.QARe)
assert_type(sw.distributed(own_loss)(z_a, z_b), Tensor)
assert_type(sw.align(z_a, z_b, sets=([0, 1], [0, 1])), sw.Alignment)
assert_type(sw.match(z_a, z_b), sw.Matching)
assert_type(sw.matching_accuracy(z_a, z_b), float)
assert_type(sw.assignment.solve_linear(z_a @ z_b.mT), Tensor)
data = sw.data.load("digits", split="train")
assert_type(data, sw.data.ImageSet)
encoder: nn.Module = sw.encoders.create("conv4", channels=1)
views: sw.views.Views = sw.views.preset("self-supervised", mean=data.mean, std=data.std)


@sw.register.term("spread", about="Push all items apart.")
def spread(z_a: Tensor, z_b: Tensor, *, scale: float = 1.0) -> Tensor:
    return scale * own_loss(z_a, -z_b)


assert_type(spread(z_a, z_b, scale=2.0), Tensor)  # still the function that it was


@sw.register.method("mine", about="A method of one's own.")
class Mine(sw.Method):
    def __init__(self, parts: sw.Parts, *, momentum: float = 0.99) -> None:
        super().__init__()
        self.encoder, self.loss = parts.encoder, parts.loss()

    def forward(self, batch: sw.Batch) -> dict[str, Tensor]:
        a, b = self.encoder(batch.view(sw.views.preset("none"), count=2)).chunk(2)
        return {"loss": own_loss(a, b)}

    def share(self, processes: sw.Processes) -> None:
        assert_type(processes.gather(z_a), Tensor)


run = sw.pretrain("digits", terms={"qare": 0.5}, changes={"epochs": 1})
assert_type(run.embed(data.images), Tensor)
assert_type(run.embed("photos/").embeddings, Tensor)
assert_type(run.embed(data).paths, tuple[str, ...])
assert_type(sw.load_run(run.folder).encoder, nn.Module)
assert_type(sw.__version__, str)
sw.InfoNCE(tempreature=0.5)  # type: ignore[call-arg]  # an unused one of these is an error
sw.NoSuchLoss  # type: ignore[attr-defined]
"""


def test_a_strict_project_sees_every_type(tmp_path, request):
    assert {name for name in sw.__all__ if not re.search(rf"\bsw\.{name}\b", PROJECT)} == set()
    file = tmp_path / "project.py"
    file.write_text(PROJECT)
    # Of an installed package only types count, whatever its own text is worth to mypy.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-setwise.*]\nignore_errors = True\n")
    kept = request.config.cache.mkdir("mypy")  # torch takes mypy half a minute to read for the first time
    command = [sys.executable, "-m", "mypy", f"--cache-dir={kept}", file.name]
    environment = {"MYPYPATH": str(Path(sw.__file__).parents[1])}
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
