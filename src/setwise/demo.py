"""The library at work on handwritten digits, on a CPU: encoders that learn without labels, and halves to match."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn.functional import normalize

import setwise.records as records
import setwise.runs as runs
from setwise.assignment import matching_accuracy
from setwise.data import load, matched_halves
from setwise.data.collection import collect
from setwise.evaluation.embedding import embed as embed_images
from setwise.locks import LockTaken, locked
from setwise.losses.modules import AssignmentLoss
from setwise.losses.presets import presets
from setwise.paper.recipes import recipe
from setwise.report.map_page import write_map
from setwise.report.matching_page import distances_picture
from setwise.report.page import Page
from setwise.report.tables import Table
from setwise.terminal import visible
from setwise.training.errors import Interrupted
from setwise.training.loop import RunOptions

# About a minute of one core: 36 s for the encoders, 17 s for the halves, 7 s for the map.
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
CAUTION = (
    "So few seeds and epochs are a demonstration, no evidence: with 500 held-out digits, two percent more or less can "
    "be chance."
)
SHOWN = 40  # halves of the picture
Halves = tuple[Tensor, Tensor]
PAGE, MAP, RUNS, EMBEDDINGS, MARK = "index.html", "map.html", "runs", "embeddings", ".setwise-demo"
MAPPED = "SimCLR + QARe"  # the encoder of the map
# The files of a run: the next demo removes these and nothing else.
RUN_FILES = ("checkpoint.safetensors", "metrics.csv", "metrics.jsonl", records.FILE, ".lock")


@dataclass(frozen=True)
class Results:
    """What a demo measured: the records of the encoders' runs, and the share of held-out halves matched."""

    encoders: dict[str, list[dict[str, Any]]]
    matching: dict[str, float]


def embed(model: nn.ModuleList, left: Tensor, right: Tensor) -> Halves:
    """Unit vectors [N, 32] of both halves, by a small perceptron for each."""
    return normalize(model[0](left)), normalize(model[1](right))


def train(loss: nn.Module, left: Tensor, right: Tensor, *, seed: int, steps: int) -> nn.ModuleList:
    """A model trained by ``loss`` on random batches."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sizes = ((32, 128), (128, 128), (128, 32))
        sides = [[layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())][:-1] for _ in "ab"]
        model = nn.ModuleList(nn.Sequential(*side) for side in sides)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = torch.randperm(len(left), generator=generator)[:BATCH]
        optimizer.zero_grad()
        loss(*embed(model, left[batch], right[batch])).backward()
        optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.ModuleList, left: Tensor, right: Tensor) -> float:
    """Matching accuracy, averaged over disjoint sets of ``HELD_OUT_SET`` digits."""
    sets = zip(*(torch.split(half, HELD_OUT_SET) for half in (left, right)), strict=True)
    values = [matching_accuracy(*embed(model, *pair)) for pair in sets]
    return sum(values) / len(values)


def run(
    *, out: Path = Path("out/demo"), seed: int = 1, seeds: int = SEEDS, epochs: int = EPOCHS, steps: int = STEPS
) -> Results:
    """Train encoders and matchers, print what they reach, write a page into the folder ``out`` and the runs below."""
    console, began, cpu = Console(markup=False, emoji=False), time.perf_counter(), time.process_time()
    losses = {
        name + suffix: presets(f"paper/matching-{preset}{end}")
        for name, preset in NAMED.items()
        for suffix, end in (("", ""), (" + QARe", "-qare"))
    }
    losses |= {f"one-to-one {name}": loss for name, loss in ONE_TO_ONE.items()}
    jobs = [(name, n) for n in range(seed, seed + seeds) for name in ENCODERS]
    console.print(f"{len(jobs)} encoders and {len(losses)} matchers learn from handwritten digits: about a minute.")
    with _folder(out), Progress(console=console, transient=True) as progress:
        results = Results({name: [] for name in ENCODERS}, {})
        for name, n in progress.track(jobs, description="encoders learn without labels"):
            results.encoders[name].append(_pretrain(out, name, seed=n, epochs=epochs))
        data, test = (
            [half.flatten(1).float() / 255 for half in (halves.first_a, halves.first_b)]  # [N, 32] each
            for halves in (matched_halves(load("digits", split=split)) for split in ("train", "test"))
        )
        models = {"untrained": train(nn.Identity(), *data, seed=seed, steps=0)}
        for name in progress.track(losses, description="perceptrons learn to match halves"):
            models[name] = train(losses[name], *data, seed=seed, steps=steps)
        results.matching.update({name: accuracy(model, *test) for name, model in models.items()})
        spent = f"{time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of them on the processor"
        tables = _tables(results)
        with torch.no_grad():
            shown = [embed(models[name], *(half[:SHOWN] for half in test)) for name in ("untrained", "InfoNCE + QARe")]
        _write_page(out / PAGE, results, tables, shown, _details(results, steps=steps, spent=spent))
        progress.add_task("the digits are put on a map", total=None)
        _write_map(out, seed=seed)
    for table in tables:
        console.print(Markdown(table.markdown()))
    console.print(f"{len(jobs)} encoders and {len(losses)} matchers in {spent}. {CAUTION}", highlight=False)
    console.print(f"The page with curves and pictures: {visible(str(out / PAGE))}", highlight=False, soft_wrap=True)
    console.print(f"All digits on a map: {visible(str(out / MAP))}", highlight=False, soft_wrap=True)
    return results


def _pretrain(out: Path, name: str, *, seed: int, epochs: int) -> dict[str, Any]:
    """The record of an encoder's run."""
    chosen = recipe(RECIPE + ENCODERS[name])
    if chosen.epochs:  # the untrained encoder stays untrained
        chosen = replace(chosen, epochs=epochs)
    folder, how = out / RUNS / ENCODERS[name] / f"seed-{seed}", RunOptions(torch.device("cpu"), quiet=True)
    try:
        return runs.pretrain(chosen, folder, name=f"demo {name}", seed=seed, how=how)
    except Interrupted as error:
        raise Interrupted(error.signal, "the demo was stopped; `setwise demo` starts over") from error


