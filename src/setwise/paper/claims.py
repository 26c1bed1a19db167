"""The paper's claims and ours: what the paper says, what our runs say, and a verdict for each setting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import setwise.records as records
from setwise.paper.ablation import bests_of, is_ablation
from setwise.paper.collected import TERMS, Group, Row, probed
from setwise.paper.figures import SAFE, sweeps
from setwise.paper.numbers import word
from setwise.paper.objectives import preset_of, weight_of
from setwise.paper.spectra import by_seed, last_look
from setwise.paper.tables import paper_gain
from setwise.records.statistics import MeanStd, PairedDifference, holm, mean_std, paired_difference
from setwise.report.chart import Interval
from setwise.report.tables import Cell, Table, shown

VERDICTS = {"above": "yes", "below": "no", "around": "unclear", "unknown": "one seed only"}
DECIDED = ("yes", "no")
NO_RUNS, UNCONFIRMED = "no runs yet", "seen on validation only"
GOAL = 1.0  # points: the gain that this project looks for
BOTH = ("conv4", "resnet32")  # the paper's encoders
SPARSE = 50.0  # per cent of the negatives: a smaller support is called sparse; softmax, unclamped, has 100
LEVEL = 0.05
CONTROLLED = ("ablation/simclr-qare", "ablation/simclr-frobenius")  # they differ in the eigenvalues alone
EXPLAINED = (
    "The loss with the term minus the same loss without it, seed by seed: mean and 95 % interval (Student's t). Where "
    "the interval contains zero, these runs cannot tell. One interval in twenty misses by chance; with three seeds its "
    "width is itself mostly chance. All seeds share one split of the data."
)
NOTE = (
    "Differences are paired by seed, in points. Yes: the 95 % interval lies above zero; no: below; unclear: around it. "
    "In brackets: how many survive Holm's correction. Lowest and highest: of the settings with a yes or a no, if there "
    "are any. Support: per cent of the negatives that have weight, called sparse below half."
)
DETAILS = (
    "The structural difference and the product of Frobenius norms are set-level terms without eigenvalues; what QARe "
    "gains over the second, its own bound, comes from the eigenvalues. Weight 0 is QARe's form without QARe, which in "
    "the released code keeps a clamp. False negatives: share of the weight on images of the same class, above "
    "SimCLR's. A point on both encoders: the smaller gain; yes if both gain a point with intervals above zero, no if "
    "an interval ends below a point. *: changed recipes, or tested on validation images."
)


@dataclass(frozen=True)
class Answer:
    """What our runs say about a claim in one setting."""

    where: str
    ours: PairedDifference | MeanStd
    verdict: str
    paper: str | None = None

    @property
    def p(self) -> float | None:
        """That of the test against zero; None without one."""
        return self.ours.p if isinstance(self.ours, PairedDifference) and self.verdict != UNCONFIRMED else None

    @property
    def significant(self) -> bool:
        """Whether the interval excludes zero and the verdict says so: less than a point is not below zero."""
        return self.verdict in DECIDED and VERDICTS[getattr(self.ours, "side", "unknown")] == self.verdict


def surviving(answers: Sequence[Answer]) -> list[Answer]:
    """The significant settings that survive Holm's correction for all that were tested."""
    tested = {i: answer.p for i, answer in enumerate(answers) if answer.p is not None}
    adjusted = zip(tested, holm(list(tested.values())), strict=True)
    return [answers[i] for i, p in adjusted if p < LEVEL and answers[i].significant]


def verdicts(answers: Sequence[Answer]) -> list[str]:
    """The verdict of each, and whether it survives Holm's correction where several were tested."""
    sure = surviving(answers) if sum(answer.p is not None for answer in answers) > 1 else []
    return [one.verdict + (", after Holm too" if one in sure else "") for one in answers]


def compared(group: Group, term: str) -> list[tuple[Row, PairedDifference]]:
    """Rows with this term and their differences to the loss without it, on the test images.

    Only rows with the recipe's weight, or the chosen one.
    """
    rows = [row for row in group.rows if row.term == term and group.is_main(row) and not group.validation]
    pairs = [(row, group.difference(row, group.measure[0])) for row in rows]
    return [(row, difference) for row, difference in pairs if difference is not None]


