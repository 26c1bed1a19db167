"""The one error that data readers raise for bytes they cannot trust or cannot find."""

from __future__ import annotations


class DataError(ValueError):
    """A data set is missing, damaged or not what its name says; the message names the file and what to do."""
