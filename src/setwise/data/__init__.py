"""Data sets in one form, read from files that need not be trusted.

api.py         the two forms, and what a source promises
formats/       one file for each layout: it registers its source
fetching/      download, archives, limits, the cache of decoded images
store.py       image files decoded once, by several processes (workers.py), and kept
pixels.py      pixels that are not in memory
loading.py     ``load`` and ``load_matched``
installing.py  ``fetch`` and ``check``
from_python.py ``from_images``
survey.py      what a folder of images holds
"""

from setwise.data.api import DataError, ImageSet, MatchedSet, matched_halves, split_sizes
from setwise.data.from_python import from_images
from setwise.data.installing import check, fetch
from setwise.data.loading import halves_to_spare, has_test_split, load, load_matched
from setwise.data.root import default_root
from setwise.data.survey import Survey, survey

__all__ = [
    "DataError",
    "ImageSet",
    "MatchedSet",
    "Survey",
    "check",
    "default_root",
    "fetch",
    "from_images",
    "halves_to_spare",
    "has_test_split",
    "load",
    "load_matched",
    "matched_halves",
    "split_sizes",
    "survey",
]
