"""Which runs a table of the paper is made of, and our own tables beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import setwise.paper.factors as factors
import setwise.paper.tuning as trials
import setwise.records as records
from setwise.checks import check_option
from setwise.losses.presets import objective_of
from setwise.paper.ablation import bests_of, is_ablation
from setwise.paper.collected import collect, groups
from setwise.paper.factors import AGAIN, LATER, LEVELS, SEEDS, Point
from setwise.paper.objectives import weight_of
from setwise.paper.paying import Map
from setwise.paper.recipes import DATA, MATCHING_DATA, MATCHING_LOSSES, recipe
from setwise.recipe import Recipe, flat
from setwise.training.environment import plain_path


@dataclass(frozen=True)
class Job:
    """One run: a recipe's name, what is changed of it, a seed."""

    name: str
    recipe: Recipe
    seed: int
    variant: str = ""  # in words for a path, "beta-10"

    @property
    def words(self) -> str:
        """The name and variant that --only searches."""
        return f"{self.name}/{self.variant}/" if self.variant else f"{self.name}/"

    def record(self, results: Path) -> Path:
        """Where its record is or will be."""
        return results / "runs" / self.name / self.variant / f"seed-{self.seed}.json"

    def check(self, results: Path) -> None:
        """Raise if the file at its record's place is not its record: it would count as done, and be in no table."""
        path = self.record(results)
        if not path.exists():
            return
        record = records.read(path)
        try:
            theirs, mine = flat(records.recipe_of(record).tree()), flat(self.recipe.tree())
            records.Run.of(path.name, record)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        mine["data.source"] = plain_path(self.recipe.data.source)
        theirs |= {"name": record.get("name"), "seed": record.get("seed")}
        mine |= {"name": self.name, "seed": self.seed}
        other = [key for key in mine | theirs if key != "about" and theirs.get(key) != mine.get(key)]
        if other:
            raise ValueError(f"expected the record of this run at {path}, got another's ({', '.join(other)} differ)")


def weighed(recipe: Recipe, weight: float) -> Recipe:
    """The recipe with another weight of its set-level term."""
    assert recipe.objective is not None
    (term,) = recipe.objective.terms
    return replace(recipe, objective=replace(recipe.objective, terms=(replace(term, weight=weight),)))


def with_loss(recipe: Recipe, preset: str, weight: float | None = None) -> Recipe:
    """The recipe with the objective of a preset."""
    return replace(recipe, objective=objective_of(preset, weight))


@dataclass(frozen=True)
class TableRequest:
    """Which runs of a table are wanted."""

    data: str = "cifar10"
    seeds: Sequence[int] = (1, 2, 3)
    instances: int | None = None  # of matching
    results: Path = Path("results")  # for what follows from other records
    whole: bool = False  # the first trial where the best is not known yet: to count what there is to do


# Weights from which those of our own terms are chosen, for each loss, by validation accuracy.
GRID = {"gap": (1.0, 3.0, 10.0, 30.0), "control": (1.0, 3.0, 10.0, 30.0)}
MORE_SEEDS = 10  # of InfoNCE, for paired differences that can tell


def table1(request: TableRequest) -> list[Job]:
    """Instance matching: all eight rows of the paper's Table 1, and the terms that are ours with their weights."""
    jobs = []
    data, seeds, instances = request.data, request.seeds, request.instances
    if data == "cuhk03" and instances is not None:
        raise ValueError(f"expected no instances for cuhk03, which has its own identities, got {instances}")
    more = range(1, MORE_SEEDS + 1) if tuple(seeds) == TableRequest.seeds else seeds
    for loss in MATCHING_LOSSES:
        for seed in more if loss == "infonce" else seeds:
            for end in ("", "-qare"):
                name = f"paper/{data}-matching-{loss}{end}"
                jobs.append(Job(name, recipe(name), seed))
            for term, weights in GRID.items():
                name = f"setwise/{data}-matching-{loss}-{term}"
                jobs += [Job(name, weighed(recipe(name), x), seed, f"beta-{x:g}") for x in weights]
    if instances is not None:
        jobs = [
            replace(
                job,
                recipe=job.recipe.changed({"data.instances": instances}),
                variant="-".join(filter(None, (job.variant, f"n{instances}"))),
            )
            for job in jobs
        ]
    return jobs


def _classification(methods: Sequence[str], request: TableRequest) -> list[Job]:
    names = [
        f"{form}/{request.data}-{encoder}-{method}"
        for encoder in ("conv4", "resnet32")
        for form in ("released", "paper")
        for method in methods
    ]
    return [Job(name, recipe(name), seed) for name in names for seed in request.seeds]


def table2(request: TableRequest) -> list[Job]:
    """SimCLR with and without QARe against other methods, on both encoders, in the paper's and the released form."""
    baselines = ("random", "supervised", "rotation", "deepcluster", "deepinfomax")
    return _classification(("simclr", "simclr-qare", *baselines), request)


