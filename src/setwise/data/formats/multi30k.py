"""Multi30k: 31,014 captions of photos in English, German and French, line by line translations of each other.

Elliott et al. 2016, 2017. It is read only: put its files train.en, train.de, val.en, ..., test_2016_flickr.en, ..., as
they are or as .gz, into the folder multi30k below the root.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

import setwise.register as register
from setwise.checks import check_count, check_option
from setwise.data.api import DataError
from setwise.data.fetching.published import MB, Published
from setwise.data.pairs import PairSet, Side
from setwise.data.texts import Tokenizer, read_ids

NAME = "multi30k"
FILES = {"train": "train", "val": "val", "test": "test_2016_flickr"}
Language = Literal["en", "de", "fr"]


def find(path: Path) -> Path | None:
    """``path`` if Multi30k lies there."""
    return path if any((path / f"train.en{end}").is_file() for end in ("", ".gz")) else None


PUBLISHED = Published(
    name=NAME,
    find=find,
    download=2 * MB,
    by_hand="its files lie in the public repository multi30k/dataset, folder data/task1/raw; "
    "then run `setwise data fetch multi30k --source FOLDER`",
)


@register.data(
    NAME, about="Captions in English, German, French: 29,000 pairs of translations, 1,000 to test on.", takes=("pairs",)
)
def multi30k(
    root: Path,
    split: str,
    source_path: Path | None = None,
    *,
    first: Language = "en",
    second: Language = "de",
    test: Literal["test", "val"] = "test",
    vocabulary: int = Tokenizer.vocabulary,
    ngrams: tuple[int, ...] = Tokenizer.ngrams,
    length: int = Tokenizer.length,
    group: int | None = None,
) -> PairSet:
    """Sentences in two languages. ``test`` names the split to test on: "val" is for choosing between recipes.

    With a ``group``, training knows no pairs, but sets of so many lines that follow each other.
    """
    check_option(split, tuple(FILES), "split")
    if first == second:
        raise ValueError(f"expected two languages, got {first} twice; give --data.first or --data.second")
    place, tokenizer = PUBLISHED.located(root, source_path), Tokenizer(vocabulary, ngrams, length)
    split = test if split == "test" else split
    sides = []
    for language in (first, second):
        plain = place / f"{FILES[split]}.{language}"
        path = plain if plain.is_file() else place / f"{plain.name}.gz"
        if not path.is_file():
            raise DataError(f"expected {plain.name} or {path.name} in {place}, got neither; {PUBLISHED.by_hand}")
        (ids,) = read_ids(path, columns=1, tokenizer=tokenizer)
        sides.append(Side(ids, vocabulary))
    check_count(group, "group")
    sets = torch.arange(len(sides[0]), device="cpu") // group if group and split == "train" else None
    return PairSet(f"{NAME}-{first}-{second}", split, sides[0], sides[1], sets=sets)
