"""Lines over two axes, and intervals about zero, as SVG of our own: it follows the reader's light or dark theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape
from itertools import pairwise
from statistics import median
from typing import NamedTuple

Points = Sequence[tuple[float, float]]
Bands = Mapping[str, Sequence[tuple[float, float, float]]]  # by a line's name: (x, low, high)

# Units of a chart's drawing, which is then as wide as the reader's screen allows. A letter is at most about 8 wide.
WIDTH, HEIGHT, TOP, RIGHT, BOTTOM, LETTER = 400.0, 240.0, 24.0, 20.0, 38.0, 8.0
BUCKETS = 80  # of a thinned line, each with up to three points: more cannot be told apart on that width
HUGE, TINY = 1e300, 1e-290  # beyond, differences and powers of ten leave float64's range
LEAST = 1e-100  # on a logarithmic axis, and its inverse the greatest
FLAT = 1e-9  # a range below this share of its values is rounding, drawn as constant
COLOURS = 8  # colours and dashes repeat after 8 and 5 lines, together after 40
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4")
MARKS = 7  # powers of ten at most, on a logarithmic axis
WIDEST = 4.0  # times the median: wider intervals are cut, or the others could not be told apart


class Key(NamedTuple):
    """What a legend says of a line: its look, its last value, and how many of its values cannot be drawn."""

    name: str
    look: str
    dot: str  # the class of its dot, where dots are all that there is of it
    last: str
    lost: str


class Lines(NamedTuple):
    """What an ``svg`` of lines over two axes holds, and what its legend says. ``furthest`` is the last x."""

    inside: str
    keys: list[Key]
    furthest: str


def chart(
    title: str,
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    note: str = "",
    log: str = "",
    bands: Bands | None = None,
) -> str:
    """HTML of lines of (x, y) by name; what cannot be drawn is a gap. ``x`` and ``y`` say what the axes measure.

    ``log`` names the logarithmic axes: "", "x", "y" or "xy"; what is not above zero cannot be drawn on them. ``bands``
    are shaded behind the lines of their names.
    """
    drawn = lines(series, x=x, y=y, log=log, bands=bands)
    if drawn is None:
        return f"<figure>{caption(title)}<p>No values.</p>{small(note)}</figure>"
    legend = "".join(f"<li>{swatch(key)}{escape(key.name)} <b>{key.last}</b>{key.lost}</li>" for key in drawn.keys)
    says = "; ".join(f"{key.name}: {key.last}{key.lost}" for key in drawn.keys)
    label = escape(f"{title}. {y} by {x}, last values: {says}")
    return (
        f'<figure class="chart">{caption(title)}'
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{label}">{drawn.inside}</svg>'
        f'<div class="soft">{escape(x)} <output>{drawn.furthest}</output></div>'
        f'<ul class="legend">{legend}</ul>{small(note)}</figure>'
    )


def swatch(key: Key) -> str:
    """A line's look, beside its name in a legend."""
    drawn = f'<circle class="{key.dot}" cx="15" cy="5" r="4"/>' if key.dot else f'<path {key.look} d="M0 5H30"/>'
    return f'<svg viewBox="0 0 30 10" aria-hidden="true">{drawn}</svg>'


