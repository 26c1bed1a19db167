"""What the study of sets says, for the page of sets: a picture, the answers in short, one table for each question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from paragraphs import markdown
from sets_runs import (
    DATA,
    HARD,
    ONE,
    QUADRATIC,
    SAME,
    SOFT,
    STAGES,
    Row,
    Study,
    Way,
    Ways,
    from_to,
    gain,
    machines,
    name,
    study,
    values,
)
from setwise.records.statistics import PairedDifference, mean_std, paired_difference
from setwise.report.picture import Panel, line_picture
from setwise.report.tables import Cell, shown

ENOUGH = 4  # sizes of sets that make a line
PICTURE = "docs/sets-by-size.svg"
PANELS = ("en-de-few", "en-fr-few", "halves-few")
HALVES = ("halves-few", "halves")
LITTLE = 1.0  # a point of recall
Compared = tuple[Way, Way]


class Question(NamedTuple):
    """A table: which rows it has, and which ways it compares."""

    title: str
    topic: str
    holds: Callable[[Row, Ways], bool]
    compared: tuple[Compared, ...]


def _plain(row: Row) -> bool:
    return not (row.scene or row.missing or row.wrong)


def _priced(way: Way) -> Compared:
    return (way[0], True), way


TRUTHS: tuple[Compared, ...] = ((HARD, SAME), (ONE, SAME))
LOSSES: tuple[Compared, ...] = tuple(
    ((loss, False), SAME) for loss in ("assignment-entropy", "assignment-sparse", "sparse")
)
QUESTIONS = {
    "size": Question(
        "How large may the sets be?",
        "Larger sets",
        lambda row, ways: _plain(row) and row.data not in HALVES,
        (*TRUTHS, (SOFT, SAME), (SOFT, HARD)),
    ),
    "smoothing": Question(
        "Do losses with other maxima do better?",
        "Other maxima",
        lambda row, ways: _plain(row) and not {way for way, _ in LOSSES}.isdisjoint(ways),
        LOSSES,
    ),
    "wrong": Question(
        "What if some sets are wrong?",
        "Wrong sets",
        lambda row, ways: row.wrong > 0,
        (*TRUTHS, (SOFT, SAME), (SOFT, HARD)),
    ),
    "missing": Question(
        "What if some items have no partner?",
        "Items without a partner",
        lambda row, ways: row.missing > 0,
        (*TRUTHS, (SOFT, SAME), _priced(SOFT)),
    ),
    "halves": Question(
        "Is it so for images?",
        "Halves of images",
        lambda row, ways: _plain(row) and row.data in HALVES,
        (*TRUTHS, (SOFT, SAME), (SOFT, HARD)),
    ),
    "quadratic": Question(
        "Does structure help?",
        "Structure",
        lambda row, ways: bool(row.scene) or QUADRATIC in ways,
        (*TRUTHS, (QUADRATIC, SAME), (QUADRATIC, ONE)),
    ),
}


class Answer(NamedTuple):
    """A row of a question, from the runs of one stage."""

    row: Row
    stage: str
    ways: Ways

    @property
    def parts(self) -> list[str]:
        """What it is, for people."""
        return [*self.row.parts, self.stage]


def answers(found: Study, question: Question) -> list[Answer]:
    """Its rows, by data and size. A row that has tuned runs is not there with untuned ones."""
    chosen: dict[Row, Answer] = {}
    for stage in STAGES:
        for row, ways in found.stages[stage].items():
            if values(ways, SAME) and question.holds(row, ways):
                chosen.setdefault(row, Answer(row, stage, ways))
    return sorted(chosen.values(), key=lambda one: one.row.place)


def what_sets_say(path: Path) -> str:
    """The picture, the answers in short, and the tables."""
    found = study(path)
    tables = [_table(found, question) for question in QUESTIONS.values()]
    if not any(tables):
        return "Not run yet: `python benchmarks/sets_study.py` makes the runs."
    picture = f"![Recall@1 by the size of the sets, one line for each way]({PICTURE})" if picture_of_sets(path) else ""
    return "\n\n".join(filter(None, [picture, sets_in_short(path), *tables]))


def _table(found: Study, question: Question) -> str:
    """What the question compares, where there are runs; what all rows share is said above it."""
    rows = answers(found, question)
    gains = [[gain(one.ways, a, b) for a, b in question.compared] for one in rows]
    used = [i for i in range(len(question.compared)) if any(cells[i] for cells in gains)]
    if not used:
        return ""
    shared = [part for part in rows[0].parts if all(part in one.parts for one in rows)] if len(rows) > 1 else []
    table: list[list[Cell]] = [
        [
            ", ".join(part for part in one.parts if part not in shared) or "as usual",
            mean_std([*values(one.ways, SAME).values()]),
            *(cells[i] for i in used),
        ]
        for one, cells in zip(rows, gains, strict=True)
    ]
    seeds = [len(values(one.ways, SAME)) for one in rows]
    seeds += [cell.n for cells in gains for cell in cells if cell is not None]
    ways = {way for i in used for way in question.compared[i]}
    trials = [found.tries(one.row, way) for one in rows if one.stage == "tuned" for way in ways if one.ways.get(way)]
    runs = (run for one in rows for way in ways for run in one.ways.get(way, []))
    about = [part for part in shared if part != "tuned"] + [f"{from_to(seeds)} seeds"]
    about += [f"tuned in {from_to(trials)} trials"] if trials else []
    columns = ["recall@1, %", name(SAME), *(_adds(*question.compared[i]) for i in used)]
    return f"### {question.title}\n\n{', '.join(about)} ({machines(runs)}):\n\n{markdown(columns, table)}"


def _adds(way: Way, other: Way) -> str:
    """The title of a column."""
    if way == (other[0], True):
        return f"a price adds to {name(other)}"
    return f"{name(way)} adds" if other == SAME else f"{name(way)} − {name(other)}"


def sets_in_short(path: Path) -> str:
    """A sentence for each question, with its largest number."""
    return "\n".join(f"- {line}" for line in _in_short(study(path)))


def cost_of_sets(path: Path) -> str:
    """What it costs not to know the pairs, a sentence for each data set."""
    found = study(path)
    return "\n".join(f"- {line}" for line in (_cost(found, data) for data in DATA) if line)


def _in_short(found: Study) -> Iterator[str]:
    yield from filter(None, (_cost(found, data) for data in DATA))
    for key, question in QUESTIONS.items():
        if key not in ("smoothing", "quadratic"):
            way = SOFT if _most(found, key, [(SOFT, SAME)]) else ONE
            yield from _at_most(f"{question.topic}: {name(way)} adds", _most(found, key, [(way, SAME)]))
    yield from _at_most(f"Doubt: {name(SOFT)} adds to {name(HARD)}", _most(found, "size", [(SOFT, HARD)]))
    prices = [_priced(SAME), _priced(ONE), _priced(SOFT)]
    yield from _at_most("A price in training adds", _most(found, "missing", prices))
    structure = _most(found, "quadratic", [(QUADRATIC, ONE)])
    yield from _at_most(f"Structure: {name(QUADRATIC)} adds to {name(ONE)}", structure)
    if cold := _most(found, "quadratic", [*TRUTHS, (QUADRATIC, SAME)], cold=True):
        yield f"From the first step on, the best of the other truths differs from {name(SAME)} by {shown(cold[0])}."


Most = tuple[PairedDifference, Answer]


def _most(found: Study, key: str, compared: list[Compared], *, cold: bool = False) -> Most | None:
    """The largest difference of a question, and where it is; ``cold`` is where truths begin at the first step."""
    rows = [one for one in answers(found, QUESTIONS[key]) if (one.row.scene == "cold") == cold]
    gains = [(gain(one.ways, a, b), one) for one in rows for a, b in compared]
    return max(((most, one) for most, one in gains if most), key=lambda pair: pair[0].mean, default=None)


def _at_most(words: str, best: Most | None) -> Iterator[str]:
    """The words end with "adds"; a best that is not above zero is called what it is."""
    if best:
        most = "at most" if best[0].side == "above" else "nothing for certain, at best"
        yield f"{words} {most} {shown(best[0])}, for {', '.join(best[1].parts)}."


def _cost(found: Study, data: str) -> str:
    """What it costs not to know the pairs: sets of one are pairs. One stage for all sizes: tuned, if it has enough."""
    by_stage = {
        stage: {row.group: values(ways, SAME) for row, ways in rows.items() if _plain(row) and row.data == data}
        for stage, rows in found.stages.items()
    }
    stage = max(STAGES, key=lambda stage: min(ENOUGH, len(by_stage[stage])) if by_stage[stage].get(1) else 0)
    pairs = by_stage[stage].pop(1, {})
    costs = {group: paired_difference(pairs, some) for group, some in sorted(by_stage[stage].items())}
    known = {group: cost for group, cost in costs.items() if cost is not None}
    if not known:
        return ""
    large = next((group for group, cost in known.items() if cost.mean >= LITTLE), None)
    small = [group for group in known if large is None or group < large]
    words = f"Sets in place of pairs, with {name(SAME)}, cost "
    words += f"less than a point of recall@1 up to sets of {small[-1]}" if small else ""
    words += ", and " if small and large else ""
    words += f"{shown(known[large]).replace('+', '')} points in sets of {large}" if large else ""
    return f"{words} ({DATA[data]}, {stage})."


def picture_of_sets(path: Path) -> str:
    """Recall by the size of the sets, a panel for each data set with at least three; "" where none has."""
    found, panels, ways = study(path), [], [SAME, HARD, ONE, SOFT]
    for data in PANELS:
        rows = [one for one in answers(found, Question("", "", lambda row, _: _plain(row), ())) if one.row.data == data]
        rows.sort(key=lambda one: one.row.group)
        points: dict[str, list[tuple[float, float]]] = {name(way).replace("`", ""): [] for way in ways}
        bands: dict[str, list[tuple[float, float, float]]] = {line: [] for line in points}
        for one in rows:
            for way, line in zip(ways, points, strict=True):
                mean = paired_difference(some := values(one.ways, way), dict.fromkeys(some, 0.0))
                if mean is not None:
                    points[line].append((one.row.group, mean.mean))
                    edges = [min(100.0, max(0.0, edge)) for edge in (mean.low, mean.high) if edge is not None]
                    bands[line] += [(one.row.group, edges[0], edges[1])] if edges else []
        hollow = [(line, float(one.row.group)) for line in points for one in rows if one.stage == "untuned"]
        stages = list(dict.fromkeys(one.stage for one in rows))
        title = f"{DATA[data]}, {stages[0] if len(stages) == 1 else 'hollow: untuned'}"
        panels += [Panel(title, points, bands, hollow)] if len(rows) > 2 else []
    title = "Recall@1 in %, by the size of the sets"
    return line_picture(title, panels, x="items in a set", log="x") if panels else ""
