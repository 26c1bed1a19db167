"""Training where only sets are known to belong together: which truth is best, for sets of which size, and how wrong?

    python benchmarks/sets_study.py ROOT [--study size missing wrong halves quadratic] [--out FILE.json] [--part 1/12]
    python benchmarks/sets_study.py ROOT --study size --groups 128 --ways same hard one-to-one --untuned
    python benchmarks/sets_study.py --show [--out FILE.json]

ROOT has the folders multi30k and, for the study of halves, cifar10. A setting is the data, the size of the sets, what
is wrong with them, and a way: the loss and its truth.

size        sets of 1 to 256 lines; English and German, English and French; all 29,000 lines, or 4,096
missing     10, 30, 50 % of the items of each side lack their partner; with and without a price for "no match"
wrong       5, 20 % of the sets are paired with another's
halves      left and right halves of CIFAR-10's images, in sets of 1 to 128; all 50,000, or 4,096
quadratic   truths from the first step, sets of 256, few sets, weak encoders: where a quadratic truth might help.
            The first step's truth ("cold") is also that of "hard" and "one-to-one"

1. Twelve trials of each setting: the recipe's own numbers, and points of a Halton sequence, the same for all:
   temperature and epochs, the price where there is one; of soft truths the softness, and when they begin. One seed,
   tested on the validation split.
2. The trial with the best recall@1, the mean of both ways, again with ten fresh seeds, tested on the test split.

``--untuned`` leaves out both: the recipe's own numbers with the ten seeds, one seed after the other.

Every run that ends is in FILE.json at once: the same command goes on where it was stopped. ``--part 2/4`` does every
fourth of the settings, in a random order, from the second on: four processes share the work and the file. A way that
this version of the package does not know is left out.

Recall is of the whole split, of which no item is missing. "aligned" is the share of items whose partner ``sw.align``
finds inside of held-out sets that are as large, and lack as many items, as those of training. Where items are missing,
"alone" has precision and recall of "no partner", of both sides together, for each price of ``PRICES``.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

import setwise as sw
import setwise.register as register
from setwise.data import PairSet
from setwise.evaluation.retrieval import MOST, pair_retrieval
from setwise.losses.options import Truth
from setwise.methods import Pairs
from setwise.paper.recipes import recipe as recipe_by_name
from setwise.paper.tuning import between, radical_inverse
from setwise.recipe import Recipe
from setwise.records.statistics import mean_std, paired_difference
from setwise.runs import choose_device
from setwise.runs.pairs import embed_pairs, pair_data
from trials import Results, trained

TRIALS = 12
SKIP = 20  # the first points of the sequence lie on a line
SEED, SEEDS = 1, range(11, 21)  # of the trials, of the tests
MEASURE = "recall1"
TEMPERATURES = (0.04, 0.25)
PRICES = (-0.1, -0.2, -0.3, -0.4, -0.5, -0.6)  # of cosines
STRUCTURES = (0.1, 10.0)  # weights of the quadratic part
SOFTNESSES, ANNEALS = (0.03, 0.5), (0.1, 0.25, 0.5)
FEW = 4096  # lines or images: 32 sets of 128


class Source(NamedTuple):
    """A recipe, what a study changes of it, the epochs of trials, and what these are tested on."""

    recipe: str
    changes: dict[str, Any]
    epochs: tuple[int, ...]
    validation: dict[str, Any]


def sentences(language: str, *, few: bool) -> Source:
    """English and another language, all lines or few."""
    changes = {"data.second": language} | ({"data.instances": FEW, "epochs": 20} if few else {})
    return Source("pairs/multi30k-bag-infonce", changes, (10, 20, 40) if few else (4, 8, 16), {"data.test": "val"})


SENTENCES = {
    f"en-{one}{'-few' if few else ''}": sentences(one, few=few) for few in (False, True) for one in ("de", "fr")
}
DATA = dict(SENTENCES)
for name, changes in {"halves": {}, "halves-few": {"data.instances": FEW}}.items():
    DATA[name] = Source("pairs/cifar10-halves-conv4-infonce", changes, (10, 20, 40), {"data.validation": 2000})
SINGLE = {"method.softness": 0.0, "method.anneal": 0.5}  # partners
ONE_TO_ONE = {"loss": "assignment", "mining": "one-to-one", "similarity": "cosine", "symmetric": True}
# A way is a loss and its truth. "hard", "one-to-one" and "quadratic" begin when half of training is done, the soft ones
# when a quarter is.
WAYS: dict[str, dict[str, Any]] = {
    "same": {},  # row-wise, entropic: MIL-NCE
    "hard": {"method.truth": "hard"} | SINGLE,
    "one-to-one": {"method.truth": "one-to-one"} | SINGLE,
    "hard-soft": {"method.truth": "hard", "method.softness": 0.1, "method.anneal": 0.25},
    "one-to-one-soft": {"method.truth": "one-to-one", "method.softness": 0.1, "method.anneal": 0.25},
    "quadratic": {"method.truth": "quadratic", "method.anneal": 0.5},
    "sparse": {"objective": ONE_TO_ONE | {"mining": "batch-hard", "smoothing": "sparse", "temperature": 8.0}},
    "assignment-entropy": {"objective": ONE_TO_ONE | {"smoothing": "sinkhorn", "temperature": 0.1}},
    "assignment-sparse": {"objective": ONE_TO_ONE | {"smoothing": "sparsemap", "temperature": 8.0}},
}
SOFT = ("hard-soft", "one-to-one-soft")
TRUTHS = ("same", "hard", "one-to-one", *SOFT)
WARMER = {"sparse": (2.0, 64.0), "assignment-sparse": (2.0, 64.0)}  # temperatures: below these they learn less
UNCAPTURED = ("quadratic", "assignment-sparse")  # ways that wait for the CPU
SCENES: dict[str, dict[str, Any]] = {
    "cold": {"method.anneal": 0.0},  # the truth from the first step
    "weak": {"data.vocabulary": 4096, "encoder.features": 32},
}


@dataclass(frozen=True)
class Setting:
    """What is trained on, and how."""

    data: str
    group: int
    way: str
    missing: float = 0.0  # share of the items of each side that lack their partner
    wrong: float = 0.0  # share of the sets that are paired with another's
    priced: bool = False
    scene: str = ""

    @property
    def key(self) -> str:
        """Its name in the file."""
        how = [f"{name} {x:g}" for name, x in (("missing", self.missing), ("wrong", self.wrong)) if x]
        way = f"{self.way}, priced" if self.priced else self.way
        return f"{self.data}/{self.group}/{' '.join([*how, self.scene]).strip() or 'plain'}/{way}"


def settings(study: str) -> list[Setting]:
    """All settings of a study."""
    if study == "size":
        return [
            Setting(data, group, way)
            for data in SENTENCES
            for group in (1, 8, 32, 64, 128, 256)
            for way in WAYS
            if way != "quadratic" and (group > 1 or way not in TRUTHS[1:])  # of one, all truths are equal
        ]
    if study == "missing":
        return [
            Setting(data, 128, way, missing=share, priced=priced)
            for data in ("en-de", "en-de-few")
            for share in (0.1, 0.3, 0.5)
            for way in TRUTHS
            for priced in (False, True)
        ]
    if study == "wrong":
        return [
            Setting(data, 128, way, wrong=share)
            for data in ("en-de", "en-de-few")
            for share in (0.05, 0.2)
            for way in TRUTHS
        ]
    if study == "halves":
        return [
            Setting(data, group, way)
            for data in ("halves", "halves-few")
            for group in (1, 8, 32, 64, 128)
            for way in (TRUTHS if group > 1 else TRUTHS[:1])
        ]
    plain = [
        Setting(data, group, way)
        for data in ("en-de", "en-de-few")
        for group in (128, 256)
        for way in (*TRUTHS, "quadratic")
    ]
    return plain + [replace(one, scene=scene) for scene in SCENES for one in plain if one.group == 128]


STUDIES = ("size", "missing", "wrong", "halves", "quadratic")


class Lines(NamedTuple):
    """The line of each row on both sides, and the row's set: int64 [N] each. Equal lines are partners."""

    first: Tensor
    second: Tensor
    sets: Tensor


