"""Data sets in one form, from files that nobody has to trust."""

from setwise.data.errors import DataError
from setwise.data.loading import load, load_matched
from setwise.data.root import default_root
from setwise.data.sets import ImageSet, MatchedSet, matched_halves
from setwise.data.source import check, fetch

__all__ = [
    "DataError",
    "ImageSet",
    "MatchedSet",
    "check",
    "default_root",
    "fetch",
    "load",
    "load_matched",
    "matched_halves",
]