def lines(
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    log: str = "",
    bands: Bands | None = None,
    hollow: Collection[tuple[str, float]] | None = None,
    height: float = HEIGHT,
) -> Lines | None:
    """The drawing of a ``chart``, ``WIDTH`` wide; None where no value can be drawn.

    With ``hollow`` every point has a dot: a hollow one where the line's name and the point's x are in it.
    """
    if log not in ("", "x", "y", "xy"):
        raise ValueError(f"expected log to be '', 'x', 'y' or 'xy', got {log!r}")

    def drawable(point: tuple[float, float] | None) -> bool:
        return (
            point is not None
            and all(abs(value) < HUGE for value in point)
            and all(LEAST < value < 1 / LEAST for value, axis in zip(point, "xy", strict=True) if axis in log)
        )

    kept = {name: thinned(points, drawable) for name, points in series.items()}
    finite = [point for points in kept.values() for point in points if drawable(point)]
    if not finite:
        return None
    shades: dict[str, list[tuple[float, float, float]]] = {}
    for name, rows in (bands or {}).items():
        if name in series:
            shades[name] = [row for row in rows if drawable(row[:2]) and drawable((row[0], row[2]))]
    edges = [edge for band in shades.values() for _, low, high in band for edge in (low, high)]
    x_ticks, x_low, x_high = (_log_axis if "x" in log else _axis)([point[0] for point in finite], margin=0.0)
    y_ticks, y_low, y_high = (_log_axis if "y" in log else _axis)([*(p[1] for p in finite), *edges], margin=0.05)
    left, right, bottom = 8 + LETTER * max(map(len, y_ticks)), WIDTH - RIGHT, height - BOTTOM

    def across(value: float) -> str:
        return f"{left + _share(value, x_low, x_high, 'x' in log) * (right - left):.1f}"

    def down(value: float, more: float = 0.0) -> str:
        return f"{bottom - _share(value, y_low, y_high, 'y' in log) * (bottom - TOP) + more:.1f}"

    if "x" in log and (own := _own_marks([point[0] for point in finite], across)):
        x_ticks = own
    grid = "".join(f"M{across(v)} {TOP:g}V{bottom:g}" for v in x_ticks.values())
    grid += "".join(f"M{left:g} {down(v)}H{right:g}" for v in y_ticks.values())
    texts = [_text(across(v), f"{bottom + 16:g}", "middle", label) for label, v in x_ticks.items()]
    texts += [_text(f"{left - 5:g}", down(v, 4), "end", label) for label, v in y_ticks.items()]
    texts += [_text(f"{right:g}", f"{height - 5:g}", "end", x), _text("2", "13", "start", y)]
    behind, paths, keys = [], [], []
    furthest = f"{max(point[0] for point in finite):.9g}"
    for i, (name, points) in enumerate(kept.items()):
        colour, dash = f"c{i % COLOURS}", DASHES[i % len(DASHES)]
        look = f'class="line {colour}"' + (f' stroke-dasharray="{dash}"' if dash else "")
        if band := shades.get(name, []):
            there = [f"{across(at)} {down(high)}" for at, _, high in band]
            back = [f"{across(at)} {down(low)}" for at, low, _ in reversed(band)]
            behind.append(f'<path class="band {colour}" d="M{"L".join([*there, *back])}Z"/>')
        path, dots, values = "", "", []
        for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
            if drawable(point):
                place = across(point[0]), down(point[1])
                path += ("L" if drawable(before) else "M") + " ".join(place)
                values.append(f"{point[0]:.9g},{point[1]:.5g}")
                alone = not drawable(before) and not drawable(after)  # between gaps
                if alone or hollow is not None:
                    ring = "ring " if (name, point[0]) in (hollow or ()) else ""
                    dots += f'<circle class="{ring}{colour}" cx="{place[0]}" cy="{place[1]}" r="3"/>'
        at, last = values[-1].split(",") if values else ("", "no values")
        last += f" (at {at})" if at and at != furthest else ""
        gaps = sum(not drawable((float(u), float(v))) for u, v in series[name])
        lost = f" ({gaps} not {'above zero' if log else 'finite'})" if gaps else ""
        paths.append(f'<path {look} d="{path}" data-v="{" ".join(values)}"><title>{escape(name)}</title></path>{dots}')
        keys.append(Key(name, look, colour if dots and "L" not in path else "", last, lost))
    inside = (
        f'<path class="grid" d="{grid}"/>{"".join(texts)}\n'
        f'<path class="cursor" data-span="{TOP:g}V{bottom:g}" d=""/>' + "\n".join([*behind, *paths])
    )
    return Lines(inside, keys, furthest)


class Interval(NamedTuple):
    """A mean with its interval, if it has one, and a number of others to compare with, if there is one."""

    name: str
    words: str  # all of it
    mean: float
    bounds: tuple[float, float] | None
    other: float | None = None
    group: str = ""  # a heading above the first row of each


