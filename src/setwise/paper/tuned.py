"""What a set-level term adds once SimCLR is tuned as well as SimCLR with the term, and what it adds without tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from setwise.paper.collected import Group, Row, Run
from setwise.paper.figures import count
from setwise.paper.numbers import word
from setwise.paper.objectives import weight_of
from setwise.paper.recipes import Cell as Place
from setwise.paper.tables import NOTHING, Costs, not_run
from setwise.paper.tuning import EPOCHS, TERMS, TRIALS, VALIDATION, tested
from setwise.records.statistics import PairedDifference, paired_difference
from setwise.report.tables import NOTE, Cell, Table, shown

MEASURE, FORM, BASE = "probe_accuracy", "released", "simclr"
LABELS = {
    "plain": "SimCLR",
    "qare": "QARe",
    "gap": "alignment gap",
    "control": "structural difference",
    "frobenius": "Frobenius norms",
}
VERDICTS = {
    "above": "it helps",
    "around": "these runs cannot tell whether it helps",
    "below": "it harms",
    "unknown": "one seed gives no interval",
}
TUNED = (
    "Both tuned; fresh seeds, as many epochs as the recipe has. Without tuning: both as the recipe has them; the last "
    "column names the runs. One interval in twenty misses by chance."
)
TRIED = (
    f"Every objective had the same trials of one seed and {EPOCHS} epochs, tested on {VALIDATION:,} training images "
    "that were kept apart; the best one's numbers are here. QARe is without the clamp of the released code."
)


class Untuned(NamedTuple):
    """What a term adds to the recipe as it is, and which runs say so."""

    difference: PairedDifference
    runs: str


@dataclass(frozen=True)
class Tuned:
    """An objective in one setting: the best of its trials, and how that does on the test images."""

    term: str
    trials: int
    best: Run
    tests: Row
    untuned: Untuned | None

    @property
    def label(self) -> str:
        """In words: "SimCLR + alignment gap"."""
        return LABELS["plain"] + (f" + {LABELS[self.term]}" if self.term != "plain" else "")


@dataclass(frozen=True)
class Setting:
    """All objectives that were tuned on one data set with one encoder; plain SimCLR is the first, if it was."""

    data: str
    encoder: str
    objectives: tuple[Tuned, ...]
    runs: tuple[Run, ...]

    @property
    def title(self) -> str:
        """In words: "CIFAR-10, Conv-4"."""
        return f"{word(self.data)}, {word(self.encoder)}"

    @property
    def tested(self) -> bool:
        """Whether any winner ran on the test images: before, the table of tests has nothing to show."""
        return any(one.tests.runs for one in self.objectives)

    def difference(self, one: Tuned) -> PairedDifference | None:
        """An objective minus plain SimCLR, both tuned, on the test images."""
        plain = next((other.tests for other in self.objectives if other.term == "plain"), None)
        if plain is None or one.term == "plain":
            return None
        return paired_difference(one.tests.values(MEASURE), plain.values(MEASURE))


def settings(runs: Sequence[Run], groups: Sequence[Group]) -> list[Setting]:
    """Where objectives were tuned, from trials and tests among ``runs``; ``groups`` have the runs without tuning."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.trial is not None:
            found.setdefault((run.data, run.place.cell.encoder), []).append(run)
    result = []
    for (data, encoder), members in sorted(found.items()):
        near = [group for group in groups if (group.form, group.data, group.encoder) == (FORM, data, encoder)]
        tuned = (_tuned(term, members, near) for term in TERMS)
        result.append(Setting(data, encoder, tuple(filter(None, tuned)), tuple(members)))
    return result


def _tuned(term: str, members: Sequence[Run], near: Sequence[Group]) -> Tuned | None:
    """The tuned objective with this term; None without a trial. Tests of other trials than the best are left out."""
    of_term = [(run.trial[1], run) for run in members if run.trial is not None and run.trial[0] == term]
    trials = {number: run for number, run in of_term if number is not None and MEASURE in run.final}
    if not trials:
        return None
    best = max((run for _, run in sorted(trials.items())), key=lambda run: run.final[MEASURE])  # the first of equals
    tests = {run.seed: run for number, run in of_term if number is None and _same(run, best)}
    return Tuned(term, len(trials), best, Row(BASE, "", tests), _untuned(term, near))


def _same(test: Run, trial: Run) -> bool:
    """Whether both have one recipe, but for its length and the images it is tested on."""
    mine = test.recipe
    return trial.recipe.changed({"epochs": mine.epochs, "data.validation": mine.data.validation}) == mine


