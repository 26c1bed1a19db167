"""The reproduction of the paper: its recipes, runs, tables, claims, numbers."""
