"""Hand-made records, shaped as those of real runs."""

import json

import numpy as np
import pytest

from setwise.paper.jobs import Job, weighed, with_loss
from setwise.paper.recipes import recipe
from setwise.records.record import FIRST_FORMAT
from setwise.report.page import Page


@pytest.fixture
def keep(tmp_path):
    """Writes a record into results/: final in shares of one, ``about`` replaces what the record says of itself.

    ``loss`` is another preset's, ``beta`` the weight of the set-level term, ``changes`` are of other fields.
    """

    def write(name, seed, final, *, variant="", about=None, loss=None, beta=None, **changes):
        made = recipe(name).changed(changes)
        if loss is not None:
            made = with_loss(made, loss, beta)
        elif beta is not None:
            made = weighed(made, beta)
        job = Job(name, made, seed, variant)
        path = job.record(tmp_path / "results")
        path.parent.mkdir(parents=True, exist_ok=True)
        epochs = [{"epoch": i, "loss": 3.0 / i, "pairwise": 2.0 / i, "val_accuracy": seed * i / 100} for i in (1, 2, 3)]
        if name.endswith("-qare"):
            epochs = [{**row, "regularizer": 0.1 * row["epoch"]} for row in epochs]
        found = {
            "format": FIRST_FORMAT,
            "name": name,
            "recipe": job.recipe.tree(),
            "seed": seed,
            "precision": "float32",
            "commit": "0123abc",
            "versions": {"setwise": "0.1", "torch": "2.13"},
            "hardware": {"name": "a machine", "cores": 2},
            "command": ["setwise", "reproduce", "table 1"],
            "timings": {"training_seconds": 10.0},
            "epochs": epochs,
            "final": final,
            "variant": variant,
            **(about or {}),
        }
        path.write_text(json.dumps(found))
        return path

    return write


@pytest.fixture
def look():
    """Makes the "structure" of an epoch from real unit vectors; ``spread`` is how unequal their directions are."""

    def make(seed, spread=1.0, support=254.0, same_class_weight=0.2):
        rng = np.random.default_rng(seed)
        views = []
        for _ in range(2):
            z = rng.normal(size=(128, 16)) * np.arange(1, 17) ** -spread
            z /= np.linalg.norm(z, axis=1, keepdims=True)
            views.append(np.linalg.eigvalsh(z @ z.T)[::-1][:64].clip(0).tolist())
        weights = {"same_class_weight": same_class_weight, "same_class": 0.1}
        return {"eigenvalues": views, "rows": 128, "support": support, "negatives": 254.0, **weights}

    return make


@pytest.fixture
def looked(keep, look):
    """Writes SimCLR and SparseCLR with and without QARe, three seeds each, looked at in epochs 1, 2 and 4 of 4."""

    def write(form="released", encoder="conv4"):
        for seed in (1, 2, 3):
            for method, support, weight in (("simclr", 254.0, 0.18), ("sparseclr", 20.0 + seed, 0.30 + seed / 100)):
                for end, spread in (("", 1.0), ("-qare", 0.3)):
                    epochs = [{"epoch": epoch, "loss": 1.0 / epoch} for epoch in (1, 2, 3, 4)]
                    for epoch in (1, 2, 4):
                        found = look(10 * seed + epoch, spread / epoch, support, weight)
                        epochs[epoch - 1]["structure"] = found
                    final = {"probe_accuracy": 0.6 + seed / 100 + len(end) / 1000 + (method == "sparseclr") / 50}
                    keep(f"{form}/cifar10-{encoder}-{method}{end}", seed, final, about={"epochs": epochs})

    return write


class Drawn(Page):
    """Keeps what is asked to be drawn."""

    def __init__(self):
        super().__init__("t")
        self.drawn = {}

    def curves(self, title, series, **options):
        self.drawn[title] = (series, options)
        super().curves(title, series, **options)


@pytest.fixture
def drawn_page():
    return Drawn()
