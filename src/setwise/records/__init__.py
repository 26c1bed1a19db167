"""Run records: one schema, one writer."""

from setwise.records.record import FILE, FORMAT, check_final, compact, fields_of, of_run, read, read_json, recipe_of, write
from setwise.records.run import Run, read_run

__all__ = [
    *("FILE", "FORMAT", "Run", "check_final", "compact", "fields_of", "of_run", "read", "read_json", "recipe_of"),
    *("read_run", "write"),
]
