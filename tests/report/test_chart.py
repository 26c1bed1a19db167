"""Charts: values stand where the axes say, marks are round, what cannot be drawn is a gap; bands and intervals."""

import itertools
import math
import re
from xml.etree import ElementTree

import pytest

from setwise.report.chart import Interval, chart, intervals, lines, thinned


def drawn(series, **options):
    """The chart's tree and, for each line, its places [(x, y), ...] and values [(x, y), ...]."""
    tree = ElementTree.fromstring(chart("title", series, x="epoch", y="loss", **options))
    lines = []
    for path in tree.iter("path"):
        if "data-v" in path.attrib:
            places = [tuple(map(float, part.split())) for part in re.split("[ML]", path.get("d"))[1:]]
            values = [tuple(map(float, pair.split(","))) for pair in path.get("data-v").split()]
            lines.append((places, values))
    return tree, lines


def ticks(tree):
    """Marks of both axes as [(place, number)], from the words in the drawing and where they stand."""
    texts = [(text.attrib, text.text) for text in tree.iter("text") if text.text not in ("epoch", "loss")]
    across = [(float(a["x"]), float(text)) for a, text in texts if a["text-anchor"] == "middle"]
    down = [(float(a["y"]) - 4, float(text)) for a, text in texts if a["text-anchor"] == "end"]  # letters hang by 4
    return across, down


@pytest.mark.parametrize("log", ["", "x", "y", "xy"])
def test_values_are_drawn_where_the_axes_say(log):
    points = [(n, 0.01 * n**2) for n in (1, 2, 5, 10, 20, 50, 100, 200)]
    tree, [(places, values)] = drawn({"time": points}, log=log)

    def along(marks, place, logarithmic):
        (p, u), (q, v) = marks[0], marks[-1]
        share = (place - p) / (q - p)
        return u * (v / u) ** share if logarithmic else u + share * (v - u)

    across, down = ticks(tree)
    assert min(len(across), len(down)) >= 3
    for (x, y), (n, time), shown in zip(places, points, values, strict=True):
        assert along(across, x, "x" in log) == pytest.approx(n, rel=0.01, abs=0.2)
        assert along(down, y, "y" in log) == pytest.approx(time, rel=0.01, abs=0.0 if "y" in log else 2.0)
        assert shown == pytest.approx((n, time), rel=1e-4)
        assert 0 < x < 400
        assert 0 < y < 240
    assert places[-1][1] == min(y for _, y in places), "upwards is more"
    if "x" in log:
        assert [number for _, number in across] == [n for n, _ in points], "where there is room, the values themselves"


@pytest.mark.parametrize(
    ("low", "high"),
    [(1, 2), (1, 200), (0, 1000), (-3.7, 11.2), (0.1234, 0.1235), (1e-8, 3e-8), (1e6, 1e6 + 4), (-2e9, 5e9), (4, 5)],
)
def test_marks_are_round_and_all_different(low, high):
    tree, _ = drawn({"a": [(low, low), (high, high)]})
    for marks in ticks(tree):
        numbers = [number for _, number in marks]
        assert 2 <= len(numbers) <= 7
        steps = [after - before for before, after in itertools.pairwise(numbers)]
        assert min(steps) == pytest.approx(max(steps), rel=1e-6)
        assert min(map(abs, steps)) > 0
        mantissa = abs(steps[0]) / 10 ** math.floor(math.log10(abs(steps[0])) + 1e-9)
        assert round(mantissa, 5) in (1, 2, 5)
        assert all(low - 0.06 * (high - low) <= number <= high + 0.06 * (high - low) for number in numbers)
    if float(low).is_integer() and float(high).is_integer():
        assert all(number.is_integer() for _, number in ticks(tree)[0])