def lines_in_sets(count: int, group: int, *, missing: float = 0.0, wrong: float = 0.0, seed: int = 0) -> Lines:
    """``count`` lines in sets with ``group`` rows on each side; a last one may have fewer.

    ``missing``: so large a share of a set's rows, of either side, has no partner there: their lines are on one side
    alone. Such a set uses more lines than it has rows. So both sides keep as many rows, which a ``PairSet`` needs.
    ``wrong``: so large a share of the sets has the second side of another one of them. Which lines and sets these are
    is drawn by ``seed``.
    """
    generator = torch.Generator().manual_seed(seed)
    firsts, seconds = [], []
    for document in torch.split(torch.arange(count), group + round(missing * group)):
        alone = round(len(document) * missing / (1 + missing))
        drawn = torch.randperm(len(document), generator=generator)
        firsts.append(document[drawn[alone:].sort().values])
        seconds.append(document[torch.cat([drawn[:alone], drawn[2 * alone :]]).sort().values])
    whole = torch.tensor([k for k, rows in enumerate(firsts) if len(rows) == group])
    mixed = whole[torch.randperm(len(whole), generator=generator)[: round(wrong * len(whole))]].tolist()
    moved = [seconds[k] for k in mixed]
    for k, rows in zip(mixed, moved[1:] + moved[:1], strict=True):
        seconds[k] = rows
    sets = torch.cat([torch.full((len(rows),), k) for k, rows in enumerate(firsts)])
    return Lines(torch.cat(firsts), torch.cat(seconds), sets)


