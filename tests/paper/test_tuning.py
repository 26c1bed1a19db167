"""The trials of all terms are the same points; the best by its record wins, and is tested with fresh seeds."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from scipy.stats.qmc import Halton

import setwise.records as records
from setwise.paper import tuning
from setwise.paper.jobs import expand
from setwise.recipe import flat

RESULTS = Path(__file__).parents[2] / "results"


def test_the_points_are_haltons():
    points = Halton(5, scramble=False).random(tuning.SKIP + 25)
    for number in (2, 3, 24):
        mine = [tuning.radical_inverse(tuning.SKIP + number, base) for base in tuning.PRIMES]
        assert mine == pytest.approx(points[tuning.SKIP + number])


def test_every_term_has_the_same_trials():
    jobs = [job for job in expand("tuning", data="cifar100") if "conv4" in job.name]
    assert len(jobs) == 24 * len(tuning.TERMS)
    points = {}
    for job in jobs:
        assert (job.recipe.epochs, job.recipe.data.validation, job.recipe.data.source) == (50, 5000, "cifar100")
        term = job.variant.split("-")[1]
        fields = flat(job.recipe.tree())
        point = [fields[name] for name in ("objective.temperature", "optimizer.lr", "optimizer.weight_decay")]
        points.setdefault(term, []).append((*point, fields["head.hidden"]))
        assert len(job.recipe.objective.terms) == (term != "plain")
    assert points["plain"][0] == (0.5, 1e-3, 0.0, 256), "the first is the recipe itself"
    assert len({*points["plain"]}) == 24
    assert all(found == points["plain"] for found in points.values())
    weights = [job.recipe.objective.terms[0].weight for job in jobs if "-qare-" in job.variant]
    assert (weights[0], min(weights) >= 0.1, max(weights) <= 10) == (1.0, True, True)
    assert len({*weights}) > 20


def test_the_best_trial_is_tested_with_fresh_seeds(tmp_path):
    with pytest.raises(ValueError, match="all 24 trials of plain .* `setwise reproduce tuning"):
        expand("tuned", results=tmp_path)
    source = json.loads((RESULTS / "runs/released/cifar10-conv4-simclr/seed-1.json").read_text())
    for job in expand("tuning", only=("conv4-simclr/tuning-qare",), results=tmp_path):
        number = int(job.variant.rsplit("-", 1)[1])
        source["final"]["probe_accuracy"] = 0.5 + 0.1 * (number == 7)
        job.record(tmp_path).parent.mkdir(parents=True)
        job.record(tmp_path).write_text(json.dumps(source))
    jobs = expand("tuned", results=tmp_path)
    assert [job.seed for job in jobs] == list(range(11, 21))
    assert {job.variant for job in jobs} == {"tuned-qare"}
    assert all(job.recipe == tuning.tried("cifar10", "conv4", "qare", 7) for job in jobs)
    assert (jobs[0].recipe.epochs, jobs[0].recipe.data.validation) == (200, 0)
    shutil.rmtree(tmp_path)


def test_resnet32_has_temperature_and_weight_alone(tmp_path):
    jobs = expand("tuning", only=("resnet32",), results=tmp_path)
    assert {job.variant.split("-")[1] for job in jobs} == {"plain", "qare", "gap"}
    assert len(jobs) == 3 * 12
    plain = flat(tuning.recipe("released/cifar10-resnet32-simclr").tree())
    points = {}
    for job in jobs:
        fields = flat(job.recipe.tree())
        changed = {path for path in fields if fields[path] != plain.get(path)}
        others = changed - {"objective.temperature", "epochs", "data.validation"}
        assert all(path.startswith("objective.terms.") for path in others)
        term = job.variant.split("-")[1]
        points.setdefault(term, []).append((fields["objective.temperature"], job.recipe.objective.terms))
    temperatures = {term: [one for one, _ in found] for term, found in points.items()}
    assert temperatures["plain"] == temperatures["qare"] == temperatures["gap"]
    assert min(temperatures["plain"]) < 0.08
    assert max(temperatures["plain"]) > 0.7
    weights = sorted(terms[0].weight for _, terms in points["qare"])
    assert weights[0] < 0.15
    assert weights[-1] > 5
    assert max(b / a for a, b in pairwise(weights)) < 2, "no gap among the weights"
    for job in jobs:
        job.record(tmp_path).parent.mkdir(parents=True, exist_ok=True)
        final = {"probe_accuracy": 0.5 + 0.1 * job.variant.endswith("-03")}
        records.write(
            job.record(tmp_path), {"name": job.name, "recipe": job.recipe.tree(), "seed": job.seed, "final": final}
        )
    tests = expand("tuned", results=tmp_path)
    assert [(job.variant, job.seed) for job in tests[:3]] == [(f"tuned-{term}", 11) for term in points]
    assert (len(tests), {job.recipe.epochs for job in tests}) == (9, {200})
    assert all(job.recipe == tuning.tried("cifar10", "resnet32", job.variant[6:], 3) for job in tests)
