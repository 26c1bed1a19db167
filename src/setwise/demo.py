"""The losses at work: match the left halves of handwritten digits to their right halves, in seconds on a CPU."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import normalize

from setwise.assignment import matching_accuracy
from setwise.data import load, matched_halves
from setwise.losses.modules import AssignmentLoss
from setwise.losses.presets import presets
from setwise.similarity import pairwise

STEPS, BATCH, HELD_OUT_SET = 400, 64, 100
NAMED = {"margin triplet": "triplet", "InfoNCE": "infonce", "NT-Logistic": "nt-logistic", "SparseCLR": "sparseclr"}
ONE_TO_ONE = {
    "hard": AssignmentLoss(mining="one-to-one", margin=0.5),
    "entropic": AssignmentLoss(mining="one-to-one", smoothing="sinkhorn", temperature=0.05),
    "sparse": AssignmentLoss(mining="one-to-one", smoothing="sparsemap", temperature=0.2),
}


def halves(split: str) -> tuple[Tensor, Tensor]:
    """Left and right halves of the digits of a split, [N, 32] each."""
    pairs = matched_halves(load("digits", split=split))
    return tuple(view.flatten(1).float() / 255 for view in (pairs.first_a, pairs.first_b))  # type: ignore[return-value]


class TwoSided(nn.Module):
    """A small perceptron for each half, into one space of unit vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 32))
            for _ in range(2)
        )

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings of both halves, [N, 32] each."""
        return normalize(self.sides[0](left)), normalize(self.sides[1](right))


def train(loss: nn.Module, left: Tensor, right: Tensor, *, seed: int, steps: int = STEPS) -> TwoSided:
    """A model trained by ``loss`` on random batches."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TwoSided()
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randperm(len(left), generator=generator)[:BATCH]
        optimizer.zero_grad()
        loss(*model(left[batch], right[batch])).backward()
        optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: TwoSided, left: Tensor, right: Tensor) -> float:
    """Matching accuracy, averaged over disjoint sets of ``HELD_OUT_SET`` digits."""
    starts = range(0, len(left) - HELD_OUT_SET + 1, HELD_OUT_SET)
    values = [matching_accuracy(*model(left[i : i + HELD_OUT_SET], right[i : i + HELD_OUT_SET])) for i in starts]
    return sum(values) / len(values)


def run(*, out: Path | None = Path("out/demo.png"), seed: int = 1, steps: int = STEPS) -> dict[str, float]:
    """Train every loss, show what each reaches, draw the similarity matrices to ``out``; returns the accuracies."""
    console = Console()
    started = time.perf_counter()
    data, test = halves("train"), halves("test")
    console.print(
        f"[bold]Which right half belongs to which left half?[/] {len(data[0])} digits to learn from, {len(test[0])} "
        f"held out in sets of {HELD_OUT_SET}. Guessing gets 1 %.\n"
    )
    untrained = train(nn.Identity(), *data, seed=seed, steps=0)
    models = {"untrained": untrained}
    jobs: dict[str, nn.Module] = {}
    for name, preset in NAMED.items():
        jobs[name] = presets(f"paper/matching-{preset}")
        jobs[f"{name} + QARe"] = presets(f"paper/matching-{preset}-qare")
    jobs |= {f"one-to-one {name}": loss for name, loss in ONE_TO_ONE.items()}
    with Progress(console=console, transient=True) as progress:
        for name in progress.track(jobs, description="training"):
            models[name] = train(jobs[name], *data, seed=seed, steps=steps)
    found = {name: accuracy(model, *test) for name, model in models.items()}

    def cell(name: str) -> str:
        return f"{100 * found[name]:.1f} %"

    named = Table(title="matching accuracy of held-out digits", caption=f"untrained: {cell('untrained')}")
    for column in ("loss", "pairwise", "+ QARe (the paper's weight)"):
        named.add_column(column, justify="left" if column == "loss" else "right")
    for name in NAMED:
        named.add_row(name, cell(name), cell(f"{name} + QARe"))
    console.print(named)
    grid = Table(title="the same losses as one family: which assignments compete × how the maximum is smoothed")
    for column in ("", "hard", "entropic", "sparse"):
        grid.add_column(column, justify="right" if column else "left")
    grid.add_row("row-wise", *(f"{n}  {cell(n)}" for n in ("margin triplet", "InfoNCE", "SparseCLR")))
    grid.add_row("one-to-one", *(cell(f"one-to-one {name}") for name in ONE_TO_ONE))
    console.print(grid)
    if out is not None:
        _draw(out, models["untrained"], models["InfoNCE + QARe"], *test)
        console.print(f"Distances between held-out halves before and after training: [bold]{out}[/]")
    console.print(
        f"{len(jobs)} models in {time.perf_counter() - started:.0f} s. One seed: a demonstration, no evidence."
    )
    return found


def _draw(out: Path, before: TwoSided, after: TwoSided, left: Tensor, right: Tensor) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(8, 4.2), layout="constrained")
    for axis, model, title in zip(axes, (before, after), ("untrained", "InfoNCE + QARe"), strict=True):
        with torch.no_grad():
            z_a, z_b = model(left[:40], right[:40])
        image = axis.imshow(pairwise(z_a, z_b, similarity="euclidean").numpy(), cmap="viridis", vmin=0, vmax=1.5)
        share = matching_accuracy(z_a, z_b)
        axis.set(
            title=f"{title}: {100 * share:.0f} % matched", xlabel="right half of digit", ylabel="left half of digit"
        )
    figure.colorbar(image, ax=axes, label="distance", shrink=0.8)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=120)
    plt.close(figure)