@pytest.mark.parametrize(
    ("points", "seen", "dots"),
    [
        ([], None, 0),
        ([(1, math.nan), (2, math.inf)], None, 0),
        ([(3, 7.5)], 1, 1),
        ([(1, 2.0), (2, 2.0), (3, 2.0)], 3, 0),
        ([(1, 0.0), (2, 0.0)], 2, 0),
        ([(1, 1.0), (2, 1.0 + 2e-16)], 2, 0),
        ([(1, 5e-324), (2, 0.0)], 2, 0),
        ([(1, 1e299), (2, -1e299)], 2, 0),
        ([(1, 1e308), (2, -1e308), (3, 1.0)], 1, 1),
        ([(1, 1.0), (2, 2.0), (3, math.nan), (4, 3.0), (5, -math.inf), (6, 4.0), (7, 5.0)], 5, 1),
    ],
)
def test_odd_series(points, seen, dots):
    tree, found = drawn({"odd": points})
    if seen is None:
        assert tree.find("p").text == "No values."
        return
    [(places, values)] = found
    assert len(places) == seen
    assert len(list(tree.find("svg").iter("circle"))) == dots
    (swatch,) = tree.find("ul/li/svg")
    assert swatch.tag == ("circle" if dots == seen else "path"), "the legend shows what is drawn"
    assert all(0 < x < 400 and 0 < y < 240 for x, y in places)
    assert all(ticks(tree))
    lost = len(points) - seen
    assert (f"({lost} not finite)" in "".join(tree.find("ul").itertext())) == (lost > 0)
    finite = [point for point in points if all(abs(value) < 1e300 for value in point)]
    assert values == [pytest.approx(point, rel=1e-4) for point in finite]


def test_a_gap_breaks_the_line_and_an_empty_series_keeps_its_colour():
    tree, _ = drawn({"gap": [(1, 1.0), (2, 2.0), (3, math.nan), (4, 1.0), (5, 2.0)], "none": [], "last": [(1, 1.0)]})
    paths = [(path.get("class"), path.get("d")) for path in tree.iter("path") if "data-v" in path.attrib]
    assert [kind for kind, _ in paths] == ["line c0", "line c1", "line c2"]
    assert re.sub(r"[^ML]", "", paths[0][1]) == "MLML"
    assert paths[1][1] == ""
    assert "no values" in [value.text for value in tree.iter("b")]


def test_dots_tell_points_apart():
    points = [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]
    found = lines({"a": points, "b": points}, x="", y="", hollow=[("a", 2.0)], height=100.0)
    circles = list(ElementTree.fromstring(f"<svg>{found.inside}</svg>").iter("circle"))
    assert [one.get("class") for one in circles] == ["c0", "ring c0", "c0", "c1", "c1", "c1"]
    assert all(0 < float(one.get("cy")) < 100 for one in circles)


def test_many_lines_look_different():
    tree, _ = drawn({str(i): [(1, i), (2, i)] for i in range(40)})
    looks = {(x.get("class"), x.get("stroke-dasharray")) for x in tree.iter("path") if "data-v" in x.attrib}
    assert len(looks) == 40


def test_long_lines_are_thinned_but_keep_their_peaks():
    line = [(epoch, math.sin(epoch) + epoch / 300) for epoch in range(1000)]
    line[503], line[777] = (503, 40.0), (777, math.nan)
    kept = thinned(line)
    assert len(kept) < 250
    assert (503, 40.0) in kept
    assert any(math.isnan(y) for _, y in kept)
    assert (kept[0], kept[-1]) == (line[0], line[-1])
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert thinned(line[:240]) == line[:240], "short lines are whole"
    assert len(chart("t", {f"line {i}": line for i in range(8)}, x="epoch", y="loss")) < 100_000


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (0.02, 30, [0.1, 1, 10]),
        (5, 250, [5, 10, 20, 50, 100, 200]),
        (360, 880, [400, 600, 800]),
        (3, 3, [3]),
        (1e-90, 1e90, [10.0**p for p in range(-75, 92, 25)]),
    ],
)
def test_marks_of_a_logarithmic_axis(low, high, marks):
    tree, _ = drawn({"a": [(1, low), (2, high)]}, log="y")
    places = ticks(tree)[1]
    assert [number for _, number in places] == pytest.approx(marks)
    assert all(20 < place < 210 for place, _ in places)


def test_what_a_logarithmic_axis_cannot_show():
    points = [(1, 1.0), (2, 0.0), (3, -1.0), (4, 10.0), (5, 100.0)]
    tree, [(places, values)] = drawn({"odd": points}, log="y")
    assert [value for _, value in values] == [1, 10, 100]
    assert "(2 not above zero)" in "".join(tree.find("ul").itertext())
    assert len(places) == 3
    assert drawn({"none": [(0, 1.0), (-1, 1.0)]}, log="x")[0].find("p").text == "No values."
    with pytest.raises(ValueError, match="expected log to be '', 'x', 'y' or 'xy', got 'z'"):
        drawn({"a": points}, log="z")