def in_sets(pairs: PairSet, lines: Lines, *, seed: int) -> PairSet:
    """The lines of both sides as pairs of which only the sets are known, in a random order inside of each."""
    first, second = pairs.first.select(lines.first), pairs.second.select(lines.second)
    return replace(pairs, first=first, second=second, sets=lines.sets).shuffled(seed=seed)


def base(setting: Setting, stage: str) -> Recipe:
    """The recipe of a setting, before its trials change it."""
    source = DATA[setting.data]
    changes = source.changes | {"batch": max(256, 2 * setting.group)}
    changes |= {"method.price": -0.3, "method.anneal": 0.5} if setting.priced else {}
    changes |= WAYS[setting.way] | SCENES.get(setting.scene, {})
    return recipe_by_name(source.recipe).changed(changes | (source.validation if stage == "trial" else {}))


@lru_cache(maxsize=2)
def loaded(data: str, scene: str, stage: str, root: Path) -> tuple[PairSet, PairSet]:
    """The pairs to train on and to test on, of whatever way."""
    return pair_data(base(Setting(data, 1, "same", scene=scene), stage), root)


def trial(setting: Setting, number: int) -> dict[str, Any]:
    """What trial ``number``, from 1 on, changes of the recipe. The first changes nothing."""
    if number == 1:
        return {}
    heat, length, worth, weight = (radical_inverse(SKIP + number, base) for base in (2, 3, 5, 7))
    choices = DATA[setting.data].epochs
    found: dict[str, Any] = {
        "objective.temperature": between(*WARMER.get(setting.way, TEMPERATURES), heat),
    }
    found["epochs"] = choices[int(len(choices) * length)]
    if setting.priced:
        found["method.price"] = round(PRICES[0] + (PRICES[-1] - PRICES[0]) * worth, 2)
    if setting.way in SOFT:
        begin, softness = (radical_inverse(SKIP + number, base) for base in (11, 13))
        found["method.anneal"] = ANNEALS[int(len(ANNEALS) * begin)]
        found["method.softness"] = between(*SOFTNESSES, softness)
    if setting.way == "quadratic" and "structure" in register.method["pairs"].options:
        found["method.structure"] = between(*STRUCTURES, weight)
    return found


def measured(z_a: Tensor, z_b: Tensor, setting: Setting) -> dict[str, Any]:
    """Recall of all, alignment inside of held-out sets, and how well "no partner" is known where some have none."""
    found: dict[str, Any] = {MEASURE: pair_retrieval(z_a, z_b)[MEASURE]}
    lines = lines_in_sets(len(z_a), setting.group, missing=setting.missing)
    a, b = z_a[lines.first], z_b[lines.second]
    if setting.group > 1:
        partner = sw.align(a, b, sets=(lines.sets, lines.sets)).partner
        paired = torch.isin(lines.first, lines.second)
        found["aligned"] = float((lines.second[partner] == lines.first)[paired].double().mean())
    if setting.missing:
        found["alone"] = {f"{price:g}": alone_found(a, b, lines, price) for price in PRICES}
    return found


def alone_found(a: Tensor, b: Tensor, lines: Lines, price: float) -> list[float]:
    """Precision and recall of "no partner", of both sides together."""
    partner = sw.align(a, b, sets=(lines.sets, lines.sets), price=price).partner
    said = torch.cat([partner < 0, ~torch.isin(torch.arange(len(b)), partner)])
    true = ~torch.cat([torch.isin(lines.first, lines.second), torch.isin(lines.second, lines.first)])
    right = int((said & true).sum())
    return [round(right / max(1, int(x.sum())), 4) for x in (said, true)]


