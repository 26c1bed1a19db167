"""``load`` and ``load_matched``: a name or a path in, one form out."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import setwise.register as register
from setwise.checks import check_option, see
from setwise.data.api import PARTS, ImageSet, MatchedSet, Placement, Where, matched_halves
from setwise.data.formats import ENDINGS, cuhk03, folder, recognise
from setwise.data.formats.listing import test_split
from setwise.data.pairs import PairSet, TrainingSet
from setwise.data.root import root_of
from setwise.registry import nearest


def load(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    split: str = "train",
    size: int | tuple[int, int] | None = None,
    boxes: cuhk03.Boxes | None = None,
    seed: int | None = None,
    options: Mapping[str, object] | None = None,
    pixels: Where = "auto",
    most_bytes: int | None = None,
    wait: bool = False,
) -> ImageSet:
    """One split of a data set: uint8 images [N, C, H, W], labels [N], class names, mean and std.

    ``name`` is a source of ``sw.register.data``, ours or yours, or a path to one of our data sets or to a folder of
    images, with or without labels and splits. Data sets are looked for in ``root`` ($SETWISE_DATA or
    ~/.cache/setwise), where decoded images are kept too. ``split`` is "train" or "test"; some have "val" too.
    ``options`` are the source's own. Two of them may be given by name: ``size`` of folders (whose images it crops too)
    and CUHK-03 resizes to (height, width), or to one number for both; ``boxes`` of CUHK-03 are "labeled" or "detected".
    ``seed`` splits a matched set, CUHK-03, by identity.

    The ``pixels`` of a folder live in memory ("resident"), in a file of decoded images ("mapped"), or in their files,
    decoded when needed ("files"). "auto" is resident up to half of the available memory, or to ``most_bytes`` if they
    are less; then mapped, then files if the disk has no room. Unless they are resident, ``images`` has no values;
    ``read`` gives some. With ``wait`` resident ones may have none either, until ``in_memory`` reads them: all, or those
    that ``select`` has left.

    Examples:
        >>> digits = sw.data.load("digits", split="test")
        >>> digits.images.shape, digits.images.dtype, len(digits.classes)
        (torch.Size([500, 1, 8, 8]), torch.uint8, 10)
    """
    data = _images(_read(name, root, split, _options(options, size, boxes), Placement(pixels, most_bytes, wait)))
    if isinstance(data, MatchedSet):
        check_option(split, PARTS, "split")
        return data.part(split, seed=seed or 0).labelled()
    if seed is not None:
        raise ValueError(f"expected seed=None for {data.name}, got {seed!r}; only a matched set is split by a seed")
    return data


def load_matched(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    split: str = "train",
    seed: int = 0,
    instances: int | None = None,
    size: int | tuple[int, int] | None = None,
    boxes: cuhk03.Boxes | None = None,
    options: Mapping[str, object] | None = None,
) -> MatchedSet:
    """Two views of the same identities, split at random by identity: 70 % train, 15 % val, the rest test.

    CUHK-03 has two cameras. Any other set gives the left and right halves of its train images: of ``instances`` of
    them, drawn by ``seed``, before they are split by the same seed. ``split="all"`` does not split.
    The other arguments are as for ``load``.

    Examples:
        >>> pairs = sw.data.load_matched("digits", split="test", seed=1)  # left and right halves of the same digits
        >>> len(pairs), pairs.images.shape[1:]
        (194, torch.Size([1, 8, 4]))
    """
    check_option(split, PARTS, "split")
    data = _images(_read(name, root, "train", _options(options, size, boxes), Placement("resident")))
    if isinstance(data, ImageSet):
        data = replace(matched_halves(data, instances=instances, seed=seed), split="all")
    elif instances is not None:
        raise ValueError(f"expected instances=None for {data.name}, which has its own identities, got {instances}")
    return data.part(split, seed=seed)


def load_pairs(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None = None,
    *,
    split: str = "train",
    options: Mapping[str, object] | None = None,
) -> PairSet:
    """One split of a source of pairs: multi30k, one that you registered, or a file of yours.

    Your own are two texts a line (.tsv), images and their captions (captions.tsv beside the images), or feature vectors
    (.npy, with the name of the second file in ``options["second"]``); all are "train". ``root`` and ``options`` are as
    for ``load``.
    """
    data = _read(name, root, split, dict(options or {}), Placement())
    if not isinstance(data, PairSet):
        raise ValueError(
            f"expected pairs for --method pairs, got {data!r}; give the path of a .tsv or .npy file, "
            + see("how-to/your-pairs")
        )
    return data


def _images(data: TrainingSet) -> ImageSet | MatchedSet:
    """The data, unless it is pairs."""
    if isinstance(data, PairSet):
        raise ValueError(f"expected images, got {data!r}; --method pairs trains on it (sw.data.load_pairs reads it)")
    return data


def halves_to_spare(name: str | os.PathLike[str]) -> bool:
    """Whether ``load_matched`` halves train images, and ``load`` has a test split that could be halved too."""
    return source_of(name)[0] != cuhk03.NAME and has_test_split(name)


def has_test_split(name: str | os.PathLike[str]) -> bool:
    """Whether it has a test split of its own: all sources have one, except your own pairs, and folders without one."""
    source, path = source_of(name)
    if source in ENDINGS.values():
        return False
    return source != folder.NAME or (path is not None and test_split(path) is not None)


def source_of(name: str | os.PathLike[str]) -> tuple[str, Path | None]:
    """The registered source, and the path where a person named that instead."""
    if isinstance(name, str) and name in register.data:
        return name, None
    path = Path(name).expanduser().resolve()
    if isinstance(name, str) and not path.exists() and os.sep not in name:
        here = sorted(one.name for one in path.parent.iterdir())
        raise ValueError(
            f"expected a folder, a file, or one of {', '.join(map(repr, register.data))}, got {name!r}, where there is "
            f"none{nearest(name, [*here, *register.data])}"
        )
    return recognise(path), path


def _options(options: Mapping[str, object] | None, size: object, boxes: object) -> dict[str, object]:
    """All options: those in ``options``, and those given by their names."""
    named = {"size": size, "boxes": boxes}
    return dict(options or {}) | {name: value for name, value in named.items() if value is not None}


def _read(
    name: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    split: str,
    options: dict[str, object],
    placement: Placement,
) -> TrainingSet:
    """What the source gives."""
    source, path = source_of(name)
    entry = register.data[source]
    where: dict[str, object] = {} if path is None else {"source_path": path}
    if "placement" in inspect.signature(entry.make).parameters:
        where["placement"] = placement
    elif placement.pixels in ("mapped", "files"):
        raise ValueError(f"expected pixels auto or resident for {source}, which is always so, got {placement.pixels!r}")
    if path is not None and source != folder.NAME:  # recipes have a folder's options for every path
        unset = register.data[folder.NAME].options
        options = {name: x for name, x in options.items() if name not in unset or x != unset[name].default}
    data = entry.make(root_of(root), split, **where, **entry.fill(options))
    if not isinstance(data, (ImageSet, MatchedSet, PairSet)):
        raise ValueError(
            f"expected the data source {source!r} to give a setwise.data.ImageSet, got {type(data).__name__}"
        )
    return data