def intervals(title: str, rows: Sequence[Interval], *, other: str, note: str = "") -> str:
    """HTML of means and their intervals about zero, one below the other; ``other`` says whose the hollow marks are.

    Very wide intervals do not count for the axis: what lies beyond has an arrow there. Bounds that are not finite are
    left out.
    """
    rows, bars, marks = interval_bars(rows)
    if not rows:
        return f"<figure>{caption(title)}<p>No values.</p>{small(note)}</figure>"
    lines: list[str] = []
    for before, row, drawn in zip([None, *rows], rows, bars, strict=False):
        if row.group and (before is None or row.group != before.group):
            lines.append(f'<tr class="group"><th scope="rowgroup" colspan="4">{escape(row.group)}</th></tr>')
        beside = "" if row.other is None else f"{other} {row.other:+.2f}"
        lines.append(
            f'<tr><th scope="row">{escape(row.name)}</th><td class="bar"><svg aria-hidden="true">{drawn}</svg>'
            f'</td><td class="n">{escape(row.words)}</td><td class="n soft">{escape(beside)}</td></tr>'
        )
    foot = f'<tr><td></td><td class="bar"><svg aria-hidden="true">{marks}</svg></td><td></td><td></td></tr>'
    return (
        f'<figure>{caption(title)}<table class="intervals"><thead>{foot}</thead><tbody>\n'
        + "\n".join(lines)
        + f"\n</tbody><tfoot>{foot}</tfoot></table>{small(note)}</figure>"
    )


def interval_bars(rows: Sequence[Interval]) -> tuple[list[Interval], list[str], str]:
    """The rows that can be drawn, what to draw of each within an ``svg`` of any size, and the marks below them."""
    rows = [row if _finite(row.bounds) else row._replace(bounds=None) for row in rows if abs(row.mean) < HUGE]
    if not rows:
        return [], [], ""
    widths = [row.bounds[1] - row.bounds[0] for row in rows if row.bounds]
    most = WIDEST * median(widths) if widths else math.inf
    narrow = [row for row in rows if row.bounds is None or row.bounds[1] - row.bounds[0] <= most]
    edges = [0.0, *(row.other for row in rows if row.other is not None)]
    edges += [value for row in narrow for value in (row.mean, *(row.bounds or ()))]
    ticks, first, last = _axis(edges, margin=0.05)

    def across(value: float) -> str:
        return f"{100 * min(1.0, max(0.0, _share(value, first, last, False))):.2f}%"

    grid = ""
    for value in ticks.values():
        kind, x = "zero" if value == 0 else "grid", across(value)
        grid += f'<line class="{kind}" x1="{x}" x2="{x}" y1="0" y2="100%"/>'
    bars: list[str] = []
    for row in rows:
        low, high = row.bounds or (row.mean, row.mean)
        sure = row.bounds and (low > 0 or high < 0)
        colour = ("c0" if row.mean > 0 else "c1") if sure else "c6"
        drawn = f'<line class="line {colour}" x1="{across(low)}" x2="{across(high)}" y1="50%" y2="50%"/>'
        if first <= row.mean <= last:
            drawn += f'<circle class="{colour}" cx="{across(row.mean)}" cy="50%" r="4.5"/>'
        drawn += _arrow("0", "\u25c2") if low < first else ""
        drawn += _arrow("100%", "\u25b8") if high > last else ""
        if row.other is not None:
            drawn += f'<circle class="hollow" cx="{across(row.other)}" cy="50%" r="5"/>'
        bars.append(grid + drawn)
    return rows, bars, "".join(_text(across(value), "14", "middle", label) for label, value in ticks.items())


def _arrow(x: str, sign: str) -> str:
    return f'<text x="{x}" y="50%" dy=".36em" text-anchor="middle">{sign}</text>'


def _finite(point: tuple[float, float] | None) -> bool:
    return point is not None and all(abs(value) < HUGE for value in point)


