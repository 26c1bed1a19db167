"""`setwise help`."""

from typing import Annotated

import tyro


def help(
    topic: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="a page or a section; all are listed if none")] = "",
) -> None:
    """Read a how-to page, or the section that an error cites."""
    from rich.console import Console
    from rich.markdown import Markdown

    from setwise.pages import text_of, topics

    if topic:
        return Console().print(Markdown(text_of(topic)))
    for name, title in topics().items():
        print(f"{name:40} {title}")
