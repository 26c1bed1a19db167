"""setwise: contrastive losses as assignment problems, and the set-level regulariser QARe, for PyTorch.

>>> import setwise as sw
>>> loss = sw.SetContrastive(sw.InfoNCE(temperature=0.05), beta=0.5)    # loss(z_a, z_b) -> scalar
"""

# ruff: noqa: F403, F405 - the names are there, as mypy sees

from __future__ import annotations

from typing import TYPE_CHECKING

from setwise.version import __version__

if TYPE_CHECKING:
    from setwise._public import *

__all__ = [
    "PRESETS",
    "AssignmentLoss",
    "InfoNCE",
    "Matching",
    "NTLogistic",
    "NTXent",
    "QARe",
    "SetContrastive",
    "SparseCLR",
    "TripletMargin",
    "__version__",
    "assignment",
    "data",
    "distributed",
    "encoders",
    "functional",
    "match",
    "matching_accuracy",
    "presets",
    "views",
]


if not TYPE_CHECKING:  # there, every name has a type of its own

    def __getattr__(name: str) -> object:
        """Everything is imported with the first name that is asked for: `setwise --help` does not wait for torch."""
        import setwise._public as public

        found = globals()
        found.update({one: getattr(public, one) for one in __all__ if hasattr(public, one)})
        if name not in found:
            raise AttributeError(f"module 'setwise' has no attribute {name!r}")
        return found[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
