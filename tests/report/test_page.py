"""The HTML page: well-formed, closed to the outside, its numbers where they should be; in a real browser if any."""

import base64
import hashlib
import itertools
import math
import re

import pytest

from setwise.report import page as module
from setwise.report.chart import Interval
from setwise.report.page import Page

HOSTILE = "<script>alert(1)</script>\"'&<b onclick=x>"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAAD0lEQVR4nGP4z8DAwMAAAAYIAQFXk1RBAAAAAElFTkSuQmCC"
)


def full(words="words", png=PNG):
    """A page with everything on it."""
    page = Page(words, lead=words)
    page.heading(words)
    page.text(words, "β ≥ 1 · 集合")
    page.table([words, "accuracy"], [(words, 86.91), ("b", None), ("c", words)], caption=words, note=words)
    page.heading(words)
    page.curves(words, {words: [(1, 5.0), (2, 4.0)], "other": [(1, 2.0), (2, 3.0)]}, x=words, y=words, note=words)
    page.intervals(words, [Interval(words, words, 1.0, (0.5, 1.5), 2.0)], other=words, note=words)
    page.heading(words)
    page.picture(png, alt=words, caption=words)
    page.details(words, f"{words}\n  two lines")
    return page


def test_is_well_formed_and_says_what_it_is(tree_of):
    html = full().html()
    tree = tree_of(html)
    assert html.startswith("<!DOCTYPE html>")
    assert tree.all("html")[0][1]["lang"] == "en"
    assert tree.texts("title")[0] == "words"  # lines of the chart have titles too
    assert tree.all("meta", name="viewport")[0][1]["content"].startswith("width=device-width")
    ids = [a["id"] for _, a, _ in tree.elements if "id" in a]
    assert ids == ["words", "words-2", "words-3"]
    assert [a["href"] for _, a, _ in tree.all("a")] == [f"#{name}" for name in ids], "the sections, in their order"
    levels = [int(tag[1]) for tag, _, _ in tree.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert all(a.get("alt") for _, a, _ in tree.all("img"))
    for _, attributes, _ in tree.all("svg"):
        assert attributes.get("aria-hidden") == "true" or (attributes["role"] == "img" and attributes["aria-label"])
    assert all(a.get("scope") in ("row", "col") for _, a, _ in tree.all("th"))


def test_loads_nothing_and_allows_nothing_from_outside(tree_of):
    tree = tree_of(full().html())
    policy = tree.all("meta", **{"http-equiv": "Content-Security-Policy"})[0][1]["content"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (code,) = tree.texts(tag)
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'"
        assert not re.search(r"https?:|url\(|@import|fetch|import\(|innerHTML|eval", code)
    assert "unsafe" not in policy
    loading = {"src", "href", "srcset", "xlink:href", "action", "poster", "data", "background"}
    for tag, attributes, _ in tree.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form", "use")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        start = "#" if tag == "a" else "data:image/png;base64,"
        assert all(attributes[name].startswith(start) for name in loading & set(attributes))


def test_every_text_is_escaped_and_comes_back(tree_of):
    tree = tree_of(full(HOSTILE).html())
    assert len(tree.all("script")) == 1
    assert not tree.all("b", onclick="x")
    assert tree.texts("title") == [HOSTILE, HOSTILE, "other"]  # of the page and of the chart's lines
    assert tree.texts("h1") == [HOSTILE]
    assert tree.texts("h2") == tree.texts("a") == [HOSTILE] * 3
    assert tree.texts("p")[:3] == [HOSTILE, HOSTILE, "β ≥ 1 · 集合"]
    assert tree.texts("th", scope="col")[0] == tree.texts("th", scope="row")[0] == tree.texts("td")[2] == HOSTILE
    assert tree.texts("strong") == [HOSTILE] * 4
    assert tree.texts("p", **{"class": "soft"}) == [HOSTILE] * 3
    assert tree.texts("td", **{"class": "n soft"}) == [f"{HOSTILE} +2.00"]
    assert tree.texts("text").count(HOSTILE) == 2
    assert any(HOSTILE in text for text in tree.texts("li"))
    assert HOSTILE in tree.all("svg", role="img")[0][1]["aria-label"]
    assert tree.all("img")[0][1]["alt"] == HOSTILE
    assert tree.texts("summary") == [HOSTILE]
    assert tree.texts("pre") == [f"{HOSTILE}\n  two lines"]


def test_the_file_is_ascii_whatever_the_words(tree_of, tmp_path):
    path = tmp_path / "below" / "page.html"
    page = full("β 集合 \ud800")  # half of a surrogate pair, as a broken file name may have
    page.write(path)
    assert path.read_bytes().isascii()
    assert path.read_text() == page.html()
    assert "β 集合" in tree_of(path.read_text()).texts("h1")[0]
    assert (module.STYLE + module.SCRIPT).isascii()


def test_a_table_knows_its_numbers(tree_of):
    page = Page("t")
    rows = [("86.9 (86.0–87.4) %", "1,234 s", "4-conv", 0.123456), ("-1e-3", None, "2026-11-15", math.nan)]
    page.table(["a", "b", "c", "d"], rows, caption="c")
    tree = tree_of(page.html())
    cells = [(a.get("data-v"), a.get("class"), "".join(t)) for tag, a, t in tree.elements if tag in ("th", "td")][4:]
    assert cells == [
        ("86.9", "n", "86.9 (86.0–87.4) %"),
        ("1234", "n", "1,234 s"),
        (None, None, "4-conv"),
        ("0.1235", None, "0.1235"),
        ("-1e-3", "n", "-1e-3"),
        (None, "n", ""),
        (None, None, "2026-11-15"),
        (None, None, "nan"),
    ]
    page.table(["only", "heads"], [], caption="empty")
    assert "heads" in tree_of(page.html()).texts("th")
    with pytest.raises(ValueError, match=r"expected 2 cells in a row of 'short', got 1"):
        page.table(["a", "b"], [("one",)], caption="short")


def test_a_long_note_comes_below_its_table():
    for note, order in (("short", ["short", "<table"]), ("long " * 100, ["<table", "long"])):
        page = Page("t")
        page.table(["a"], [("b",)], caption="c", note=note)
        body = page.html().partition("<h1>")[2]
        assert [word for _, word in sorted((body.index(word), word) for word in order)] == order


def test_a_picture_is_in_the_file(tree_of):
    page = Page("t")
    page.picture(PNG, alt="two pixels", caption="c")
    (_, attributes, _) = tree_of(page.html()).all("img")[0]
    assert base64.b64decode(attributes["src"].split(",")[1]) == PNG
    assert (attributes["width"], attributes["height"]) == ("2", "1")
    with pytest.raises(ValueError, match="expected the bytes of a PNG file for 'photo'"):
        page.picture(b"\xff\xd8\xff\xe0 JPEG", alt="a", caption="photo")


def luminance(colour):
    colour = colour if len(colour) == 7 else "#" + "".join(2 * c for c in colour[1:])
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colours_can_be_read_on_both_backgrounds():
    light, dark = (
        dict(re.findall(r"--(\w+):(#\w+)", block)) for block in module.STYLE.split("@media (prefers-color-scheme:dark)")
    )
    for theme in (light, dark):
        assert set(theme) == set(light)
        for name, colour in theme.items():
            a, b = sorted((luminance(theme["page"]), luminance(colour)))
            contrast = (b + 0.05) / (a + 0.05)
            if re.fullmatch(r"c\d", name):
                assert contrast >= 3, (name, contrast)  # WCAG 1.4.11, graphics
            elif name in ("ink", "soft", "link"):
                assert contrast >= 4.5, (name, contrast)  # WCAG 1.4.3, text


ASK = """
const view = frame.contentWindow;
const heads = [...page.querySelectorAll("thead th")], names = () => [...page.querySelectorAll("tbody th")].map(
  cell => cell.textContent);
said.lines = [...page.querySelectorAll("td")].filter(cell => cell.getClientRects().length).map(
  cell => view.getComputedStyle(cell, "::before").content.slice(1, -1) + " " + cell.textContent);
said.sorts = [];
for (const i of [1, 1, 0, 2]) {
  heads[i].querySelector("button").click();
  said.sorts.push([names(), heads.map(head => head.getAttribute("aria-sort"))]);
}
said.focusable = heads.every(head => head.querySelector("button").tabIndex === 0);
said.table = page.querySelector(".scroll").scrollWidth;
said.box = page.querySelector(".scroll").clientWidth;
said.background = view.getComputedStyle(page.body).backgroundColor;
said.line = view.getComputedStyle(page.querySelector("path.c0")).stroke;
const svg = page.querySelector("svg[role=img]"), box = svg.getBoundingClientRect();
const legend = () => [page.querySelector("output").textContent, ...[...page.querySelectorAll(".legend b")].map(
  value => value.textContent)];
said.legend = [legend()];
const move = x => svg.dispatchEvent(new view.PointerEvent("pointermove", {clientX: box.left + x * box.width}));
move(0.0);
said.legend.push(legend());
said.cursor = page.querySelector(".cursor").getBoundingClientRect().left - box.left > 0;
svg.dispatchEvent(new view.PointerEvent("pointerleave"));
said.legend.push(legend());
said.image = page.querySelector("img").naturalWidth;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(on_a_telephone, scheme):
    page = Page("A title that is long enough to need two lines on a telephone", lead="Words. " * 20)
    rows = [("b", 9.5, "x" * 60), ("a", 21, ""), ("d", None, "y"), ("c", "100.5 %", "x")]
    page.table(["name", "number", "words"], rows, caption="a table wider than a telephone")
    page.curves("c", {"one": [(1, 5.0), (2, 4.0), (3, 3.5)], "two": [(2, 1.0), (3, 2.0)]}, x="epoch", y="loss")
    page.picture(PNG, alt="two pixels", caption="picture")
    page.details("more", "long " * 60)
    said = on_a_telephone(page.html(), ASK, f"blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}")
    assert said["sorts"] == [
        [["b", "a", "c", "d"], ["none", "ascending", "none"]],  # 9.5, 21, 100.5, nothing: numbers, not words
        [["c", "a", "b", "d"], ["none", "descending", "none"]],  # nothing stays last
        [["a", "b", "c", "d"], ["ascending", "none", "none"]],
        [["c", "b", "d", "a"], ["none", "none", "ascending"]],
    ]
    assert said["focusable"]
    assert said["table"] <= said["box"], "a row is a block of lines, no wider than the page"
    assert said["lines"] == ["number 9.5", "words " + "x" * 60, "number 21", "words y", "number 100.5 %", "words x"]
    assert said["background"] == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 22, 28)"}[scheme]
    assert said["line"] == {"light": "rgb(0, 114, 178)", "dark": "rgb(79, 168, 232)"}[scheme]
    assert said["legend"] == [["3", "3.5", "2"], ["1", "5", "1 (at 2)"], ["3", "3.5", "2"]]
    assert said["cursor"]
    assert said["image"] == 2