def run(setting: Setting, stage: str, changes: dict[str, Any], seed: int, root: Path, device: torch.device) -> Any:
    """Train and measure."""
    recipe = base(setting, stage).changed(changes)
    train, test = loaded(setting.data, setting.scene, stage, root)
    lines = lines_in_sets(len(train), setting.group, missing=setting.missing, wrong=setting.wrong)
    pairs = in_sets(train, lines, seed=recipe.data.split_seed)
    method, about = trained(recipe, pairs, seed, device, capture=setting.way not in UNCAPTURED)
    assert isinstance(method, Pairs)
    if len(test) > MOST:
        test = test.select(torch.arange(MOST) * len(test) // MOST, split=test.split)
    final = measured(*embed_pairs(method, test, device), setting)
    about |= {"stage": stage, "seed": seed, "changes": changes, "final": final}
    return {name: value for name, value in asdict(setting).items() if value} | about


def known(setting: Setting) -> bool:
    """Whether this version of the package has what the setting needs."""
    truth = WAYS[setting.way].get("method.truth", "same")
    return truth in get_args(Truth)


def work(args: argparse.Namespace, mine: list[Setting], results: Results) -> None:
    """All runs of these settings that are not in the file yet."""
    device = choose_device(args.device)

    def done(setting: Setting, stage: str, name: str, changes: dict[str, Any], seed: int) -> float:
        key = f"{setting.key}/{stage}/{name}"
        found = results.read().get(key)
        if found is None or found["changes"] != changes:  # more trials may have another winner
            found = run(setting, stage, changes, seed, args.root, device)
            results.add(key, found)
            print(f"{key:56} {100 * found['final'][MEASURE]:6.2f}  {found['seconds']}", flush=True)
        return float(found["final"][MEASURE])

    seeds = SEEDS[: args.seeds]
    if args.untuned:
        for seed in seeds:
            for setting in mine:
                done(setting, "untuned", f"seed-{seed}", {}, seed)
        return
    best = {}
    for setting in mine:
        points = [trial(setting, number) for number in range(1, args.trials + 1)]
        reached = [done(setting, "trial", f"{k:02}", changes, SEED) for k, changes in enumerate(points, 1)]
        best[setting] = points[reached.index(max(reached))]
    for seed in seeds:
        for setting in mine:
            done(setting, "tuned", f"seed-{seed}", best[setting], seed)


def show(results: Results) -> None:
    """Means over the seeds, and differences to the way "same", seed by seed, with 95 % intervals."""
    cells: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for key, one in results.read().items():
        data, group, how, way, stage, _ = key.split("/")
        if stage != "trial":
            cells.setdefault((stage, f"{data} {group} {how}", way), {})[one["seed"]] = one
    for (stage, where, way), runs in sorted(cells.items()):
        shown = [f"{stage} {where:24} {way:20} n {len(runs):2}"]
        for measure in (MEASURE, "aligned"):
            mine, other = (
                {seed: 100 * one["final"][measure] for seed, one in some.items() if measure in one["final"]}
                for some in (runs, cells.get((stage, where, "same"), {}))
            )
            if mine:
                shown.append(f"{measure} {mean_std([*mine.values()]).mean:6.2f}")
                gain = None if way == "same" else paired_difference(mine, other)
                if gain is not None and gain.low is not None:
                    shown.append(f"{gain.mean:+.2f} [{gain.low:+.2f}, {gain.high:+.2f}]")
        print("  ".join([*shown, str(next(iter(runs.values()))["changes"] or "")]))


def main() -> None:
    """Run what is not in the file yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("root", type=Path, nargs="?", help="the folder with multi30k and cifar10 in it")
    parser.add_argument("--out", type=Path, default=Path("results/sets.json"))
    parser.add_argument("--part", default="1/1", help="K/N: every Nth setting from the Kth on")
    parser.add_argument("--study", nargs="+", default=list(STUDIES), choices=STUDIES)
    parser.add_argument("--data", nargs="+", default=list(DATA), choices=list(DATA))
    parser.add_argument("--groups", type=int, nargs="+", help="sets of these sizes alone")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--untuned", action="store_true", help="the recipe's own numbers, no trials")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="the first so many")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--show", action="store_true", help="print the table of what is in the file")
    args = parser.parse_args()
    results = Results(args.out)
    if args.show:
        return show(results)
    if args.root is None:
        parser.error("expected ROOT, the folder with multi30k and cifar10 in it")
    wanted = dict.fromkeys(setting for study in args.study for setting in settings(study))  # each once
    mine = [
        one
        for one in wanted
        if one.data in args.data and one.way in args.ways and (not args.groups or one.group in args.groups)
    ]
    for way in sorted({one.way for one in mine if not known(one)}):
        print(f"left out: {way}, which this version of setwise does not know")
    mine = [one for one in mine if known(one)]
    random.Random(0).shuffle(mine)  # some ways take longer than others
    part, parts = map(int, args.part.split("/"))
    work(args, mine[part - 1 :: parts], results)


if __name__ == "__main__":
    main()
