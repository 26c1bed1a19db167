"""``load`` and ``load_matched``: a name or a path in, one form out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

import setwise.register as register
from setwise.checks import check_option, see
from setwise.data import cifar, cuhk03, digits, folder, tiny_imagenet
from setwise.data.catalogue import CATALOGUE, recognise
from setwise.data.errors import DataError
from setwise.data.limits import LARGEST_SIZE
from setwise.data.root import fetch_command, root_of
from setwise.data.sets import ImageSet, MatchedSet, matched_halves
from setwise.data.source import locate


def load(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    split: str = "train",
    size: int | tuple[int, int] | None = None,
    boxes: cuhk03.Boxes | None = None,
    seed: int | None = None,
    options: Mapping[str, object] | None = None,
) -> ImageSet:
    """One split of a data set: uint8 images [N, C, H, W], labels [N], class names, mean and std.

    ``name`` is "digits", "cifar10", "cifar100", "tiny-imagenet" or "cuhk03", looked for in ``root`` ($SETWISE_DATA or
    ~/.cache/setwise; decoded images are kept there too, if it can be written), or a path to any of these or to a folder
    of images train/CLASS/*.png|jpg. ``split`` is "train" or "test"; some have "val" too. Only for folders of images and
    CUHK-03: ``size`` to resize to, (height, width) or one number for both. Only for CUHK-03: ``boxes``, "labeled" (the
    default) or "detected", and ``seed`` of the split by identity (default 0). Only for a source that you registered
    (``sw.register.data``): its own ``options``.

    Examples:
        >>> digits = sw.data.load("digits", split="test")
        >>> digits.images.shape, digits.images.dtype, len(digits.classes)
        (torch.Size([500, 1, 8, 8]), torch.uint8, 10)
    """
    kind, path, where = _find(name, root)
    pair = _check_options(kind, size=size, boxes=boxes, seed=seed)
    if kind in register.data:
        return _made(kind, where, split, options or {})
    if options:
        raise ValueError(f"expected no options for {kind}, got {', '.join(options)}; registered sources have some")
    if kind == "digits":
        return digits.load(split)
    if kind in cifar.SPECS:
        return cifar.load(kind, path, split)
    if kind == "tiny-imagenet":
        return tiny_imagenet.load(path, split, where)
    if kind == "cuhk03":
        return cuhk03.load(path, split, where, boxes=boxes or "labeled", size=pair or cuhk03.SIZE, seed=seed or 0)
    return folder.load(path, split, pair)


def load_matched(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    instances: int | None = None,
    size: int | tuple[int, int] | None = None,
    boxes: cuhk03.Boxes | None = None,
) -> MatchedSet:
    """Two views of the same identities, split at random by identity: 70 % train, 15 % val, the rest test.

    CUHK-03 has two cameras. Any other set gives the left and right halves of its train images: of ``instances`` of
    them, drawn by ``seed``, before they are split by the same seed. ``split="all"`` does not split.
    ``name``, ``root``, ``size`` and ``boxes`` are as for ``load``.

    Examples:
        >>> pairs = sw.data.load_matched("digits", split="test", seed=1)  # left and right halves of the same digits
        >>> len(pairs), pairs.images.shape[1:]
        (194, torch.Size([1, 8, 4]))
    """
    check_option(split, cuhk03.SPLITS, "split")
    kind, path, where = _find(name, root)
    if kind == "cuhk03":
        if instances is not None:
            raise ValueError(f"expected instances=None for cuhk03, which has its own identities, got {instances}")
        pair = _check_options(kind, size=size, boxes=boxes, seed=seed)
        return cuhk03.load_matched(path, split, where, boxes=boxes or "labeled", size=pair or cuhk03.SIZE, seed=seed)
    whole = matched_halves(load(name, root, size=size, boxes=boxes), instances=instances, seed=seed)
    return replace(whole, split="all") if split == "all" else whole.parts(seed=seed)[split]


def halves_to_spare(name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> bool:
    """Whether ``load_matched`` halves train images, and ``load`` has a test split that could be halved too."""
    kind, path, _ = _find(name, root)
    return kind != "cuhk03" and (kind != "folder" or any((path / split).is_dir() for split in ("test", "val")))


def _find(name: str | os.PathLike[str], root: str | os.PathLike[str] | None) -> tuple[str, Path, Path]:
    """Which data set, where, and the root."""
    where = root_of(root)
    if isinstance(name, str) and name in register.data:
        return name, where, where
    if isinstance(name, str) and name in CATALOGUE:
        if name == "digits":
            return name, where, where
        path = locate(name, where)
        if path is None:
            raise DataError(
                f"expected {name} in {where / name}, got none; run `{fetch_command(name, root)}`, or say "
                "where it is, by --root (root= in Python) or by its path in place of its name, "
                + see("how-to/your-data#by-name")
            )
        return name, path, where
    path = Path(name).expanduser().resolve()
    if isinstance(name, str) and not path.exists() and os.sep not in name:
        check_option(name, (*CATALOGUE, *register.data), "the data set, where there is no such file or folder,")
    return recognise(path), path, where


def _made(name: str, root: Path, split: str, options: Mapping[str, object]) -> ImageSet:
    """A split of a registered source."""
    entry = register.data[name]
    found = entry.make(root, split, **entry.fill(options))
    if not isinstance(found, ImageSet):
        raise ValueError(
            f"expected the data source {name!r} to give a setwise.data.ImageSet, got {type(found).__name__}"
        )
    return found


def _check_options(
    kind: str, *, size: int | tuple[int, int] | None, boxes: str | None, seed: int | None
) -> tuple[int, int] | None:
    """Raise for what the data set does not have; ``size`` as (height, width)."""
    for option, value in (("boxes", boxes), ("seed", seed)):
        if value is not None and kind != "cuhk03":
            raise ValueError(f"expected {option}=None for {kind}, got {value!r}; it is for cuhk03")
    if size is None:
        return None
    if kind not in ("folder", "cuhk03"):
        raise ValueError(f"expected size=None for {kind}, whose images are of one size, got {size!r}")
    pair = tuple(size) if isinstance(size, (tuple, list)) else (size, size)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in pair)
    if len(pair) != 2 or not whole or not 1 <= min(pair) <= max(pair) <= LARGEST_SIZE:
        raise ValueError(
            f"expected size to be (height, width) or one number for both, 1 to {LARGEST_SIZE} each, got {size!r}"
        )
    return int(pair[0]), int(pair[1])
