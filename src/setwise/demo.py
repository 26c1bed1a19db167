"""The library at work on handwritten digits, on a CPU: encoders that learn without labels, and halves to be matched."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import normalize

import setwise.records as records
import setwise.runs as runs
from setwise.assignment import matching_accuracy
from setwise.data import load, matched_halves
from setwise.locks import Taken, locked
from setwise.losses.modules import AssignmentLoss
from setwise.losses.presets import presets
from setwise.paper.recipes import recipe
from setwise.report.page import Page
from setwise.similarity import pairwise
from setwise.terminal import visible
from setwise.training.errors import Interrupted
from setwise.training.loop import How

# About a minute of one core: 36 s for the encoders, 17 s for the halves.
SEEDS, EPOCHS, STEPS, BATCH, HELD_OUT_SET = 3, 40, 400, 64, 100
RECIPE = "released/digits-conv4-"
ENCODERS = {"untrained": "random", "SimCLR": "simclr", "SimCLR + QARe": "simclr-qare"}
SCORES = {"probe_accuracy": "linear probe", "knn20_accuracy": "20 neighbours", "knn200_accuracy": "200 neighbours"}
NAMED = {"margin triplet": "triplet", "InfoNCE": "infonce", "NT-Logistic": "nt-logistic", "SparseCLR": "sparseclr"}
ONE_TO_ONE = {
    "hard": AssignmentLoss(mining="one-to-one", margin=0.5),
    "entropic": AssignmentLoss(mining="one-to-one", smoothing="sinkhorn", temperature=0.05),
    "sparse": AssignmentLoss(mining="one-to-one", smoothing="sparsemap", temperature=0.2),
}
PAGE, RUNS, MARK = "index.html", "runs", ".setwise-demo"
# All that a run leaves in its folder, and so all that the next demo takes away.
RUN_FILES = ("checkpoint.safetensors", "metrics.csv", "metrics.jsonl", records.FILE, ".lock")


@dataclass(frozen=True)
class Found:
    """What a demo measured: the records of the encoders' runs, and the share of held-out halves matched."""

    encoders: dict[str, list[dict[str, Any]]]
    matching: dict[str, float]


@dataclass(frozen=True)
class Shown:
    """A table for the terminal and for the page."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def print(self, console: Console) -> None:
        """The table, on a terminal."""
        table = Table(title=self.caption, caption=self.note)
        for i, column in enumerate(self.columns):
            table.add_column(column, justify="right" if i else "left")
        for row in self.rows:
            table.add_row(*row)
        console.print(table)


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


def run(
    *, out: Path = Path("out/demo"), seed: int = 1, seeds: int = SEEDS, epochs: int = EPOCHS, steps: int = STEPS
) -> Found:
    """Train encoders and matchers, show what they reach, leave a page in the folder ``out``, the runs below it."""
    console, began, cpu = Console(markup=False, emoji=False), time.perf_counter(), time.process_time()
    console.print(
        f"{seeds * len(ENCODERS)} encoders and {len(_losses())} matchers learn from handwritten digits: about a minute."
    )
    with _own(out), _one_thread(), Progress(console=console, transient=True) as progress:
        jobs = [(name, n) for n in range(seed, seed + seeds) for name in ENCODERS]
        encoders: dict[str, list[dict[str, Any]]] = {name: [] for name in ENCODERS}
        for name, n in progress.track(jobs, description="encoders learn without labels"):
            encoders[name].append(_pretrain(out, name, seed=n, epochs=epochs))
        losses = _losses()
        data, test = halves("train"), halves("test")
        models = {"untrained": train(nn.Identity(), *data, seed=seed, steps=0)}
        for name in progress.track(losses, description="perceptrons learn to match halves"):
            models[name] = train(losses[name], *data, seed=seed, steps=steps)
        found = Found(encoders, {name: accuracy(model, *test) for name, model in models.items()})
        tables = _tables(found)
        page = _page(found, tables, _drawn(models["untrained"], models["InfoNCE + QARe"], *test))
        spent = f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of them on the processor"
        page.details("How it was made", _how(found, steps=steps, spent=spent))
        page.write(out / PAGE)
    for table in tables:
        table.print(console)
    console.print(f"{len(jobs)} encoders and {len(losses)} matchers in {spent}. {_modesty(seeds)}", highlight=False)
    console.print(f"The page with curves and pictures: {visible(str(out / PAGE))}", highlight=False, soft_wrap=True)
    return found


def _losses() -> dict[str, nn.Module]:
    """The losses that learn to match, by name."""
    losses: dict[str, nn.Module] = {}
    for name, preset in NAMED.items():
        losses[name] = presets(f"paper/matching-{preset}")
        losses[f"{name} + QARe"] = presets(f"paper/matching-{preset}-qare")
    return losses | {f"one-to-one {name}": loss for name, loss in ONE_TO_ONE.items()}


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / RUNS / ENCODERS[name] / f"seed-{seed}"


def _pretrain(out: Path, name: str, *, seed: int, epochs: int) -> dict[str, Any]:
    """The record of an encoder's run."""
    known = recipe(RECIPE + ENCODERS[name])
    chosen = replace(known, epochs=epochs) if known.epochs else known  # the untrained encoder stays untrained
    try:
        return runs.pretrain(
            chosen,
            _folder(out, name, seed),
            name=f"demo {name}",
            seed=seed,
            how=How(torch.device("cpu"), quiet=True),
        )
    except Interrupted as error:
        raise Interrupted(error.signal, "the demo was stopped; `setwise demo` begins anew") from error