def thinned(points: Points, drawable: Callable[[tuple[float, float]], bool] = _finite) -> list[tuple[float, float]]:
    """At most about 3 * ``BUCKETS`` of the points, as floats: each stretch keeps its least, its greatest and a gap."""
    found = [(float(x), float(y)) for x, y in points]
    if len(found) <= 3 * BUCKETS:
        return found
    keep = {0, len(found) - 1}
    for bucket in range(BUCKETS):
        places = range(bucket * len(found) // BUCKETS, (bucket + 1) * len(found) // BUCKETS)
        finite = [i for i in places if drawable(found[i])]
        if finite:
            keep |= {min(finite, key=lambda i: found[i][1]), max(finite, key=lambda i: found[i][1])}
        if len(finite) < len(places):
            keep.add(next(i for i in places if not drawable(found[i])))
    return [found[i] for i in sorted(keep)]


def _axis(values: Sequence[float], *, margin: float) -> tuple[dict[str, float], float, float]:
    """Round numbers to mark, by their text, and both ends of the axis, a little beyond the values."""
    low, high = min(values), max(values)
    size = max(abs(low), abs(high))
    if high - low <= max(FLAT * size, TINY):
        pad = 0.1 * size if size > TINY else 1.0
    else:
        pad = margin * (high - low)
    low, high = low - pad, high + pad
    least = (high - low) / 5
    decade = 10.0 ** math.floor(math.log10(least))
    step = next(m * decade for m in (1, 2, 5, 10) if m * decade >= least)
    if all(value.is_integer() for value in values):
        step = max(step, 1.0)
    power = math.floor(math.log10(step) + FLAT)
    form = f".{max(0, -power)}f" if step >= 1e-4 and size < 1e6 else f".{math.floor(math.log10(size)) - power + 1}g"
    marks = [i * step for i in range(math.ceil(low / step - FLAT), math.floor(high / step + FLAT) + 1)]
    return {f"{value:{form}}": value for value in marks}, low, high


def _log_axis(values: Sequence[float], *, margin: float) -> tuple[dict[str, float], float, float]:
    """The same for a logarithmic axis: powers of ten; with 2 and 5 times them if these are few; else as ``_axis``."""
    low, high = min(values), max(values)
    if high <= low * (1 + FLAT):
        low, high = low / 2, high * 2
    stretch = (high / low) ** margin
    low, high = low / stretch, high * stretch
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, last + 1)
    every = math.ceil(len(powers) / (MARKS + 1))  # one in so many powers: few enough marks whatever the range
    for factors in ((1,), (1, 2, 5)):
        marks = [m * 10.0**p for p in powers if p % every == 0 for m in factors]
        marks = [mark for mark in marks if low * (1 - FLAT) <= mark <= high * (1 + FLAT)]
        if len(marks) >= 3:
            return {f"{mark:g}": mark for mark in marks}, low, high
    linear = {label: mark for label, mark in _axis(values, margin=0.0)[0].items() if low <= mark <= high}
    return linear or {f"{mark:g}": mark for mark in marks}, low, high


def _own_marks(values: Sequence[float], across: Callable[[float], str]) -> dict[str, float]:
    """The values themselves as marks, such as sizes of batches, if there is room for their numbers."""
    marks = {f"{value:g}": value for value in sorted(set(values))}
    ends = [(float(across(v)), LETTER * len(label) / 2) for label, v in marks.items()]
    roomy = all(p + a + LETTER <= q - b for (p, a), (q, b) in pairwise(ends))
    return marks if roomy and len(marks) > 1 else {}


def _share(value: float, low: float, high: float, log: bool) -> float:
    return math.log(value / low) / math.log(high / low) if log else (value - low) / (high - low)


def _text(x: str, y: str, anchor: str, words: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(words)}</text>'


def caption(title: str) -> str:
    """A figure's title."""
    return f"<figcaption><strong>{escape(title)}</strong></figcaption>"


def small(words: str) -> str:
    """A note in small print; nothing for no words."""
    return f'<p class="soft">{escape(words)}</p>' if words else ""