def differences(groups: Sequence[Group]) -> Table:
    """What every term adds to every loss, in one table."""
    terms = [term for term in TERMS if term]
    rows: list[list[Cell]] = []
    for group in groups:
        cells = {term: {row.base: difference for row, difference in compared(group, term)} for term in terms}
        for base in dict.fromkeys(row.base for row in group.rows):
            if any(base in cells[term] for term in terms):
                ours, *others = (cells[term].get(base) for term in terms)
                rows.append([f"{word(base)}: {group.setting}", ours, _qare_gain(group, base), *others])
    columns = ["loss", TERMS["qare"], "paper's QARe", *(TERMS[term] for term in terms[1:])]
    starred = any("*" in str(row[0]) for row in rows)
    note = EXPLAINED + (" *: changed recipes; the tables below name the changes." if starred else "")
    return Table("differences", columns, rows, "What set-level terms add, in points of accuracy", note)


def _qare_gain(group: Group, base: str) -> str | None:
    return paper_gain(group, Row(base, "qare"), Row(base, ""))


def _answer(where: str, difference: PairedDifference | None, paper: str | None = None) -> list[Answer]:
    return [Answer(where, difference, VERDICTS[difference.side], paper)] if difference else []


def _qare_helps(groups: Sequence[Group]) -> Iterator[Answer]:
    for group in groups:
        for row, difference in compared(group, "qare"):
            yield from _answer(f"{word(row.base)}: {group.setting}", difference, _qare_gain(group, row.base))


def _beats_structural(groups: Sequence[Group]) -> Iterator[Answer]:
    """In matching; the structural difference is a set-level term without eigenvalues."""
    for group in (group for group in groups if group.kind == "matching"):
        yield from _beats(group, *({word(row.base): row for row, _ in compared(group, t)} for t in ("qare", "control")))


def _beats_zero(groups: Sequence[Group]) -> Iterator[Answer]:
    """In linear probes, where the released form with weight 0 still clamps."""
    for group in probed(groups):
        zeros = {word(row.base): row for row in group.rows if (row.term, row.loss, row.weight) == ("qare", "", 0.0)}
        yield from _beats(group, {word(row.base): row for row, _ in compared(group, "qare")}, zeros)


def _beats_frobenius(groups: Sequence[Group]) -> Iterator[Answer]:
    """In ablations, weight by weight; the product of Frobenius norms is QARe's bound without eigenvalues."""
    for group in filter(is_ablation, groups):
        by_loss = [[row for row in group.rows if row.loss == loss] for loss in CONTROLLED]
        yield from _beats(group, *({f"{word(r.base)}, weight {r.weight:g}": r for r in rows} for rows in by_loss))


def _beats(group: Group, ours: Mapping[str, Row], others: Mapping[str, Row]) -> Iterator[Answer]:
    for label in (label for label in ours if label in others):
        mine, theirs = (rows[label].values(group.measure[0]) for rows in (ours, others))
        yield from _answer(f"{label}: {group.setting}", paired_difference(mine, theirs))


def _sparse_helps(groups: Sequence[Group]) -> Iterator[Answer]:
    for group in probed(groups):
        sparse, dense = group.plain("sparseclr"), group.plain("simclr")
        difference = paired_difference(sparse.values("probe_accuracy"), dense.values("probe_accuracy"))
        yield from _answer(group.setting, difference, paper_gain(group, sparse, dense))


def _weights_are_safe(groups: Sequence[Group]) -> Iterator[Answer]:
    for sweep in (sweep for group in probed(groups) for sweep in sweeps(group)):
        yield from _answer(f"{sweep.label}: {sweep.group.setting}", sweep.against_plain(), "yes")


def _support_is_sparse(groups: Sequence[Group]) -> Iterator[Answer]:
    for group in probed(groups):
        looks = last_look(group.plain("sparseclr"))[1]
        support, negatives = (by_seed(looks, name) for name in ("support", "negatives"))
        if shares := [100 * value / negatives[seed] for seed, value in support.items() if negatives.get(seed)]:
            mean = mean_std(shares)
            yield Answer(group.setting, mean, "yes" if mean.mean < SPARSE else "no", "only a few")


