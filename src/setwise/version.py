"""The version of setwise, for files that say what wrote them."""

__version__ = "0.1.0"