def _write_map(out: Path, *, seed: int) -> None:
    """A map of all digits by one of the encoders, as `setwise map` draws it."""
    encoder, _ = runs.image_encoder(out / RUNS / ENCODERS[MAPPED] / f"seed-{seed}")
    table = embed_images(encoder, collect("digits"), out / EMBEDDINGS, device=torch.device("cpu"), quiet=True)
    write_map(out / MAP, table, encoder=f"this demonstration's {MAPPED}", number=10)


def _tables(results: Results) -> list[Table]:
    def score(name: str, key: str) -> str:
        values = [100 * record["final"][key] for record in results.encoders[name]]
        spread = f" ({min(values):.1f}–{max(values):.1f})" if len(values) > 1 else ""
        return f"{sum(values) / len(values):.1f}{spread}"

    matched = {name: f"{100 * share:.1f}" for name, share in results.matching.items()}
    seeds = len(results.encoders["SimCLR"])
    many = f"mean of {seeds} seeds, least and greatest in brackets" if seeds > 1 else "one seed"
    return [
        Table(
            "encoders",
            ("encoder", *SCORES.values()),
            [(name, *(score(name, key) for key in SCORES)) for name in ENCODERS],
            "Encoders: held-out digits recognised, %",
            f"{many}; guessing 10. The untrained features are tiny, and the paper's probe takes them as they are: "
            "for the untrained encoder its neighbours are the fair measure",
        ),
        Table(
            "halves",
            ("loss", "pairwise", "with QARe"),
            [(name, matched[name], matched[f"{name} + QARe"]) for name in NAMED],
            "Halves: held-out digits matched, %",
            f"one seed, QARe at the paper's weight; untrained {matched['untrained']}, guessing {100 / HELD_OUT_SET:g}. "
            "So few digits tell little of QARe: its gain in matching shows with 10,000 instances, see docs/findings.md",
        ),
        Table(
            "family",
            ("assignments", *ONE_TO_ONE),
            [
                ("row-wise", *(matched[name] for name in ("margin triplet", "InfoNCE", "SparseCLR"))),
                ("one-to-one", *(matched[f"one-to-one {name}"] for name in ONE_TO_ONE)),
            ],
            "The same as one family: halves matched, %",
            "rows: which assignments compete; columns: how the maximum over them is smoothed; row-wise these are the "
            "margin triplet, InfoNCE and SparseCLR",
        ),
    ]