def _false_negatives(groups: Sequence[Group]) -> Iterator[Answer]:
    for group in probed(groups):
        looks = [last_look(group.plain(base))[1] for base in ("sparseclr", "simclr")]
        sparse, dense = (by_seed(one, "same_class_weight") for one in looks)
        yield from _answer(group.setting, paired_difference(sparse, dense), "yes, on CIFAR-10")


def _gains_on_both(groups: Sequence[Group]) -> Iterator[Answer]:
    """Each set-level term that ran on both encoders, with the smaller of its two gains."""
    gains: dict[tuple[str, str, str, str], dict[str, PairedDifference]] = {}
    for group in (group for group in probed(groups) if group.encoder in BOTH):
        for row in group.rows:
            difference = group.difference(row, "probe_accuracy")
            if difference is not None and (group.is_main(row) or row.loss) and row.weight:
                key = (row.label, group.form, group.data, group.changed)
                gains.setdefault(key, {})[group.encoder] = difference
    for (label, form, data, changed), by_encoder in gains.items():
        if len(by_encoder) == len(BOTH):
            encoder, least = min(by_encoder.items(), key=lambda pair: pair[1].mean)
            ps = [one.p for one in by_encoder.values() if one.p is not None]
            least = replace(least, p=max(ps) if len(ps) == len(BOTH) else None)  # both have to be above zero
            where = f"{label}: {word(data)}{'*' if changed else ''}, {form} form, smaller gain with {word(encoder)}"
            yield Answer(where, least, _reached(by_encoder.values()))


def _reached(both: Collection[PairedDifference]) -> str:
    """Yes if all are a point or more with intervals above zero, no if an interval ends below a point."""
    ends = [one.high for one in both if one.high is not None]
    if len(ends) < len(both):
        return VERDICTS["unknown"]
    if all(one.mean >= GOAL and one.side == "above" for one in both):
        return VERDICTS["above"]
    return VERDICTS["below" if min(ends) < GOAL else "around"]


def _best_holds(groups: Sequence[Group]) -> Iterator[Answer]:
    """The best of each ablation, on the test images, with seeds that did not choose it."""
    for group, (row, chosen_by) in ((g, best) for g in filter(is_ablation, groups) for best in bests_of(g)):
        for encoder in BOTH:
            seen = {run.seed for run in group.runs} if encoder == group.encoder else set()
            setting = (group.form, group.data, encoder, "")
            same = [one for one in probed(groups) if (one.form, one.data, one.encoder, one.changed) == setting]
            rows = [(one, other) for one in same for other in one.rows if other.runs and _loss(other) == _loss(row)]
            difference = None
            for one, other in rows:
                fresh = {s: v for s, v in other.values("probe_accuracy").items() if s not in seen}
                difference = difference or paired_difference(fresh, one.plain(row.base).values("probe_accuracy"))
            where = f"{row.label}: {word(group.data)}, {word(encoder)}, {group.form} form"
            if difference is None and encoder == group.encoder:
                yield Answer(where, chosen_by, UNCONFIRMED)
            yield from _answer(where, difference)


def _loss(row: Row) -> tuple[object, object]:
    """The loss that its runs had, whatever the name of their recipe."""
    recipe = records.recipe_of(next(iter(row.runs.values())).record)
    return preset_of(recipe) or recipe.objective, weight_of(recipe)


@dataclass(frozen=True)
class Claim:
    """A claim in few words, what the paper says, and the function that answers it from runs."""

    words: str
    paper: str
    answer: Callable[[Sequence[Group]], Iterable[Answer]]

    def answers(self, groups: Sequence[Group]) -> list[Answer]:
        """One for each setting."""
        return list(self.answer(groups))


