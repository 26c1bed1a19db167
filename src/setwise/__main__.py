"""The command `setwise`, also as `python -m setwise`: it says what is missing where only the losses are installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec

# What `pip install setwise` leaves out, by the modules' names: pyproject.toml's extra "train".
NEEDED = {
    "filelock": "filelock",
    "PIL": "pillow",
    "rich": "rich",
    "safetensors": "safetensors",
    "sklearn": "scikit-learn",
    "tyro": "tyro",
}


def main() -> None:
    """Run the command line, if all that training needs is there."""
    missing = [package for module, package in NEEDED.items() if find_spec(module) is None]
    if missing:
        sys.exit(
            f"setwise: expected the packages that training needs, got none of {', '.join(missing)}; "
            f"pip install {' '.join(missing)} (the losses work without them: import setwise)"
        )
    from setwise.cli import main as run

    run()


if __name__ == "__main__":
    main()
