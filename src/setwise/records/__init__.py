"""Run records: one schema, one writer."""

from setwise.records.record import FILE, FORMAT, LARGEST, of_run, read, recipe_of, write
from setwise.records.run import Run

__all__ = ["FILE", "FORMAT", "LARGEST", "Run", "of_run", "read", "recipe_of", "write"]