def _tables(found: Found) -> list[Shown]:
    def score(name: str, key: str) -> str:
        values = [100 * record["final"][key] for record in found.encoders[name]]
        spread = f" ({min(values):.1f}–{max(values):.1f})" if len(values) > 1 else ""
        return f"{sum(values) / len(values):.1f}{spread}"

    def matched(name: str) -> str:
        return f"{100 * found.matching[name]:.1f}"

    first = found.encoders["SimCLR"]
    many = f"mean of {len(first)} seeds, least and greatest in brackets" if len(first) > 1 else "one seed"
    return [
        Shown(
            "Encoders: held-out digits recognised, %",
            ("encoder", *SCORES.values()),
            [(name, *(score(name, key) for key in SCORES)) for name in ENCODERS],
            f"{many}; guessing 10. The untrained features are tiny, and the paper's probe takes them as they are: "
            "for the untrained encoder its neighbours are the fair measure",
        ),
        Shown(
            "Halves: held-out digits matched, %",
            ("loss", "pairwise", "with QARe"),
            [(name, matched(name), matched(f"{name} + QARe")) for name in NAMED],
            f"one seed, QARe at the paper's weight; untrained {matched('untrained')}, guessing {100 / HELD_OUT_SET:g}. "
            "So few digits tell little of QARe: its gain in matching showed with 10,000 instances, see README",
        ),
        Shown(
            "The same as one family: halves matched, %",
            ("assignments", *ONE_TO_ONE),
            [
                ("row-wise", *(matched(name) for name in ("margin triplet", "InfoNCE", "SparseCLR"))),
                ("one-to-one", *(matched(f"one-to-one {name}") for name in ONE_TO_ONE)),
            ],
            "rows: which assignments compete; columns: how the maximum over them is smoothed; row-wise these are the "
            "margin triplet, InfoNCE and SparseCLR",
        ),
    ]


def _page(found: Found, tables: Sequence[Shown], picture: bytes | None) -> Page:
    def put(table: Shown) -> None:
        page.table(table.columns, table.rows, caption=table.caption, note=table.note)

    first, second = found.encoders["SimCLR"], found.encoders["SimCLR + QARe"]
    data, epochs = first[0]["data"], first[0]["recipe"]["epochs"]
    page = Page(
        "setwise: a demonstration", lead="Set-level contrastive learning on handwritten digits, on one CPU core."
    )
    page.text(
        f"A Conv-4 encoder learned from {data['train']:,} digits without their labels for {epochs} epochs, by SimCLR "
        f"and by SimCLR with the set-level term QARe; a linear classifier and nearest neighbours then tell how well "
        f"its frozen features recognise {data['test']:,} held-out ones. After that, small perceptrons learned from "
        f"each loss of the family which right half of a digit belongs to which left half, among {HELD_OUT_SET}.",
        _modesty(len(first)),
    )
    page.heading("Encoders that learned without labels")
    put(tables[0])
    note = "Mean over the seeds. " if len(first) > 1 else ""
    page.curves(
        "Pairwise term",
        {"SimCLR": _curve(first, "loss"), "SimCLR + QARe": _curve(second, "pairwise")},
        x="epoch",
        y="NT-Xent",
        note=f"{note}With QARe the released form clamps cosines at 0, so the two lines are not quite the same measure.",
    )
    page.curves(
        "Set-level term",
        {"SimCLR": [], "SimCLR + QARe": _curve(second, "regularizer")},  # the same colours as above
        x="epoch",
        y="QARe, before its weight",
        note=f"{note}SimCLR alone does not compute it.",
    )
    page.heading("Which right half belongs to which left half?")
    put(tables[1])
    put(tables[2])
    if picture is None:
        page.text("The distances between halves are not drawn, since matplotlib is not installed.")
    else:
        page.picture(
            picture,
            alt="Two matrices of distances between left and right halves. After training the diagonal, where halves "
            "of the same digit meet, is the nearest.",
            caption="Distances between 40 held-out halves before and after training by InfoNCE + QARe; among 40 it "
            f"is easier to find the right one than among the table's {HELD_OUT_SET}",
        )
    return page