def test_a_band_lies_around_its_line_and_within_the_axes():
    series = {"a": [(0, 5.0), (1, 6.0), (2, 5.5)], "b": [(0, 5.2), (2, 5.2)]}
    tree, lines = drawn(series, bands={"a": [(0, 4.0, 6.0), (1, 5.0, 7.0), (2, math.nan, 7.0)], "gone": [(0, 0, 99)]})
    (band,) = [path.attrib for path in tree.iter("path") if path.get("class", "").startswith("band")]
    assert band["class"] == "band c0"
    corners = [tuple(map(float, part.split())) for part in re.split("[MLZ]", band["d"]) if part]
    assert len(corners) == 4, "two ends have both bounds"
    (first, second, _), _ = lines[0]
    (high_1, high_2, low_2, low_1) = corners
    assert (high_1[0], high_2[0]) == (low_1[0], low_2[0]) == (first[0], second[0])
    assert (high_1[1] + low_1[1]) / 2 == pytest.approx(first[1], abs=0.1)
    assert (high_2[1] + low_2[1]) / 2 == pytest.approx(second[1], abs=0.1)
    assert high_2[1] < low_2[1], "upwards is more"
    assert all(20 < y < 210 for _, y in corners)
    assert max(number for _, number in ticks(tree)[1]) >= 7, "the axis goes as far as the band, not to the lost one"


ROWS = [
    Interval("gains", "+1.00 (+0.50 to +1.50)", 1.0, (0.5, 1.5), 2.0),
    Interval("loses", "-1.00 (-1.50 to -0.50)", -1.0, (-1.5, -0.5)),
    Interval("<open>", "+0.50 (-0.50 to +1.50)", 0.5, (-0.5, 1.5)),
    Interval("wide", "-8.00 (-20.00 to +4.00)", -8.0, (-20.0, 4.0)),
    Interval("one seed", "+0.25 (one seed)", 0.25, None),
    Interval("equal", "+0.75 (equal in all seeds)", 0.75, (-math.inf, math.inf)),
]


def percent(element, name):
    return float(element.get(name).rstrip("%"))


def test_intervals_are_drawn_where_the_marks_say():
    tree = ElementTree.fromstring(intervals("title", ROWS, other="paper", note="note"))
    marks = [(percent(text, "x"), float(text.text)) for text in tree.find("table/tfoot").iter("text")]
    (x0, v0), (x1, v1) = marks[0], marks[-1]
    rows = tree.findall("table/tbody/tr")
    for row, line in zip(ROWS, rows, strict=True):
        assert [line.find("th").text, line.findall("td")[1].text] == [row.name, row.words]
        drawn = {tuple(e.get("class").split()): e for e in line.iter() if e.tag in ("line", "circle")}
        for kind, element in drawn.items():
            places = [percent(element, name) for name in ("cx", "x1", "x2") if name in element.attrib]
            values = [v0 + (x - x0) / (x1 - x0) * (v1 - v0) for x in places]
            if element.tag == "circle":
                assert values == pytest.approx([row.other if kind == ("hollow",) else row.mean], abs=0.01)
            elif "line" in kind and row.name in ("gains", "loses", "<open>"):
                assert values == pytest.approx(row.bounds, abs=0.01)
            elif kind == ("zero",):
                assert values == pytest.approx([0, 0], abs=0.01)
        assert ("zero",) in drawn
    colours = [next(e.get("class")[-2:] for e in line.iter("line") if "line" in e.get("class")) for line in rows]
    assert colours == ["c0", "c1", *["c6"] * 4], "in colour only where zero is excluded"
    arrows = ["".join(text.text for text in line.iter("text")) for line in rows]
    assert arrows == ["", "", "", "\u25c2\u25b8", "", ""]
    assert [len(line.findall(".//circle")) for line in rows] == [2, 1, 1, 0, 1, 1], "a mean beyond the axis has none"
    assert [line.findall("td")[2].text for line in rows] == ["paper +2.00", *[None] * 5]
    assert max(value for _, value in marks) < 4, "the wide one does not count"


def test_intervals_of_nothing_and_of_one():
    broken = Interval("a", "b", math.nan, (0.0, 1.0))
    assert "No values." in intervals("title", [broken], other="paper")
    alone = ElementTree.fromstring(intervals("title", [ROWS[3]], other="paper"))
    line = next(line for line in alone.iter("line") if "line" in line.get("class"))
    assert 0 < percent(line, "x1") < percent(line, "x2") < 100, "nothing is wide without others"
    one = ElementTree.fromstring(intervals("title", [Interval("a", "+0.00 (one seed)", 0.0, None)], other="paper"))
    assert percent(one.find(".//circle"), "cx") == pytest.approx(50)
