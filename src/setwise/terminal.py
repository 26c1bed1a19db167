"""Words from outside, such as the names of files, made safe to show."""

from __future__ import annotations

from unicodedata import category


def visible(text: str) -> str:
    r"""``text`` with control characters as escapes: a name must not steer a terminal, nor turn what follows around.

    >>> print(visible("a\x1b[31m.png"))
    a\x1b[31m.png
    """
    hidden = (c for c in set(text) if c != "\n" and category(c) in ("Cc", "Cf"))
    return text.translate({ord(c): ascii(c)[1:-1] for c in hidden})
