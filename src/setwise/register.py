"""The registries: one for each kind of thing that a recipe or a command names.

Each room registers its own entries. A user's file registers more, ``setwise pretrain --use ideas.py``:

    @sw.register.term("spread", about="Push all items apart.")
    def spread(z_a, z_b, *, scale: float = 1.0): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from setwise.registry import Entry as Entry
from setwise.registry import Registry as Registry
from setwise.registry import load_entry_points as load_entry_points
from setwise.registry import load_file as load_file

# ``given``: what the library fills in. ``home``: the room with our own entries.
# -> nn.Module with .features; it may ask for image_size; takes=("ids",) or ("features",) if it is not for images
encoder: Registry[Any] = Registry("encoder", given=("channels", "image_size"), home="setwise.encoders")
loss: Registry[Any] = Registry("loss", given=("z_a", "z_b"), home="setwise.losses.objective")  # see ``called``
term: Registry[Any] = Registry("set-level term", given=("z_a", "z_b"), home="setwise.losses.objective")  # as a loss
method: Registry[Any] = Registry("method", given=("parts",), home="setwise.methods")  # -> Method
# -> torch.optim.Optimizer; lr may be a tensor
optimizer: Registry[Any] = Registry("optimizer", given=("groups",), home="setwise.training.optimizers")
# -> the rate at that moment
schedule: Registry[Any] = Registry("schedule", given=("lr", "progress", "epochs"), home="setwise.training.schedule")
views: Registry[Any] = Registry("preset of views", given=("mean", "std"), home="setwise.views")  # -> Views
# -> ImageSet, a MatchedSet of all identities, or, with takes=("pairs",), a PairSet
data: Registry[Any] = Registry(
    "data source", given=("root", "split", "source_path", "placement"), home="setwise.data.formats"
)
logger: Registry[Any] = Registry("logger", given=("folder", "history"), home="setwise.training.loggers")  # -> Logger
table: Registry[Any] = Registry("table", given=("runs",))  # -> Table


def called(entry: Entry[Any], options: dict[str, Any]) -> Callable[..., Any]:
    """A loss or term with its options: the entry itself if it is a function of (z_a, z_b), else what it makes."""
    itself = "z_a" in inspect.signature(entry.make).parameters
    return partial(entry.make, **options) if itself else entry.make(**options)
