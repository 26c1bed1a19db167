"""Data sets in one form, read from files that need not be trusted.

api.py         the two forms of images, and what a source promises
pairs.py       pairs of any kind: two sides
texts.py       texts as token ids
formats/       one file for each layout: it registers its source
fetching/      download, archives, limits, the cache of decoded images
store.py       image files decoded once, by several processes (workers.py), and kept
pixels.py      pixels that are not in memory
loading.py     ``load``, ``load_matched`` and ``load_pairs``
installing.py  ``fetch`` and ``check``
from_python.py ``from_images``
survey.py      what a folder of images holds
"""

from setwise.data.api import DataError, ImageSet, MatchedSet, matched_halves, split_sizes
from setwise.data.from_python import from_images
from setwise.data.installing import check, fetch
from setwise.data.loading import halves_to_spare, has_test_split, load, load_matched, load_pairs
from setwise.data.pairs import PairSet, Side
from setwise.data.root import default_root
from setwise.data.survey import Survey, survey

__all__ = [
    "DataError",
    "ImageSet",
    "MatchedSet",
    "PairSet",
    "Side",
    "Survey",
    "check",
    "default_root",
    "fetch",
    "from_images",
    "halves_to_spare",
    "has_test_split",
    "load",
    "load_matched",
    "load_pairs",
    "matched_halves",
    "split_sizes",
    "survey",
]
