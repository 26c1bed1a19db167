"""The how-to pages, which an installed package has too: errors cite them, `setwise help` shows them."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib.resources import files

FOLDER = files("setwise") / "how_to"  # a link to docs/how-to
MARK = r" \{#([\w-]+)\}"  # behind a section's title: the name to cite it by


def topics() -> dict[str, str]:
    """Every page and every section that has a name, such as "errors" and "errors#resume", with its title."""
    titles = {}
    for path in sorted(FOLDER.iterdir(), key=lambda path: path.name):
        page, text = path.name.removesuffix(".md"), path.read_text(encoding="utf-8")
        titles[page] = text.partition("\n")[0].removeprefix("# ")
        titles |= {f"{page}#{name}": title for title, name in re.findall(f"^## (.*){MARK}$", text, re.MULTILINE)}
    return titles


def text_of(topic: str) -> str:
    """The page or section in Markdown. An error about an unknown one suggests the nearest."""
    known = topics()
    if topic not in known:
        near = get_close_matches(topic, known, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"expected a topic that `setwise help` lists, got {topic!r}{hint}")
    page, _, name = topic.partition("#")
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    if name:
        (text,) = (part for part in re.split(r"^(?=## )", text, flags=re.MULTILINE) if f"{{#{name}}}\n" in part)
    return re.sub(f"{MARK}$", "", text, flags=re.MULTILINE).strip()