def _write_page(path: Path, results: Results, tables: Sequence[Table], shown: Sequence[Halves], details: str) -> None:
    def curve(name: str, term: str) -> list[tuple[float, float]]:
        columns = [record["epochs"] for record in results.encoders[name]]
        means = [sum(values) / len(values) for values in zip(*(column[term] for column in columns), strict=True)]
        return list(zip(columns[0]["epoch"], means, strict=True))

    first = results.encoders["SimCLR"]
    data, epochs = first[0]["data"], first[0]["recipe"]["epochs"]
    page = Page(
        "setwise: a demonstration", lead="Set-level contrastive learning on handwritten digits, on one CPU core."
    )
    page.text(
        f"A Conv-4 encoder learned from {data['train']:,} digits without their labels for {epochs} epochs, by SimCLR "
        "and by SimCLR with the set-level term QARe. A linear classifier and nearest neighbours then show how well "
        f"its frozen features recognise {data['test']:,} held-out ones. After that, small perceptrons learned from "
        f"each loss of the family which right half of a digit belongs to which left half, among {HELD_OUT_SET}.",
        CAUTION,
    )
    page.link(f"A map of all digits, as the encoder of {MAPPED} sees them, without their labels", MAP)
    page.heading("Encoders that learned without labels")
    tables[0].onto(page)
    mean = "Mean over the seeds. " if len(first) > 1 else ""
    page.curves(
        "Pairwise term",
        {"SimCLR": curve("SimCLR", "loss"), "SimCLR + QARe": curve("SimCLR + QARe", "pairwise")},
        x="epoch",
        y="NT-Xent",
        note=f"{mean}With QARe the released form clamps cosines at 0, so the two lines are not quite the same measure.",
    )
    page.curves(
        "Set-level term",
        {"SimCLR": [], "SimCLR + QARe": curve("SimCLR + QARe", "regularizer")},  # the same colours as above
        x="epoch",
        y="QARe, before its weight",
        note=f"{mean}SimCLR alone does not compute it.",
    )
    page.heading("Which right half belongs to which left half?")
    tables[1].onto(page)
    tables[2].onto(page)
    before, after = (f"{100 * matching_accuracy(*pair):.0f} %" for pair in shown)
    page.picture(
        distances_picture(*shown),
        alt="Two matrices of distances between left and right halves. After training the diagonal, where halves of the "
        "same digit meet, is the nearest.",
        caption=f"Distances (dark is close) between {SHOWN} held-out halves before and after training by InfoNCE + "
        f"QARe, which match {before} and {after}; among {SHOWN} that is easier than among the table's {HELD_OUT_SET}",
    )
    page.details("How it was made", details)
    page.write(path)


def _details(results: Results, *, steps: int, spent: str) -> str:
    record = results.encoders["SimCLR + QARe"][0]
    lines = [
        f"time       {spent}",
        f"encoders   recipes {RECIPE}{{{','.join(ENCODERS.values())}}}, {record['recipe']['epochs']} epochs",
        f"matchers   {steps} steps of {BATCH} digits, seed {record['seed']}",
        f"versions   {', '.join(f'{name} {version}' for name, version in record['versions'].items())}",
        f"commit     {record['commit']}",
        f"hardware   {record['hardware']['name']}, one thread",
    ]
    for name, all_seeds in results.encoders.items():
        for r in all_seeds:
            scores = ", ".join(f"{title} {100 * r['final'][key]:.1f} %" for key, title in SCORES.items())
            lines.append(f"{RUNS}/{ENCODERS[name]}/seed-{r['seed']}: {scores}")
    return "\n".join(lines)


@contextlib.contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Lock the folder for this demo and remove the runs of the one before. Nothing else in it is touched."""
    foreign = [name for name in (PAGE, MAP, RUNS, EMBEDDINGS) if (out / name).exists()]
    if foreign and not (out / MARK).exists():
        raise ValueError(
            f"expected a new folder or one of an earlier demo, got {out} with {' and '.join(foreign)} "
            "of something else; give another --out"
        )
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    try:
        with locked(out / ".lock", option="--out"):
            for kind in ENCODERS.values():
                for folder in (out / RUNS / kind).glob("seed-*"):
                    for name in RUN_FILES:
                        (folder / name).unlink(missing_ok=True)
                    with contextlib.suppress(OSError):  # someone keeps a file there
                        folder.rmdir()
            yield
    except LockTaken as error:
        raise ValueError(f"expected {out} for this demo alone, but {error}; give another --out") from error
