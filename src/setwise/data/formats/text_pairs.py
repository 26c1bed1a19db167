"""Your own pairs of texts: a file of lines, and in each line two texts with a tab between them."""

from __future__ import annotations

from array import array
from pathlib import Path

import torch

import setwise.register as register
from setwise.checks import check_option
from setwise.data.api import DataError
from setwise.data.pairs import PairSet, Side
from setwise.data.texts import IdRows, Tokenizer, read_ids, read_sets

NAME = "text-pairs"


@register.data(
    NAME, about="Your own pairs of texts, with a tab between them: give the path of a .tsv.", takes=("pairs",)
)
def text_pairs(
    root: Path,
    split: str,
    source_path: Path | None = None,
    *,
    vocabulary: int = Tokenizer.vocabulary,
    ngrams: tuple[int, ...] = Tokenizer.ngrams,
    length: int = Tokenizer.length,
    sets: str = "",
) -> PairSet:
    """All pairs, which are the training split: a run holds some of them out to test on.

    ``sets`` is the name of a third column, of three that the file's first line names: "document", say. Rows with the
    same text there are a set, and training knows no more than the sets.
    """
    check_option(split, ("train",), "split")
    if source_path is None:
        raise DataError(f"expected the path of a .tsv file, got its kind, {NAME!r}; give the path instead")
    tokenizer = Tokenizer(vocabulary, ngrams, length)
    if sets:
        return _in_sets(source_path, sets, tokenizer)
    first, second = (Side(ids, vocabulary) for ids in read_ids(source_path, columns=2, tokenizer=tokenizer))
    return PairSet(source_path.stem, split, first, second)


def _in_sets(path: Path, column: str, tokenizer: Tokenizer) -> PairSet:
    """The pairs of the two other columns, and the set of each."""
    ids, numbers = [IdRows(tokenizer, 2) for _ in range(2)], array("q")
    for where, texts, number in read_sets(path, column):
        numbers.append(number)
        for side, text in zip(ids, texts, strict=True):
            side.add(text, where)
    first, second = (Side(side.matrix(), tokenizer.vocabulary) for side in ids)
    sets = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    return PairSet(path.stem, "train", first, second, sets=sets)
