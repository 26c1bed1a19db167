"""Charts as SVG files of their own, for pages of Markdown: they follow the reader's light or dark theme."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from html import escape
from typing import NamedTuple

from setwise.report.chart import WIDTH, Bands, Interval, Points, interval_bars, lines
from setwise.report.page import PALETTE, STROKES

# As narrow as the words allow: telephones show them too. A glyph is about 7 wide.
BARS, ROW, GLYPH = 150, 22, 7
DRAWN = """text{fill:var(--ink);font:12.5px system-ui,sans-serif}.head{font-weight:600}.back{fill:var(--page)}
.grid{stroke:var(--line)}.zero{stroke:var(--soft)}.line{stroke-width:2}
.hollow{fill:none;stroke:var(--ink);stroke-width:1.5}
"""


def interval_picture(title: str, rows: Sequence[Interval]) -> str:
    """Means and their intervals as an SVG file."""
    rows, bars, marks = interval_bars(rows)
    columns = [row.name for row in rows], [row.words for row in rows]
    names, words = (24 + GLYPH * max((len(text) for text in texts), default=0) for texts in columns)
    width = max(int(WIDTH), names + BARS + words, 16 + GLYPH * len(title))
    bar, parts, y = width - names - words, [], ROW
    for before, row, drawn in zip([None, *rows], rows, bars, strict=False):
        if row.group and (before is None or row.group != before.group):
            y += ROW
            parts.append(f'<text class="head" x="8" y="{y - 6}">{escape(row.group)}</text>')
        parts.append(
            f'<text x="{names - 16}" y="{y + 15}" text-anchor="end">{escape(row.name)}</text>'
            f'<svg x="{names}" y="{y}" width="{bar}" height="{ROW}" overflow="visible">{drawn}</svg>'
            f'<text x="{width - 8}" y="{y + 15}" text-anchor="end">{escape(row.words)}</text>'
        )
        y += ROW
    parts.append(f'<svg x="{names}" y="{y}" width="{bar}" height="{ROW}" overflow="visible">{marks}</svg>')
    return _svg(title, width, y + ROW, parts)


class Panel(NamedTuple):
    """Lines of a picture, as ``chart`` and ``lines`` take them."""

    title: str
    series: Mapping[str, Points]
    bands: Bands
    hollow: Collection[tuple[str, float]]


# A picture of lines: heights of a panel and of the space below it; widths of the legend's lines.
PANEL, SPACE, SWATCH = 190, 10, 22
OVER = "circle.ring{fill:var(--page);stroke-width:1.5}.line{fill:none}.band{opacity:.18;stroke:none}\n"


def line_picture(title: str, panels: Sequence[Panel], *, x: str, log: str = "") -> str:
    """Lines in panels, one below the other, as an SVG file.

    All panels have the same names, in the same order; a name without any value is not in the legend.
    """
    drawn = [
        lines(one.series, x=x, y=one.title, log=log, bands=one.bands, hollow=one.hollow, height=PANEL) for one in panels
    ]
    used = {name for one in panels for name, points in one.series.items() if points}
    keys = [key for key in next((one.keys for one in drawn if one), []) if key.name in used]
    beside = min((int(WIDTH) // (2 * SWATCH + GLYPH * len(key.name)) for key in keys), default=1)
    parts, y = [], ROW
    for i, key in enumerate(keys):
        left, row = 8 + int(WIDTH) // beside * (i % beside), y + ROW * (i // beside)
        parts.append(f'<path {key.look} d="M{left} {row + 8}h{SWATCH}"/>')
        parts.append(f'<text x="{left + SWATCH + 6}" y="{row + 12}">{escape(key.name)}</text>')
    y += ROW * -(-len(keys) // beside) + SPACE
    for one in filter(None, drawn):
        parts.append(f'<svg y="{y}" width="{WIDTH:g}" height="{PANEL}">{one.inside}</svg>')
        y += PANEL + SPACE
    return _svg(title, WIDTH, y, parts, style=OVER)


def _svg(title: str, width: float, height: int, parts: Sequence[str], *, style: str = "") -> str:
    """The file: its title above its parts."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{1.2 * width:g}" viewBox="0 0 {width:g} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{PALETTE}{DRAWN}{STROKES}{style}</style>'
        f'<rect class="back" width="100%" height="100%"/><text class="head" x="8" y="16">{escape(title)}</text>\n'
        + "\n".join(parts)
        + "</svg>\n"
    )
