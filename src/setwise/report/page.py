"""One self-contained HTML file: words, tables, curves, pictures. It loads nothing, and needs no network.

The file is ASCII without control characters, every text in it is escaped, and its Content-Security-Policy allows its
own style and script and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from setwise.report.chart import COLOURS, Interval, Points, chart, intervals, small
from setwise.report.chart import caption as caption_of
from setwise.terminal import visible
from setwise.training.checkpoint import write_text

# Colours after Okabe and Ito, told apart by colour-blind eyes too; shades with a contrast of at least 3 to the page.
PALETTE = """
:root{color-scheme:light dark;--page:#fff;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--panel:#f6f8fa;--link:#0550ae;
--c0:#0072b2;--c1:#c64f00;--c2:#008463;--c3:#b5548b;--c4:#8f6400;--c5:#2a86bf;--c6:#59636e;--c7:#7d7400}
@media (prefers-color-scheme:dark){:root{--page:#12161c;--ink:#e6edf3;--soft:#9aa5b1;--line:#343c46;--panel:#1b2129;
--link:#79b8ff;--c0:#4fa8e8;--c1:#f08040;--c2:#2bbd94;--c3:#e093c0;--c4:#e69f00;--c5:#8ccbf2;--c6:#aab4be;--c7:#f0e442}}
"""
STROKES = "".join(f".c{i}{{stroke:var(--c{i})}}circle.c{i},.band.c{i}{{fill:var(--c{i})}}\n" for i in range(COLOURS))
STYLE = (
    PALETTE
    + """*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:1rem/1.55 system-ui,sans-serif;overflow-wrap:break-word}
main{max-width:78rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .6rem}
h2{font-size:1.25rem;line-height:1.3;margin:2.4rem 0 .6rem}
p{margin:.6rem 0}
.lead{font-size:1.1rem;color:var(--soft)}
.lead b{color:var(--ink)}
figure{margin:1.2rem 0}
.soft{color:var(--soft);font-size:.9rem;margin:.1rem 0 .4rem}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:6px;max-width:max-content}
table{border-collapse:collapse;font-size:.93rem;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .65rem;text-align:left;white-space:nowrap;border-top:1px solid var(--line)}
thead th{background:var(--panel);border-top:0;white-space:normal;vertical-align:bottom}
tbody th{font-weight:400}
tbody th,thead th:first-child{position:sticky;left:0;z-index:1}
tbody th{background:var(--page)}
.wrap th{white-space:normal}
.wrap th:not(.n){min-width:6.5rem}
.wrap td:not(.n){white-space:normal;min-width:8.5rem}
.n{text-align:right}
th button{all:unset;cursor:pointer}
th button::after{content:"\\2195";padding-left:.35em;color:var(--soft)}
th[aria-sort=ascending] button::after{content:"\\2191";color:inherit}
th[aria-sort=descending] button::after{content:"\\2193";color:inherit}
:focus-visible,th button:focus-visible{outline:2px solid var(--link);outline-offset:2px}
.chart{display:inline-block;vertical-align:top;width:100%;max-width:29rem;margin-right:.8rem}
.chart>svg{display:block;width:100%;height:auto;touch-action:pan-y}
text{fill:var(--soft);font:12.5px system-ui,sans-serif}
.grid{stroke:var(--line);fill:none}
.cursor{stroke:var(--soft);fill:none}
.band{opacity:.18}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.intervals{width:100%}
.intervals th,.intervals td{border:0;padding:0 .65rem 0 0}
.intervals tbody th{white-space:normal;line-height:1.3;padding:.1rem 0}
.intervals .bar{width:52%;padding:0 1.2rem}
.intervals .bar svg{display:block;width:100%;height:28px;overflow:visible}
.intervals thead{display:none}
.intervals .soft{margin:0}
.intervals .group th{padding-top:.5rem;font-weight:600}
.intervals .group~tr:not(.group) th{padding-left:1rem}
.zero{stroke:var(--soft)}
.hollow{fill:var(--page);stroke:var(--ink);stroke-width:1.5}
nav{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:1rem 0}
a{color:var(--link)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;margin:.2rem 0;padding:0;font-size:.9rem}
.legend svg{width:30px;height:10px;margin-right:.4rem}
.legend b,output{font-variant-numeric:tabular-nums;font-weight:600}
img{max-width:min(100%,50rem);margin-top:.4rem;height:auto;border-radius:6px;background:#fff}
details{border:1px solid var(--line);border-radius:6px;padding:.5rem .8rem;margin:1.2rem 0}
summary{cursor:pointer}
.gallery{display:flex;flex-wrap:wrap;gap:.7rem;list-style:none;margin:.4rem 0;padding:0}
.gallery li{width:7.2rem;font-size:.8rem;line-height:1.35}
.gallery img{display:block;width:100%;aspect-ratio:1;object-fit:contain;margin:0 0 .2rem;background:var(--panel)}
.gallery .tiny{image-rendering:pixelated}
.gallery b{display:block;min-height:1.35em;font-variant-numeric:tabular-nums}
.gallery span{color:var(--soft);overflow-wrap:anywhere}
.beside{display:inline-block;vertical-align:top;margin:.6rem 1.8rem .6rem 0}
.gallery .first img{outline:3px solid var(--link);outline-offset:-3px}
pre{overflow-x:auto;font-size:.85rem}
@media (max-width:30rem){nav{flex-wrap:nowrap;overflow-x:auto;white-space:nowrap}}
@media (max-width:30rem){.gallery{gap:.6rem}.gallery li{width:calc(33.3% - .4rem)}.beside{display:block}}
@media (max-width:30rem){.scroll thead{display:none}.scroll table,.scroll tbody,.scroll tr{display:block}
.scroll tr{padding:.3rem .6rem;border-top:1px solid var(--line)}
.scroll tbody th,.scroll td{display:flex;gap:1rem;justify-content:space-between;border:0;padding:.05rem 0;
white-space:normal!important;min-width:0!important;text-align:right;overflow-wrap:anywhere}
.scroll tbody th{position:static;font-weight:600}.scroll td:not([data-c]){display:none}
.scroll tbody [data-c]::before{content:attr(data-c);font-weight:400;color:var(--soft);text-align:left;
overflow-wrap:normal}}
@media (max-width:48rem){.wrap td:not(.n){min-width:11rem}
.intervals thead{display:table-header-group}
.intervals tr{display:grid;grid-template-columns:1fr auto;margin-bottom:.4rem}
.intervals .bar{grid-area:2/1/3/3;width:auto}.intervals th{grid-column:1/3}}
@media print{main{max-width:none;padding:0}.chart{width:48%}.scroll{overflow:visible;border:0}
th button::after{content:none}figure,tr{break-inside:avoid}h2{break-after:avoid}pre{white-space:pre-wrap}}
"""
)
STYLE += STROKES

# Headers become buttons that sort: numbers, then words, then empty cells, whichever way. Above a chart the pointer
# moves a cursor, and the legend shows each line's value there.
SCRIPT = """
for (const head of document.querySelectorAll("thead th")) {
  const button = document.createElement("button"), body = head.closest("table").tBodies[0];
  button.type = "button";
  button.append(...head.childNodes);
  head.append(button);
  head.setAttribute("aria-sort", "none");
  const key = row => {
    const cell = row.cells[head.cellIndex], text = cell.textContent.trim(), number = cell.dataset.v;
    return number === undefined ? [text ? 1 : 2, text] : [0, Number(number)];
  };
  button.addEventListener("click", () => {
    const way = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of head.parentNode.cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    const order = ([p, a], [q, b]) => p - q || way * (p ? a.localeCompare(b) : a - b);
    body.append(...[...body.rows].map(row => [key(row), row]).sort((a, b) => order(a[0], b[0])).map(pair => pair[1]));
  });
}
for (const chart of document.querySelectorAll(".chart")) {
  const svg = chart.querySelector("svg"), cursor = svg.querySelector(".cursor"), at = chart.querySelector("output");
  const values = chart.querySelectorAll(".legend b");
  const lines = [...svg.querySelectorAll("[data-v]")].map(line => {
    const numbers = line.dataset.v.split(" ");
    return line.getAttribute("d").split(/[ML]/).slice(1).map((xy, i) => [parseFloat(xy), ...numbers[i].split(",")]);
  });
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a, points[0]);
  const show = x => {
    const found = lines.map(line => nearest(line, x)), best = nearest(found.filter(Boolean), x);
    if (!best) return;
    at.textContent = best[1];
    found.forEach((p, i) => values[i].textContent = !p ? "" : p[1] === best[1] ? p[2] : `${p[2]} (at ${p[1]})`);
    cursor.setAttribute("d", `M${best[0]} ${cursor.dataset.span}`);
  };
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    show((event.clientX - box.left) * svg.viewBox.baseVal.width / box.width);
  });
  svg.addEventListener("pointerleave", () => { show(1e9); cursor.setAttribute("d", ""); });
}
"""


LONG_NOTE = 330  # letters: about two lines
EMPTY = ("", "-", "–")  # cells of a column of numbers that have none
NOT_RUN = "not run"  # so begins a cell that says what its number would cost


class Picture(NamedTuple):
    """A picture of a gallery."""

    image: bytes  # a PNG or JPEG file
    name: str
    about: str = ""  # a few words, in bold
    row: int | None = None  # a number for scripts of the page


class Page:
    """A page that grows from top to bottom; ``write`` makes the file."""

    def __init__(self, title: str, *, lead: str = "") -> None:
        self.title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]
        self._ids: dict[str, str] = {}  # of headings, and their words
        self._styles, self._scripts = [STYLE], [SCRIPT]
        if lead:
            lines = "".join(f"<p>{_question_first(escape(line))}</p>" for line in lead.splitlines())
            self._parts.append(f'<div class="lead">{lines}</div>')
        self._top = len(self._parts)

    def heading(self, text: str) -> None:
        """Begin a section; its id is made of its words."""
        words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
        name, count = words, 1
        while name in self._ids:
            name, count = f"{words}-{count + 1}", count + 1
        self._ids[name] = text
        self._parts.append(f'<h2 id="{name}">{escape(text)}</h2>')

    def text(self, *paragraphs: str) -> None:
        """Paragraphs."""
        self._parts += [f"<p>{_with_code(escape(words))}</p>" for words in paragraphs]

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        caption: str,
        note: str = "",
        wrap: bool = False,
    ) -> None:
        """A table whose first column names its rows; None is an empty cell. ``wrap`` lets words take more lines.

        On a telephone each row is a block of lines, one for each cell that has something. A long note comes below.

        A cell that begins with a number is sorted by it ("86.9 (86.0 to 87.4) %", "1,234 s"), and a column of such
        cells is set flush right, whatever is missing ("-") in it.
        """
        cells = [["" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row] for row in rows]
        for row in cells:
            if len(row) != len(columns):
                raise ValueError(f"expected {len(columns)} cells in a row of {caption!r}, got {len(row)}: {row}")
        columns_of_cells = zip(*cells, strict=True) if cells else [()] * len(columns)
        right = [
            any(map(_number, column))
            and all(_number(text) or text in EMPTY or text.startswith(NOT_RUN) for text in column)
            for column in columns_of_cells
        ]
        kinds = [' class="n"' if flush else "" for flush in right]
        tags = ['th scope="row"', *["td"] * (len(columns) - 1)]
        abouts = [f' data-c="{escape(name)}"' for name in columns]
        heads = [f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(columns, kinds, strict=True)]
        look = ' class="wrap"' if wrap else ""
        above, below = ("", small(note)) if len(note) > LONG_NOTE else (small(note), "")
        lines = []
        for row in cells:
            values = [f' data-v="{_number(text)}"' if _number(text) else "" for text in row]
            about = ["" if i and text in EMPTY else abouts[i] for i, text in enumerate(row)]
            parts = zip(tags, about, kinds, values, row, strict=True)
            lines.append(
                "".join(f"<{tag}{words}{kind}{v}>{escape(text)}</{tag[:2]}>" for tag, words, kind, v, text in parts)
            )
        self._parts.append(
            f'<figure>{caption_of(caption)}{above}<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(caption)}"><table{look}><thead><tr>{"".join(heads)}</tr></thead><tbody>\n'
            + "\n".join(f"<tr>{line}</tr>" for line in lines)
            + f"\n</tbody></table></div>{below}</figure>"
        )

    def curves(self, title: str, series: Mapping[str, Points], *, x: str, y: str, **more: Any) -> None:
        """Lines of (x, y) by name, as ``chart`` draws them."""
        self._parts.append(chart(title, series, x=x, y=y, **more))

    def intervals(self, title: str, rows: Sequence[Interval], *, other: str, note: str = "") -> None:
        """Means and their intervals, as ``chart.intervals`` draws them."""
        self._parts.append(intervals(title, rows, other=other, note=note))

    def picture(self, png: bytes, *, alt: str, caption: str) -> None:
        """A PNG picture, within the file."""
        if not png.startswith(b"\x89PNG\r\n\x1a\n"):
            raise ValueError(f"expected the bytes of a PNG file for {caption!r}, got {png[:8]!r}")
        width, height = (int.from_bytes(png[i : i + 4]) for i in (16, 20))
        self._parts.append(
            f'<figure>{caption_of(caption)}<img src="data:image/png;base64,{base64.b64encode(png).decode()}" '
            f'alt="{escape(alt)}" width="{width}" height="{height}"></figure>'
        )

    def gallery(
        self, pictures: Sequence[Picture], *, caption: str = "", mark_first: bool = False, beside: bool = False
    ) -> None:
        """Pictures in rows, each with its name below it.

        ``mark_first`` frames the first one; ``beside`` lets galleries share a row.
        """
        items = []
        for k, one in enumerate(pictures):
            kind = "png" if one.image.startswith(b"\x89PNG") else "jpeg"
            tiny = ' class="tiny"' if kind == "png" else ""
            row = "" if one.row is None else f' data-row="{one.row}"'
            first = ' class="first"' if mark_first and k == 0 else ""
            about = f"<b>{escape(one.about)}</b>" if one.about else ""
            items.append(
                f'<li{first}{row}><img{tiny} src="data:image/{kind};base64,{base64.b64encode(one.image).decode()}" '
                f'alt="{escape(one.name)}">{about}<span>{escape(one.name).replace("/", "/<wbr>")}</span></li>'
            )
        words, kind = caption_of(caption) if caption else "", ' class="beside"' if beside else ""
        self._parts.append(f'<figure{kind}>{words}<ul class="gallery">{"".join(items)}</ul></figure>')

    def link(self, text: str, file: str) -> None:
        """A link to a file in the same folder."""
        self._parts.append(f'<p><a href="{escape(file)}">{escape(text)}</a></p>')

    def add(self, html: str, *, style: str, script: str) -> None:
        """HTML of a kind of its own, whose texts are escaped already, with its style and its script."""
        self._parts.append(html)
        self._styles.append(style)
        self._scripts.append(script)

    def details(self, title: str, text: str) -> None:
        """Text that is shown on request, its lines as they are."""
        self._parts.append(f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>")

    def html(self) -> str:
        """The file's text, ASCII."""
        links = [f'<a href="#{name}">{escape(text)}</a>' for name, text in self._ids.items()]
        nav = [f'<nav aria-label="Sections">{"".join(links)}</nav>'] if len(links) > 2 else []
        style, script = (
            " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in codes)
            for codes in (self._styles, self._scripts)
        )
        policy = (
            f"default-src 'none'; img-src data:; style-src {style}; script-src {script}; "
            "base-uri 'none'; form-action 'none'"
        )
        styles = "".join(f"<style>{code}</style>\n" for code in self._styles)
        scripts = "".join(f"<script>{code}</script>\n" for code in self._scripts)
        whole = (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n{styles}</head>\n<body>\n<main>\n"
            + "\n".join([*self._parts[: self._top], *nav, *self._parts[self._top :]])
            + f"\n</main>\n{scripts}</body>\n</html>\n"
        )
        return visible(whole).encode("ascii", "xmlcharrefreplace").decode()

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_text(path, self.html())


def _with_code(words: str) -> str:
    """Words in which `this` is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", words)


def _question_first(line: str) -> str:
    """A line that begins with a question, with that in bold."""
    question, mark, answer = line.partition("? ")
    return f"<b>{question}?</b> {answer}" if mark else line


def _number(text: str) -> str | None:
    """The number that a cell begins with, plainly written; None for words, versions, dates and times."""
    found = re.match(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.:,-])", text)
    return found[0].replace(",", "") if found else None
