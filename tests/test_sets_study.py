"""The study of sets: what it changes of the data, what it measures, and that it goes on where it was stopped."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from setwise.data import PairSet, Side
from setwise.recipe import Recipe
from setwise.runs.pairs import pair_data

ROOT = Path(__file__).parent.parent
WORDS = ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr", "st", "uv", "wx", "yz"]


@pytest.fixture(scope="module")
def study():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        specification = importlib.util.spec_from_file_location("sets_study", ROOT / "benchmarks" / "sets_study.py")
        module = importlib.util.module_from_spec(specification)
        patch.setitem(sys.modules, "sets_study", module)  # a dataclass looks there
        specification.loader.exec_module(module)
        yield module
        sys.modules.pop("trials", None)


@pytest.fixture
def multi30k(tmp_path):
    """120 sentences in two languages, 40 to validate and 40 to test on."""
    place, draw = tmp_path / "multi30k", np.random.default_rng(0)
    place.mkdir()
    for split, count in (("train", 120), ("val", 40), ("test_2016_flickr", 40)):
        rows = [draw.choice(WORDS, 4, replace=False) for _ in range(count)]
        for language in ("en", "de"):
            (place / f"{split}.{language}").write_text(
                "".join(" ".join(language + w for w in row) + "\n" for row in rows)
            )
    return tmp_path


def members(lines):
    """The lines of each set on both sides, in Python."""
    return [
        tuple({int(x) for x, k in zip(side, lines.sets, strict=True) if k == one} for side in lines[:2])
        for one in sorted(set(lines.sets.tolist()))
    ]


@pytest.mark.parametrize(("count", "group", "missing"), [(100, 10, 0.1), (100, 10, 0.3), (95, 10, 0.5), (64, 8, 0.5)])
def test_items_are_missing_on_each_side(study, count, group, missing):
    lines = study.lines_in_sets(count, group, missing=missing, seed=3)
    assert len(lines.first) == len(lines.second) == len(lines.sets)
    sets = members(lines)
    seen = [line for first, second in sets for line in first | second]
    assert sorted(seen) == list(range(count)), "every line in one set"
    for first, second in sets[:-1]:
        assert (len(first), len(second)) == (group, group)
        assert len(first - second) == len(second - first) == round(missing * group)
    first, second = sets[-1]
    assert len(first) == len(second)
    places = {tuple(sorted(k for k, line in enumerate(sorted(a | b)) if line not in b)) for a, b in sets[:-1]}
    assert len(places) > 1, "which ones is drawn"
    assert all(map(torch.equal, lines, study.lines_in_sets(count, group, missing=missing, seed=3)))


@pytest.mark.parametrize(("wrong", "count"), [(0.0, 0), (0.2, 2), (0.5, 5), (1.0, 10)])
def test_some_sets_are_paired_with_another(study, wrong, count):
    sets = members(study.lines_in_sets(84, 8, wrong=wrong, seed=1))  # ten whole sets, and one of four
    assert sum(first != second for first, second in sets) == count
    assert sorted(map(sorted, (first for first, _ in sets))) == sorted(map(sorted, (second for _, second in sets)))
    assert all(first.isdisjoint(second) for first, second in sets if first != second)
    assert sets[-1][0] == sets[-1][1] == {80, 81, 82, 83}


def test_plain_sets_are_those_of_the_recipe(study, multi30k):
    setting = study.Setting("en-de", 16, "same")
    recipe = study.base(setting, "tuned")
    theirs, _ = pair_data(recipe.changed({"data.group": 16}), multi30k)
    train, test = pair_data(recipe, multi30k)
    mine = study.in_sets(train, study.lines_in_sets(len(train), 16), seed=recipe.data.split_seed)
    assert torch.equal(mine.sets, theirs.sets)
    for side in ("first", "second"):
        assert torch.equal(getattr(mine, side).values, getattr(theirs, side).values)
    assert (len(test), test.sets) == (40, None)


def test_training_sees_the_chosen_lines_shuffled(study):
    values = torch.arange(100.0)[:, None]
    pairs = PairSet("a", "train", Side(values), Side(-values))
    lines = study.lines_in_sets(100, 10, missing=0.3, wrong=0.5)
    found = study.in_sets(pairs, lines, seed=0)
    for one, (first, second) in enumerate(members(lines)):
        rows = found.sets == one
        assert {int(x) for x in found.first.values[rows]} == first
        assert {-int(x) for x in found.second.values[rows]} == second
    order = -found.second.values[:, 0].long()
    assert not torch.equal(order, lines.second), "in another order"


def test_measures_are_those_of_scipy(study):
    torch.manual_seed(0)
    z_a = torch.nn.functional.normalize(torch.randn(60, 8))
    z_b = torch.nn.functional.normalize(z_a + 0.35 * torch.randn(60, 8))
    found = study.measured(z_a, z_b, study.Setting("en-de", 10, "same", missing=0.3))
    lines, scores = study.lines_in_sets(60, 10, missing=0.3), (z_a @ z_b.T).double().numpy()
    hits = [np.mean(s.argmax(1) == np.arange(60)) for s in (scores, scores.T)]
    assert found["recall1"] == pytest.approx(np.mean(hits))
    right, counts, prices = 0, 0, {price: [0, 0, 0] for price in found["alone"]}
    for first, second in ((sorted(a), sorted(b)) for a, b in members(lines)):
        part = scores[np.ix_(first, second)]
        rows, columns = linear_sum_assignment(-part)
        right += sum(first[i] == second[j] for i, j in zip(rows, columns, strict=True))
        counts += len(set(first) & set(second))
        for price, totals in prices.items():
            n, m = part.shape
            padded = np.zeros((n + m, n + m))
            padded[:n, :m], padded[:n, m:] = -part, float(price)  # a row without a partner costs the price
            rows, columns = linear_sum_assignment(padded)
            matched = [(i, j) for i, j in zip(rows, columns, strict=True) if i < n and j < m]
            said = {f"a{first[i]}" for i in range(n)} - {f"a{first[i]}" for i, _ in matched}
            said |= {f"b{second[j]}" for j in range(m)} - {f"b{second[j]}" for _, j in matched}
            true = {f"a{x}" for x in set(first) - set(second)} | {f"b{x}" for x in set(second) - set(first)}
            for k, some in enumerate((said & true, said, true)):
                totals[k] += len(some)
    assert found["aligned"] == pytest.approx(right / counts)
    assert 0.1 < right / counts < 1
    for price, (both, said, true) in prices.items():
        assert found["alone"][price] == pytest.approx([both / max(1, said), both / true], abs=1e-4)


def test_it_goes_on_where_it_was_stopped(study, multi30k, tmp_path, monkeypatch, capsys):
    source = study.DATA["en-de"]
    monkeypatch.setitem(study.DATA, "en-de", source._replace(changes={"encoder.features": 8}, epochs=(1, 2)))
    monkeypatch.setattr(study, "settings", lambda study_name: [study.Setting("en-de", 8, way) for way in study.WAYS])
    study.loaded.cache_clear()
    out = tmp_path / "sets.json"
    words = ["sets_study", str(multi30k), "--study", "size", "--out", str(out), "--trials", "2", "--device", "cpu"]
    words += ["--ways", "same", "one-to-one", "--seeds", "1"]

    def ran(*more):
        monkeypatch.setattr(sys, "argv", [*words, *more])
        study.main()
        return capsys.readouterr().out

    ran("--part", "2/2")
    first = json.loads(out.read_text())
    assert len({key.split("/")[3] for key in first}) == 1, "half of the settings"
    assert [key.rpartition("/")[0].rpartition("/")[2] for key in first] == ["trial", "trial", "tuned"]
    ran()
    both = json.loads(out.read_text())
    assert (len(both), {key: both[key] for key in first}) == (6, first), "nothing is done twice"
    assert ran() == ""
    other = both | {
        "en-de/8/plain/same/tuned/seed-11": both["en-de/8/plain/same/tuned/seed-11"] | {"changes": {"a": 1}}
    }
    out.write_text(json.dumps(other))
    assert "same/tuned" in ran(), "another trial had won"
    again = json.loads(out.read_text())
    assert [one["final"] for one in again.values()] == [one["final"] for one in both.values()]
    tested = both["en-de/8/plain/same/tuned/seed-11"]
    trials = [both[f"en-de/8/plain/same/trial/{k:02}"] for k in (1, 2)]
    best = max(trials, key=lambda one: one["final"]["recall1"])
    assert (tested["changes"], tested["seed"], trials[0]["seed"]) == (best["changes"], 11, 1)
    assert 0 <= tested["final"]["aligned"] <= 1
    assert len(out.read_text().splitlines()) == 8, "a line for each run"
    assert "n  1" in ran("--show")


def test_a_way_that_is_not_known_is_left_out(study, multi30k, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(study.WAYS, "clairvoyant", {"method.truth": "clairvoyant"})
    monkeypatch.setattr(study, "settings", lambda name: [study.Setting("en-de", 8, "clairvoyant")])
    words = ["sets_study", str(multi30k), "--out", str(tmp_path / "sets.json"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", words)
    study.main()
    assert "left out: clairvoyant" in capsys.readouterr().out


def test_every_setting_has_a_recipe(study):
    every = {setting for name in study.STUDIES for setting in study.settings(name)}
    assert len({setting.key for setting in every}) == len(every)
    assert {setting.group for setting in study.settings("size")} == {1, 8, 32, 64, 128, 256}
    for setting in filter(study.known, every):
        for stage in ("trial", "tuned"):
            recipe = study.base(setting, stage).changed(study.trial(setting, 2))
            assert isinstance(recipe, Recipe)
            assert recipe.batch >= 2 * setting.group
            assert (recipe.method.options["price"] is not None) == setting.priced
