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
    from setwise.front import load_run as load_run
    from setwise.front import pretrain as pretrain

__all__ = [
    "PRESETS",
    "Alignment",
    "AssignmentLoss",
    "BarlowTwins",
    "Batch",
    "InfoNCE",
    "Matching",
    "Method",
    "NTLogistic",
    "NTXent",
    "Parts",
    "Processes",
    "QARe",
    "SetContrastive",
    "Sets",
    "SparseCLR",
    "TripletMargin",
    "VICReg",
    "__version__",
    "align",
    "assignment",
    "data",
    "distributed",
    "encoders",
    "functional",
    "load_run",
    "match",
    "matching_accuracy",
    "presets",
    "pretrain",
    "register",
    "views",
]


if not TYPE_CHECKING:  # there, every name has a type of its own

    def __getattr__(name: str) -> object:
        """Import everything with the first name that is used: `setwise --help` does not wait for torch."""
        names = globals()
        if name in ("load_run", "pretrain"):  # the losses work without the packages that training needs
            import setwise.front as front

            names |= {"load_run": front.load_run, "pretrain": front.pretrain}
        else:
            import setwise._public as public

            names |= {one: getattr(public, one) for one in __all__ if hasattr(public, one)}
        if name not in names:
            raise AttributeError(f"module 'setwise' has no attribute {name!r}")
        return names[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