def table3(request: TableRequest) -> list[Job]:
    """SparseCLR with and without QARe; SimCLR beside it is Table 2's.

    In the released form QARe comes with a clamp of the loss: with weight 0 there is the clamp alone, the control.
    """
    jobs = _classification(("simclr", "sparseclr", "sparseclr-qare"), request)
    for encoder in ("conv4", "resnet32"):
        name = f"released/{request.data}-{encoder}-sparseclr-qare"
        jobs += [Job(name, weighed(recipe(name), 0.0), seed, "beta-0") for seed in request.seeds]
    return jobs


def fig_beta(request: TableRequest) -> list[Job]:
    """Figure 2: accuracy against the weight of QARe, 0 to 1.875 in steps of 0.125 (0 is the clamped loss alone)."""
    jobs = []
    for encoder in ("conv4", "resnet32"):
        name = f"released/{request.data}-{encoder}-simclr-qare"
        for step in range(16):
            beta = 0.125 * step
            variant = "" if beta == weight_of(recipe(name)) else f"beta-{beta:g}"  # the recipe's own is Table 2's
            jobs += [Job(name, weighed(recipe(name), beta), seed, variant) for seed in request.seeds]
    return jobs


# Weights over two decades for each set-level term beside released/simclr; the last two terms are small by nature.
ABLATION_WEIGHTS = {
    "clamp-qare": (0.1, 1.0, 10.0),
    "qare": (0.1, 1.0, 10.0),
    "noshift": (0.1, 1.0, 10.0),
    "projection": (0.1, 1.0, 10.0),
    "center": (1.0,),
    "features": (0.1, 1.0, 10.0),
    "frobenius": (0.1, 1.0, 10.0),
    "gap": (1.0, 10.0, 100.0),
    "control": (1.0, 10.0, 100.0),
}
ABLATION_SEEDS = (1, 2, 3, 4, 5)
VALIDATION = 5000  # training images to choose by


def ablation(request: TableRequest) -> list[Job]:
    """What of QARe helps: one factor at a time from released/simclr on Conv-4, tested on a part of the training set."""
    base = f"released/{request.data}-conv4-simclr"
    kept = recipe(base).changed({"data.validation": VALIDATION})
    jobs = []
    for seed in sorted({*request.seeds, *ABLATION_SEEDS}):
        jobs.append(Job(base, kept, seed, "validation"))
        for name in ("cold", "mean", "clamp"):
            jobs.append(Job(base, with_loss(kept, f"ablation/simclr-{name}"), seed, f"validation-{name}"))
        for name, weights in ABLATION_WEIGHTS.items():
            loss = "released/simclr-qare" if name == "clamp-qare" else f"ablation/simclr-{name}"
            for beta in weights:
                changed = with_loss(kept, loss, beta)
                jobs.append(Job(base, changed, seed, f"validation-{name}-{beta:g}"))
    return jobs


FRESH = 10  # added to seeds, which then chose nothing
TUNING_SEED = 1


def confirm(request: TableRequest) -> list[Job]:
    """The ablation's best, and its best with a set-level term, on the test set, both encoders and fresh seeds.

    The ablation used seeds 1 to 5 of Conv-4 to choose, so Conv-4 gets other seeds here. ResNet-32 chose nothing.
    """
    data, results = request.data, request.results
    # Only ablations of the unchanged recipe: that is the one which is confirmed.
    ablations = [g for g in groups(collect(results)[0]) if is_ablation(g) and g.changed == f"validation {g.validation}"]
    best = {(row.loss, row.weight) for group in ablations if group.data == data for row, _ in bests_of(group)}
    if not best:
        raise ValueError(
            f"expected records of `setwise reproduce ablation --data {data}` below {results / 'runs'}, two seeds of "
            "each, to confirm the best of them, got none"
        )
    jobs = []
    for encoder in ("conv4", "resnet32"):
        name = f"released/{data}-{encoder}-simclr"
        for seed in (FRESH + seed if encoder == "conv4" else seed for seed in request.seeds):
            jobs.append(Job(name, recipe(name), seed))
            for loss, beta in sorted(best, key=str):
                word = loss.split("/")[1] + ("" if beta is None else f"-{beta:g}")
                jobs.append(Job(name, with_loss(recipe(name), loss, beta), seed, word))
    return jobs


def tuning(request: TableRequest) -> list[Job]:
    """As many trials for SimCLR as for SimCLR with each set-level term, on validation images: see paper/tuning.py."""
    jobs = []
    for encoder, number, term in _trials():
        name = f"released/{request.data}-{encoder}-simclr"
        short = trials.tried(request.data, encoder, term, number).changed(
            {"epochs": trials.EPOCHS, "data.validation": trials.VALIDATION}
        )
        jobs.append(Job(name, short, TUNING_SEED, trials.variant(term, number)))
    return jobs


def _trials() -> list[tuple[str, int, str]]:
    """Encoder, number and term of every trial: a number of all terms before the next number."""
    counts = trials.TRIALS.items()
    return [(one, k, term) for one, count in counts for k in range(1, count + 1) for term in trials.terms_of(one)]


