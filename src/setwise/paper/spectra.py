"""What training does to the sets that a loss sees: the spectra that QARe acts on, and the negatives that have weight.

Records hold it for some epochs of contrastive runs, under "structure".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from setwise.paper.collected import Group, Row
from setwise.paper.numbers import word
from setwise.records.run import mean_curve
from setwise.records.statistics import MeanStd, mean_std
from setwise.records.structure import Structure
from setwise.report.page import Page
from setwise.report.tables import Cell, Table, filled

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


def last_look(row: Row) -> tuple[float, dict[int, Structure]]:
    """The last epoch that every seed with looks reached, and each seed's values; none of them if there is no such."""
    looks = {seed: run.structures for seed, run in row.runs.items() if run.structures}
    shared = set.intersection(*map(set, looks.values())) if looks else set()
    epoch = max(shared, default=0.0)
    return epoch, {seed: mine[epoch] for seed, mine in looks.items()} if shared else {}


def ranks(row: Row) -> list[MeanStd | None]:
    """Effective ranks at the last look, over the seeds: of the similarities, and of the features."""
    looks = last_look(row)[1]
    return [mean_look(looks, measure) for measure in ("effective_rank", "feature_rank")]


def by_seed(looks: Mapping[int, Structure], measure: str) -> dict[int, float]:
    """One number of each seed that has it."""
    found = {seed: getattr(look, measure) for seed, look in looks.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def mean_look(looks: Mapping[int, Structure], measure: str) -> MeanStd | None:
    """One number's mean over the seeds that have it."""
    values = list(by_seed(looks, measure).values())
    return mean_std(values) if values else None


def looks_table(group: Group) -> Table | None:
    """What the loss looks at, for each row of the group with looks; None if there is none.

    Of a sweep only the recipe's own weight, of an ablation all.
    """
    columns = (
        *("loss", "n", "epoch", "negatives with weight", "of", "weight on the same class, %", "by chance, %"),
        *("effective rank", "largest eigenvalue", "effective rank of features"),
    )
    measures = ("support", "negatives", "same_class_weight", "same_class", "effective_rank", "largest", "feature_rank")
    rows = []
    for row in (row for row in group.rows if group.validation or group.is_main(row)):
        epoch, looks = last_look(row)
        if looks:
            support, negatives, *others = (mean_look(looks, measure) for measure in measures)
            cells: list[Cell] = [row.label, len(looks), f"{epoch:g}", support]
            rows.append([*cells, None if negatives is None else f"{negatives.mean:g}", *others])
    caption = f"What the loss looks at: {group.setting}"
    return Table(f"structure-{group.name}", *filled(columns, rows), caption, LOOKS, wrap=True) if rows else None


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
        epoch, looks = last_look(row)
        if mean := mean_spectrum(looks.values()):
            spectra[f"{row.label}, epoch {epoch:g}"] = [
                (place, value) for place, value in enumerate(mean, start=1) if value > NOISE * mean[0]
            ]
    if spectra:
        title = f"{word(base)}, sorted eigenvalues"
        page.curves(title, spectra, x="place in the order", y="eigenvalue of S", note=group.title, log="y")
    for name, measure in (("effective rank", "effective_rank"), ("largest eigenvalue", "largest")):
        series = {}
        for row in rows:
            runs = [run.structures for run in row.runs.values() if run.structures]
            values = [{epoch: getattr(one, measure) for epoch, one in looks.items()} for looks in runs]
            if points := mean_curve({x: y for x, y in one.items() if y is not None} for one in values):
                series[row.label] = points
        if series:
            page.curves(f"{word(base)}, {name}", series, x="epoch", y=name, note=group.title, log="x")


def _ranks(page: Page, group: Group, base: str) -> None:
    """Accuracy against effective rank: whether a flatter spectrum is what helps. From the plain loss, by weight."""
    series: dict[str, list[tuple[float, float]]] = {}
    for row in (row for row in group.rows if row.base == base):
        ranks, mean = by_seed(last_look(row)[1], "effective_rank"), row.mean(group.measure[0])
        if ranks and mean is not None:
            label = word(row.loss) if row.loss else word(base)
            series.setdefault(label, []).append((round(fmean(ranks.values()), 1), round(mean.mean, 2)))
    plain = series.pop(word(base), None)
    if series and plain:
        title = f"{word(base)}, accuracy against effective rank"
        lines = {label: [plain[0], *points] for label, points in series.items()}
        note = f"{group.title}. Each line begins at the loss alone and goes from weight to weight."
        page.curves(title, lines, x="effective rank", y="validation accuracy, %", note=note)


def mean_spectrum(looks: Iterable[Structure]) -> list[float]:
    """Mean over the seeds of the first eigenvalue, of the second and so on, as far as all have them."""
    spectra = [look.spectrum for look in looks if look.spectrum]
    return [fmean(values) for values in zip(*spectra, strict=False)]