def _untuned(term: str, near: Sequence[Group]) -> Untuned | None:
    """What the term adds untuned: with its first trial's weight; or QARe as released; or on validation images."""
    if (weights := TERMS[term]) is None:
        return None
    whole = [group for group in near if not group.changed]
    validated = [group for group in near if group.validation and group.changed == f"validation {group.validation}"]
    like = (f"ablation/simclr-{term}", weights[2])
    choices = [(g, row, f"weight {row.weight:g}") for g in whole for row in g.rows if (row.loss, row.weight) == like]
    if term == "qare":
        choices += [(g, row, "with clamp") for g in whole for row in g.rows if _as_released(row)]
    for group in validated:
        more = f"weight {weights[2]:g}, {group.validation:,} validation images"
        choices += [(group, row, more) for row in group.rows if (row.loss, row.weight) == like]
    for group, row, words in choices:
        if (difference := paired_difference(row.values(MEASURE), group.plain(BASE).values(MEASURE))) is not None:
            return Untuned(difference, f"{words}, {count(difference.n, 'seed')}")
    return None


def _as_released(row: Row) -> bool:
    return (row.base, row.term, row.suffix) == (BASE, "qare", "")


def tuned_table(setting: Setting, costs: Costs = NOTHING) -> Table:
    """What each term adds to SimCLR with and without tuning; ``costs`` of tests that are not run."""
    name = Place("classification", FORM, setting.data, setting.encoder, BASE).name
    columns = ("objective", "n", "test accuracy", "difference to tuned SimCLR", "without tuning", "from")
    rows: list[list[Cell]] = []
    for one in setting.objectives:
        accuracy = one.tests.mean(MEASURE) or not_run(costs, (name, tested(one.term)))
        cells: list[Cell] = [one.label, len(one.tests.runs) or None, accuracy, setting.difference(one)]
        rows.append([*cells, *(one.untuned or (None, None))])
    title = f"Every objective tuned: {setting.title}"
    return Table(f"tuned-{setting.data}-{setting.encoder}", columns, rows, title, f"{NOTE} {TUNED}")


def trials_table(setting: Setting) -> Table:
    """The numbers of each objective's best trial."""
    names = ("objective.temperature", "optimizer.lr", "optimizer.weight_decay", "head.hidden")
    columns = (
        *("objective", "trials", "validation accuracy", "temperature", "learning rate", "weight decay"),
        *("width of the head", "weight of the term"),
    )
    rows: list[list[Cell]] = []
    for one in setting.objectives:
        weight, wanted = weight_of(one.best.recipe), TRIALS[setting.encoder]
        trials: Cell = one.trials if one.trials == wanted else f"{one.trials} of {wanted}"
        chosen: list[Cell] = [f"{one.best.fields[name]:g}" for name in names]
        cells = [one.label, trials, one.best.final[MEASURE], *chosen, None if weight is None else f"{weight:g}"]
        rows.append(cells)
    title = f"The best trial of each objective: {setting.title}"
    return Table(f"trials-{setting.data}-{setting.encoder}", columns, rows, title, TRIED)


def tuned_answer(setting: Setting) -> str:
    """What the term that is best on validation images buys after tuning, and without; then QARe: a sentence."""
    terms = [one for one in setting.objectives if one.term != "plain"]
    if not terms or len(terms) == len(setting.objectives):
        return f"{setting.title}: SimCLR and a set-level term beside it have not both been tuned yet."
    best = max(terms, key=lambda one: one.best.final[MEASURE])
    difference, untuned = setting.difference(best), best.untuned
    start = f"{setting.title}: after {count(best.trials, 'trial')} of each objective, {LABELS[best.term]}"
    start += f", the best of {len(terms)} set-level terms on validation images," if len(terms) > 1 else ""
    before = f"without tuning it adds {shown(untuned.difference)}" if untuned else "it has no runs without tuning"
    also = ""
    for qare in (one for one in terms if one.term == "qare" and one is not best and one.tests.runs):
        cells = [setting.difference(qare), qare.untuned and qare.untuned.difference]
        also = "; QARe adds {} after and {} without".format(*map(shown, cells))
    if difference is None:
        return f"{start} has yet to be tested; {before}{also}."
    verdict = VERDICTS[difference.side]
    return (
        f"{start} adds {shown(difference)} points to SimCLR on the test images ({count(difference.n, 'seed')}): "
        f"{verdict}; {before}{also}."
    )
