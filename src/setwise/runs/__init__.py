"""A run from its recipe to its record: train, evaluate, write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from setwise.recipe import Recipe
from setwise.runs.choices import recipe_for
from setwise.runs.embedding import embed, home, image_encoder, neighbours, title_of
from setwise.runs.matching import run_matching
from setwise.runs.pairs import embed_run, run_pairs, write_sides
from setwise.runs.pretraining import choose_device, encoder_of, export, pretrain, probe
from setwise.runs.speedrun import timed_run, timed_runs

__all__ = [
    "choose_device",
    "embed",
    "embed_run",
    "encoder_of",
    "export",
    "home",
    "image_encoder",
    "neighbours",
    "pretrain",
    "probe",
    "recipe_for",
    "run_matching",
    "run_of",
    "run_pairs",
    "timed_run",
    "timed_runs",
    "title_of",
    "write_sides",
]


def run_of(recipe: Recipe) -> Callable[..., dict[str, Any]]:
    """What carries out a recipe and gives its record: ``run_matching``, ``run_pairs`` or ``pretrain``, called alike."""
    return run_matching if recipe.matched else run_pairs if recipe.pairs else pretrain
