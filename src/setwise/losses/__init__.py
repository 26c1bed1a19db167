"""Losses: functions in ``functional``, the same as modules, and exact published forms by name in ``presets``."""