CLAIMS = {
    "helps": Claim("QARe helps", "yes", _qare_helps),
    "beats-structural": Claim("QARe beats the structural difference", "-", _beats_structural),
    "beats-zero": Claim("QARe beats its own form with weight 0", "-", _beats_zero),
    "beats-frobenius": Claim("QARe beats the Frobenius norms", "-", _beats_frobenius),
    "sparse-helps": Claim("SparseCLR beats SimCLR", "yes, but not ResNet-32 on CIFAR-10", _sparse_helps),
    "safe-weights": Claim(f"Weights from {SAFE} help on average", "yes", _weights_are_safe),
    "sparse-support": Claim("SparseCLR's support is sparse", "only a few", _support_is_sparse),
    "false-negatives": Claim("SparseCLR weighs false negatives more", "yes, on CIFAR-10", _false_negatives),
    "both-encoders": Claim("A set-level term gains a point on both encoders", "-", _gains_on_both),
    "best-holds": Claim("The ablation's best holds on fresh seeds and test images", "-", _best_holds),
}


def claims(groups: Sequence[Group]) -> Table:
    """A row for each claim: the verdicts, and the lowest and highest number among the settings with a yes or a no."""
    rows: list[list[Cell]] = []
    for claim in CLAIMS.values():
        answers = claim.answers(groups)
        decided = [answer for answer in answers if answer.verdict in DECIDED]
        ours = sorted((answer.ours for answer in decided or answers), key=lambda one: one.mean)
        ends = (ours[0] if ours else None, ours[-1] if len(ours) > 1 else None)
        rows.append([claim.words, counted(answers), *ends, claim.paper])
    columns = ("claim", "verdict", "lowest", "highest", "paper")
    return Table("claims", columns, rows, "The paper's claims, and ours", NOTE, wrap=True)


def by_claim(groups: Sequence[Group], missing: Mapping[str, str] | None = None) -> list[Table]:
    """The same, setting by setting: a table for each claim. ``missing`` says by claim which settings are not run."""
    columns, tables = ("where", "verdict", "ours", "paper"), []
    for key, claim in CLAIMS.items():
        answers = claim.answers(groups)
        words = zip(answers, verdicts(answers), strict=True)
        rows: list[list[Cell]] = [[one.where, verdict, one.ours, one.paper] for one, verdict in words]
        tables.append(Table(key, columns, rows, claim.words, (missing or {}).get(key, ""), wrap=True))
    return tables


def settings(tables: Sequence[Table]) -> Table:
    """The tables of ``by_claim`` in one, for a file."""
    rows = [[table.caption, *row] for table in tables for row in table.rows]
    columns = ("claim", "where", "verdict", "ours", "paper")
    return Table("settings", columns, rows, "The claims, setting by setting", DETAILS, wrap=True)


def lead(groups: Sequence[Group]) -> str:
    """Whether QARe helps, in a sentence, and how many runs say so."""
    runs, words = sum(len(group.runs) for group in groups), counted(CLAIMS["helps"].answers(groups))
    return f"Does QARe help? {words[0].upper()}{words[1:]}. ({runs:,} {'run' if runs == 1 else 'runs'}.)"


def counted(answers: Sequence[Answer]) -> str:
    """How many settings have which verdict, and how many significant ones survive Holm's correction."""
    if len(answers) < 2:
        return answers[0].verdict if answers else NO_RUNS
    survivors = surviving(answers)
    parts: list[str] = []
    several = sum(answer.p is not None for answer in answers) > 1
    for verdict in (*VERDICTS.values(), UNCONFIRMED):
        if mine := [answer for answer in answers if answer.verdict == verdict]:
            words = f"{verdict} in {len(mine)}" + ("" if parts else f" of {len(answers)} settings")
            if several and all(answer.significant for answer in mine):
                words += f" ({sum(answer.verdict == verdict for answer in survivors)} after Holm's correction)"
            parts.append(words)
    return ", ".join(parts)


def pictured(groups: Sequence[Group]) -> list[Interval]:
    """What QARe adds to each loss, setting by setting, for a picture; the paper's gain beside ours."""
    rows = []
    for group in groups:
        for row, ours in compared(group, "qare"):
            bounds = None if ours.low is None or ours.high is None else (ours.low, ours.high)
            paper = _qare_gain(group, row.base)
            other = float(paper) if paper else None
            rows.append(Interval(word(row.base), shown(ours), ours.mean, bounds, other, group.setting))
    return rows