def _curve(found: list[dict[str, Any]], term: str) -> list[tuple[float, float]]:
    """A loss term's mean over the seeds, by epoch."""
    values = zip(*(record["epochs"][term] for record in found), strict=True)
    return [(epoch, sum(row) / len(row)) for epoch, row in zip(found[0]["epochs"]["epoch"], values, strict=True)]


def _modesty(seeds: int) -> str:
    many = "One seed and few epochs are" if seeds == 1 else f"{seeds} seeds and few epochs are"
    return f"{many} a demonstration, no evidence: with 500 held-out digits, two percent more or less can be chance."


def _how(found: Found, *, steps: int, spent: str) -> str:
    record = found.encoders["SimCLR + QARe"][0]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        f"time       {spent}",
        f"encoders   recipes {RECIPE}{{{','.join(ENCODERS.values())}}}, {record['recipe']['epochs']} epochs",
        f"seeds      {', '.join(str(r['seed']) for r in found.encoders['SimCLR'])}",
        f"matchers   {steps} steps of {BATCH} digits, seed {record['seed']}",
        f"versions   {versions}",
        f"commit     {record['commit']}",
        f"hardware   {record['hardware']['name']}, one thread",
    ]
    for name, found_records in found.encoders.items():
        for r in found_records:
            scores = ", ".join(f"{title} {100 * r['final'][key]:.1f} %" for key, title in SCORES.items())
            lines.append(f"{RUNS}/{ENCODERS[name]}/seed-{r['seed']}: {scores}")
    return "\n".join(lines)


def _drawn(before: TwoSided, after: TwoSided, left: Tensor, right: Tensor) -> bytes | None:
    """Matrices of distances as a PNG picture; None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, model, title in zip(axes, (before, after), ("untrained", "InfoNCE + QARe"), strict=True):
        with torch.no_grad():
            z_a, z_b = model(left[:40], right[:40])
        image = axis.imshow(pairwise(z_a, z_b, similarity="euclidean").numpy(), cmap="viridis", vmin=0, vmax=2)
        share = matching_accuracy(z_a, z_b)
        axis.set_title(f"{title}: {100 * share:.0f} % matched", fontsize="medium")
        axis.set(xlabel="right half of digit", ylabel="left half of digit")
    figure.colorbar(image, ax=axes, label="distance", shrink=0.8)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


@contextlib.contextmanager
def _own(out: Path) -> Iterator[None]:
    """Keep a folder for this demo, and take away the runs of the one before; of anything else nothing is touched."""
    mark = out / MARK
    foreign = [name for name in (PAGE, RUNS) if (out / name).exists()]
    if foreign and not mark.exists():
        raise ValueError(
            f"expected a new folder or one of an earlier demo, got {out} with {' and '.join(foreign)} "
            "of something else; give another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        with locked(out / ".lock", option="--out"):
            for kind in ENCODERS.values():
                for folder in (out / RUNS / kind).glob("seed-*"):
                    for name in RUN_FILES:
                        (folder / name).unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # someone keeps a file there
                        folder.rmdir()
            yield
    except Taken as error:
        raise ValueError(f"expected {out} for this demo alone, but {error}; give another --out") from error


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread for a while: such small networks are slower with more, and the number of cores changes nothing."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
