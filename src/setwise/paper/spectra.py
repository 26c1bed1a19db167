"""What training does to the sets that a loss sees: the spectra that QARe acts on, and the negatives that have weight.

Records hold it for some epochs of contrastive runs, under "structure". What is missing there, is not finite or cannot
be is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from setwise.paper.collected import Group, Row, Run, epochs, mean_curve
from setwise.paper.numbers import word
from setwise.records.statistics import MeanStd, mean_std, number
from setwise.report.page import Page
from setwise.report.tables import Cell, Table, filled
from setwise.runs.structure import effective_rank

MOST = 1e9  # of anything counted or measured here; beyond are broken records, whose sums could leave float64's range
NOISE = 1e-6  # of the largest eigenvalue: below are zeros and their rounding, which a logarithmic axis cannot show
EXPLAINED = (
    "QARe acts on the eigenvalues of the similarities within each view, S_A and S_B: it rewards a small sum of "
    "products of the ordered eigenvalues of 1 + S_A and 1 + S_B, which flat spectra have. Where it succeeds, its line "
    "begins lower and ends higher than that of the loss alone, the largest eigenvalue falls and the effective rank "
    "rises (how many directions the set fills: the exponential of the entropy of the eigenvalues' shares). Where the "
    "lines lie on each other, the pairwise loss has done it already. All of it is of two views of a fixed batch of "
    "training images, one for each seed; means over the seeds."
)
LOOKS = (
    "What the loss looks at is of a fixed batch for each seed, at the last epoch measured: how many of a view's "
    "negatives have any weight in the pairwise loss's gradient; which share of that weight lies on images of the same "
    "class (false negatives), and which share of the negatives they are (what chance would give). The rank of the "
    "features, about their mean, is of what the probe sees. Mean ± sample standard deviation over n seeds."
)


@dataclass(frozen=True)
class Structure:
    """One look at a batch; None, or an empty spectrum, for what a record does not soundly hold. Shares in per cent."""

    spectrum: tuple[float, ...] = ()  # eigenvalues, the largest first, means of both views
    effective_rank: float | None = None  # likewise
    largest: float | None = None
    feature_rank: float | None = None  # of the encoder's features about their mean
    support: float | None = None
    negatives: float | None = None
    same_class_weight: float | None = None
    same_class: float | None = None

    @classmethod
    def read(cls, found: object) -> Structure:
        """From what a record holds, whatever that is."""
        if not isinstance(found, dict):
            return cls()
        views = found.get("eigenvalues")
        spectra = [spectrum for view in views if (spectrum := _spectrum(view))] if isinstance(views, list) else []
        ranks = [rank for spectrum in spectra if (rank := effective_rank(spectrum)) is not None]
        share, weight = (_between(found.get(name), 1.0) for name in ("same_class", "same_class_weight"))
        negatives = _between(found.get("negatives"), MOST)
        return cls(
            spectrum=tuple(fmean(values) for values in zip(*spectra, strict=False)),
            effective_rank=fmean(ranks) if ranks else None,
            largest=fmean(spectrum[0] for spectrum in spectra) if spectra else None,
            feature_rank=_between(found.get("feature_rank"), MOST),
            support=_between(found.get("support"), MOST if negatives is None else negatives),
            negatives=negatives,
            same_class_weight=None if weight is None else 100 * weight,
            same_class=None if share is None else 100 * share,
        )


def _spectrum(values: object) -> list[float]:
    """Eigenvalues in descending order; none of them where one is not a number: their sum would be wrong."""
    found = [number(value) for value in values] if isinstance(values, list) else []
    sound = [value for value in found if value is not None and abs(value) <= MOST]
    return sorted(sound, reverse=True) if len(sound) == len(found) else []


def _between(value: object, most: float) -> float | None:
    found = number(value)
    return found if found is not None and 0 <= found <= most else None


def structures(run: Run) -> dict[float, Structure]:
    """What a run's record holds of it, by epoch."""
    looked = [row for row in epochs(run) if "structure" in row]  # few of them
    read = [(number(row.get("epoch")), Structure.read(row["structure"])) for row in looked]
    return {epoch: found for epoch, found in read if epoch is not None and found != Structure()}


def last_look(row: Row) -> tuple[float, dict[int, Structure]] | None:
    """The last epoch at which all seeds that were looked at have been, and what was seen, by seed."""
    found = {seed: looks for seed, run in row.runs.items() if (looks := structures(run))}
    shared = set.intersection(*map(set, found.values())) if found else set()
    if not shared:
        return None
    return max(shared), {seed: looks[max(shared)] for seed, looks in found.items()}


