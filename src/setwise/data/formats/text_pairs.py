"""Your own pairs of texts: a file of lines, and in each line two texts with a tab between them."""

from __future__ import annotations

from pathlib import Path

import setwise.register as register
from setwise.checks import check_option
from setwise.data.api import DataError
from setwise.data.pairs import PairSet, Side
from setwise.data.texts import Tokenizer, read_ids

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
) -> PairSet:
    """All pairs, which are the training split: a run holds some of them out to test on."""
    check_option(split, ("train",), "split")
    if source_path is None:
        raise DataError(f"expected the path of a .tsv file, got its kind, {NAME!r}; give the path instead")
    tokenizer = Tokenizer(vocabulary, ngrams, length)
    first, second = (Side(ids, vocabulary) for ids in read_ids(source_path, columns=2, tokenizer=tokenizer))
    return PairSet(source_path.stem, split, first, second)
