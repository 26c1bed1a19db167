"""Run records: one schema, one writer."""

from setwise.records.record import FILE, FORMAT, check_final, fields_of, of_run, read, read_json, recipe_of, write

__all__ = ["FILE", "FORMAT", "check_final", "fields_of", "of_run", "read", "read_json", "recipe_of", "write"]