def ranks(row: Row) -> list[MeanStd | None]:
    """Effective ranks at the last look, over the seeds: of the similarities, and of the features."""
    last = last_look(row)
    return [mean_look(last[1] if last else {}, measure) for measure in ("effective_rank", "feature_rank")]


def by_seed(looks: Mapping[int, Structure], measure: str) -> dict[int, float]:
    """One number of each seed that has it."""
    found = {seed: getattr(look, measure) for seed, look in looks.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def mean_look(looks: Mapping[int, Structure], measure: str) -> MeanStd | None:
    """One number's mean over the seeds that have it."""
    values = list(by_seed(looks, measure).values())
    return mean_std(values) if values else None


def looks_table(group: Group) -> Table | None:
    """What the loss looks at, a row for each row of the group that was looked at; None if there is none.

    Of a sweep over weights the recipe's only, of an ablation all.
    """
    columns = (
        *("loss", "n", "epoch", "negatives with weight", "of", "weight on the same class, %", "by chance, %"),
        *("effective rank", "largest eigenvalue", "effective rank of features"),
    )
    measures = ("support", "negatives", "same_class_weight", "same_class", "effective_rank", "largest", "feature_rank")
    rows = []
    for row in group.rows:
        last = last_look(row) if group.validation or group.is_main(row) else None
        if last is None:
            continue
        epoch, looks = last
        support, negatives, *others = (mean_look(looks, measure) for measure in measures)
        cells: list[Cell] = [row.label, len(looks), f"{epoch:g}", support]
        rows.append([*cells, None if negatives is None else f"{negatives.mean:g}", *others])
    caption = f"What the loss looks at: {group.setting}"
    return Table(f"structure-{group.name}", *filled(columns, rows), caption, LOOKS) if rows else None


def spectra_onto(page: Page, found: Sequence[Group]) -> None:
    """The section of the page: pictures of each loss with and without set-level terms, and tables; or nothing."""
    tables = [(group, table) for group in found if (table := looks_table(group))]
    if not tables:
        return
    page.heading("What set-level terms act on")
    page.text(EXPLAINED, LOOKS)
    for group, table in tables:
        for base in dict.fromkeys(row.base for row in group.rows):
            (_ranks if group.validation else _pictures)(page, group, base)
        replace(table, note="").onto(page)  # said above, once for all of them


def _pictures(page: Page, group: Group, base: str) -> None:
    """The spectrum at the last look, and how its two measures came there."""
    rows = [row for row in group.rows if row.base == base and group.is_main(row)]
    spectra = {}
    for row in rows:
        if (last := last_look(row)) is not None and (mean := mean_spectrum(last[1].values())):
            spectra[f"{row.label}, epoch {last[0]:g}"] = [
                (place, value) for place, value in enumerate(mean, start=1) if value > NOISE * mean[0]
            ]
    if spectra:
        title = f"{word(base)}, sorted eigenvalues"
        page.curves(title, spectra, x="place in the order", y="eigenvalue of S", note=group.title, log="y")
    for name, measure in (("effective rank", "effective_rank"), ("largest eigenvalue", "largest")):
        series = {}
        for row in rows:
            runs = [run for run in row.runs.values() if structures(run)]
            if points := mean_curve(runs, partial(_measure, measure)):
                series[row.label] = points
        if series:
            page.curves(f"{word(base)}, {name}", series, x="epoch", y=name, note=group.title, log="x")


def _ranks(page: Page, group: Group, base: str) -> None:
    """Accuracy against effective rank: whether a flatter spectrum is what helps. From the plain loss, by weight."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in (row for row in group.rows if row.base == base):
        last, mean = last_look(row), row.mean(group.measure[0])
        if last is not None and mean is not None and (ranks := by_seed(last[1], "effective_rank")):
            label = word(row.loss) if row.loss else word(base)
            series.setdefault(label, []).append((round(fmean(ranks.values()), 1), round(mean.mean, 2)))
    plain = series.pop(word(base), None)
    if series and plain:
        title = f"{word(base)}, accuracy against effective rank"
        lines = {label: [plain[0], *points] for label, points in series.items()}
        note = f"{group.title}. Each line begins at the loss alone and goes from weight to weight."
        page.curves(title, lines, x="effective rank", y="validation accuracy, %", note=note)


def _measure(name: str, epoch: dict[str, Any]) -> object:
    return getattr(Structure.read(epoch.get("structure")), name)


def mean_spectrum(looks: Iterable[Structure]) -> list[float]:
    """Mean over the seeds of the first eigenvalue, of the second and so on, as far as all have them."""
    spectra = [look.spectrum for look in looks if look.spectrum]
    return [fmean(values) for values in zip(*spectra, strict=False)]