def tuned(request: TableRequest) -> list[Job]:
    """The best trial of each, with fresh seeds on the test images: ten of Conv-4, three of ResNet-32.

    Of encoders and terms whose trials have all been made; an error if there are none.
    """
    jobs, missing = [], ""
    for encoder, count in (("conv4", MORE_SEEDS), ("resnet32", len(TableRequest.seeds))):
        name = f"released/{request.data}-{encoder}-simclr"
        for term in trials.terms_of(encoder):
            try:
                best = trials.winner(request.results, request.data, encoder, term, seed=TUNING_SEED)
            except ValueError as error:
                missing = missing or str(error)
                if not request.whole:
                    continue
                best = 1
            chosen = trials.tried(request.data, encoder, term, best)
            jobs += [Job(name, chosen, FRESH + k, trials.tested(term)) for k in range(1, count + 1)]
    if not jobs:
        raise ValueError(missing)
    return jobs


def factor_map(request: TableRequest) -> list[Job]:
    """Where a set-level term pays, see paper/factors.py: trials, then tests of the best, then gains tested again.

    Tests follow from the records of trials, and the last ones from those of tests: the same command goes on.
    """
    data, seen = request.data, Map(request.data, collect(request.results)[0])
    seeds = range(1, SEEDS + 1) if tuple(request.seeds) == TableRequest.seeds else request.seeds

    def job(point: Point, seed: int) -> Job:
        made = factors.recipe_of(data, point)
        return Job(f"released/{data}-conv4-simclr", made, seed, factors.variant(point))

    jobs = []
    for term, level in ((term, level) for term in factors.TERMS for level in LEVELS.values()):  # the last term last
        numbers, best = level.numbers(term), seen.best(level, term)
        if len(numbers) > 1:
            jobs += [job(Point(level.place, term, number, False), TUNING_SEED) for number in numbers]
        if best is not None or request.whole:
            jobs += [job(Point(level.place, term, best or 1, True), FRESH + seed) for seed in seeds]
    for gain in seen.promising:
        for term in ("plain", gain.term):
            best = seen.best(gain.level, term)
            assert best is not None
            again = Point(gain.level.place, term, best, True)
            jobs += [job(again, LATER + k) for k in range(1, AGAIN + 1)]
    return jobs


# What could keep ResNet-32 below the paper's number: the loss's form; all on a quarter of the epochs; float32, which is
# slow, on a tenth.
QUARTER, TENTH = {"epochs": 50}, {"epochs": 20}
MEAN = {"objective.reduction": "mean"}
ACCURACY_GAP: dict[str, dict[str, Any]] = {
    "mean": MEAN,
    "quarter": QUARTER,
    "quarter-mean": QUARTER | MEAN,
    "quarter-xavier": QUARTER | {"encoder.weights": "xavier"},
    "quarter-drop-last": QUARTER | {"drop_last": True},
    "quarter-modern-views": QUARTER | {"views": "modern"},
    "tenth": TENTH,
    "tenth-float32": TENTH | {"precision": "float32"},
}


def accuracy_gap(request: TableRequest) -> list[Job]:
    """One factor at a time from released/simclr on ResNet-32: which of them moves its accuracy."""
    name = f"released/{request.data}-resnet32-simclr"
    jobs = [Job(name, recipe(name), seed) for seed in request.seeds]
    for word, changes in ACCURACY_GAP.items():
        jobs += [Job(name, recipe(name).changed(changes), seed, word) for seed in request.seeds]
    return jobs


TABLES: dict[str, Callable[[TableRequest], list[Job]]] = {
    "table1": table1,
    "table2": table2,
    "table3": table3,
    "fig-beta": fig_beta,
    "ablation": ablation,
    "confirm": confirm,
    "accuracy-gap": accuracy_gap,
    "tuning": tuning,
    "tuned": tuned,
    "map": factor_map,
}
OLD_NAMES = {"shortfall": "accuracy-gap"}


def expand(
    tables: str | Sequence[str],
    *,
    data: str = "cifar10",
    seeds: Sequence[int] = (1, 2, 3),
    only: Sequence[str] = (),
    instances: int | None = None,
    results: Path = Path("results"),
    whole: bool = False,
) -> list[Job]:
    """The runs of one table or of several, seed by seed; ``only`` keeps those with one of these words in their names.

    A name ends with a slash, ``RECIPE/VARIANT/``, so that "simclr/" does not find simclr-qare.
    """
    if not seeds:
        raise ValueError("expected at least one seed, got none; --seeds 1 2 3")
    found: dict[Path, Job] = {}
    for name in [tables] if isinstance(tables, str) else tables:
        table = OLD_NAMES.get(name, name)
        check_option(table, tuple(TABLES), "the table")
        check_option(data, MATCHING_DATA if table == "table1" else DATA, f"data of {table}")
        jobs = TABLES[table](TableRequest(data, seeds, instances, results, whole))
        found |= {job.record(results): job for job in sorted(jobs, key=lambda job: job.seed)}
    for words in only:
        if not any(words in job.words for job in found.values()):
            raise ValueError(f"expected runs with {words!r} in their name, got none in {tables}")
    return [job for job in found.values() if not only or any(words in job.words for words in only)]
