"""Made-up trials whose winners are known: a table of their own, and not a number elsewhere."""

import re

import pytest
from scipy.stats import ttest_rel

import setwise.paper.jobs as jobs
import setwise.records as records
from setwise.cli import main
from setwise.paper import tuning
from setwise.paper.collected import collect, groups
from setwise.paper.jobs import expand
from setwise.paper.report import report
from setwise.paper.tuned import settings, trials_table, tuned_answer, tuned_table
from setwise.recipe import flat
from setwise.records.statistics import MeanStd
from setwise.report.tables import shown

NAME = "released/cifar10-conv4-simclr"
BEST = {"plain": 3, "qare": 5, "gap": 5, "control": 1, "frobenius": 24}
TOP = {"plain": 0.60, "qare": 0.62, "gap": 0.64, "control": 0.63, "frobenius": 0.61}
ADDED = {"plain": 0.0, "qare": 0.004, "gap": 0.002, "control": -0.01, "frobenius": 0.0}


def noise(term, seed):
    """Anyone's, but the same each time."""
    return sum(map(ord, term)) * seed % 7 / 1000


@pytest.fixture
def results(tmp_path, keep):
    """Untuned runs: SimCLR, its QARe with clamp, its structural difference; on validation, its alignment gap."""
    for seed in (11, 12, 13):
        keep(NAME, seed, {"probe_accuracy": 0.60 + seed / 1000})
        keep(f"{NAME}-qare", seed, {"probe_accuracy": 0.61 + seed / 1000 + seed % 2 / 500})
        control = {"loss": "ablation/simclr-control", "beta": 10.0, "variant": "simclr-control-10"}
        keep(NAME, seed, {"probe_accuracy": 0.605 + seed / 1000 + seed % 3 / 500}, **control)
        kept = {"data.validation": 5000}
        keep(NAME, seed, {"probe_accuracy": 0.5 + seed / 1000}, variant="validation", **kept)
        gap = {"loss": "ablation/simclr-gap", "beta": 10.0, "variant": "validation-gap-10"}
        keep(NAME, seed, {"probe_accuracy": 0.52 + seed / 1000 + seed % 2 / 100}, **gap, **kept)
    return tmp_path / "results"


def write(job, results, accuracy):
    path = job.record(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    final = {"probe_accuracy": accuracy, "knn20_accuracy": accuracy}
    records.write(path, {"name": job.name, "recipe": job.recipe.tree(), "seed": job.seed, "final": final})


def add_trials(results, terms=tuple(BEST)):
    for job in expand("tuning", only=("conv4",), results=results):
        term, number = tuning.PLACES[job.variant]
        if term in terms:
            wins = number == BEST[term] or (term == "plain" and number == 20)  # of equal ones the first
            write(job, results, TOP[term] if wins else 0.5 + number / 1000)


def add_tests(results, terms=tuple(BEST)):
    for job in expand("tuned", results=results):
        term, _ = tuning.PLACES[job.variant]
        if term in terms:
            write(job, results, 0.65 + job.seed / 1000 + ADDED[term] + noise(term, job.seed))


def found(results):
    runs, aside = collect(results)
    assert not aside
    return settings(runs, groups(runs))


def cells(setting):
    """Both tables by row and column."""
    rows = {}
    for table in (tuned_table(setting), trials_table(setting)):
        for row in table.rows:
            rows.setdefault(row[0], {}).update(zip(table.columns, row, strict=True))
    return rows


def test_nothing_that_was_there_changes(results, tmp_path):
    def files(name):
        made = report(results, tmp_path / name)
        return {path.name: path.read_text() for path in made if path.suffix != ".html" and path.stem != "not-run"}

    before = files("before")
    add_trials(results)
    add_tests(results)
    after = files("after")
    new = {f"{name}-cifar10-conv4.{end}" for name in ("tuned", "trials") for end in ("md", "csv")}
    assert after.keys() - before.keys() == new
    assert {name: after[name] for name in before} == before
    pages = [(tmp_path / name / "index.html").read_text() for name in ("before", "after")]
    others = [re.sub('<h2 id="not-run">.*?<h2', "", page, flags=re.DOTALL) for page in pages]
    lines = [set(page.replace("><", ">\n<").splitlines()) for page in others]
    assert not lines[0] - lines[1]
    assert "Every objective tuned" in pages[1]
    assert "Tuning, CIFAR-10, Conv-4: 170 runs" in pages[1]
    with pytest.raises(ValueError, match="two seeds of each"):  # `confirm` wants an ablation, which trials are not
        expand("confirm", data="cifar100", results=results)


def test_winners_and_differences(results):
    add_trials(results)
    add_tests(results)
    (setting,) = found(results)
    rows = cells(setting)
    labels = ("QARe", "alignment gap", "structural difference", "Frobenius norms")
    assert list(rows) == ["SimCLR", *(f"SimCLR + {label}" for label in labels)]
    for term, row in zip(BEST, rows.values(), strict=True):
        chosen = tuning.tried("cifar10", "conv4", term, BEST[term])
        fields = flat(chosen.tree())
        assert float(row["temperature"]) == fields["objective.temperature"]
        assert float(row["learning rate"]) == fields["optimizer.lr"]
        assert float(row["weight decay"]) == fields["optimizer.weight_decay"]
        assert row["width of the head"] == str(chosen.head.hidden)
        assert row["weight of the term"] == (f"{chosen.objective.terms[0].weight:g}" if term != "plain" else None)
        assert (row["trials"], row["n"]) == (24, 10)
        assert row["validation accuracy"] == pytest.approx(100 * TOP[term])
    seeds = range(11, 21)
    value = {term: [100 * (0.65 + s / 1000 + ADDED[term] + noise(term, s)) for s in seeds] for term in BEST}
    mean = rows["SimCLR"]["test accuracy"]
    assert isinstance(mean, MeanStd)
    assert (mean.mean, mean.n) == (pytest.approx(sum(value["plain"]) / 10), 10)
    for term, row in list(zip(BEST, rows.values(), strict=True))[1:]:
        low, high = ttest_rel(value[term], value["plain"]).confidence_interval(0.95)
        got = row["difference to tuned SimCLR"]
        assert (got.low, got.high, got.n) == (pytest.approx(low), pytest.approx(high), 10)
    untuned = {label: (row["without tuning"], row["from"]) for label, row in rows.items()}
    assert untuned.pop("SimCLR") == (None, None)
    assert untuned.pop("SimCLR + Frobenius norms") == (None, None)
    expected = {
        "SimCLR + QARe": (1.0 + 2 / 3 * 0.2, "with clamp, 3 seeds"),
        "SimCLR + alignment gap": (2.0 + 2 / 3, "weight 10, 5,000 validation images, 3 seeds"),
        "SimCLR + structural difference": (0.5 + 0.2, "weight 10, 3 seeds"),
    }
    assert {label: (pytest.approx(one.mean), words) for label, (one, words) in untuned.items()} == expected


def test_the_sentence(results):
    add_trials(results)
    (setting,) = found(results)
    rows = cells(setting)
    start = "CIFAR-10, Conv-4: after 24 trials of each objective, alignment gap, the best of 4 set-level terms on "
    without = f"without tuning it adds {shown(rows['SimCLR + alignment gap']['without tuning'])}."
    assert tuned_answer(setting) == f"{start}validation images, has yet to be tested; {without}"
    assert rows["SimCLR"]["test accuracy"] is None
    assert not setting.tested
    add_tests(results, ("plain", "qare"))
    (setting,) = found(results)
    assert setting.tested
    qare = cells(setting)["SimCLR + QARe"]
    both = [shown(qare[name]) for name in ("difference to tuned SimCLR", "without tuning")]
    also = "; QARe adds {} after and {} without.".format(*both)
    assert tuned_answer(setting) == f"{start}validation images, has yet to be tested; {without[:-1]}{also}"
    add_tests(results)
    (setting,) = found(results)
    gain = cells(setting)["SimCLR + alignment gap"]["difference to tuned SimCLR"]
    words = {"above": "it helps", "around": "these runs cannot tell whether it helps", "below": "it harms"}[gain.side]
    middle = f"adds {shown(gain)} points to SimCLR on the test images (10 seeds): {words}; "
    assert tuned_answer(setting) == f"{start}validation images, {middle}{without[:-1]}{also}"


def test_some_trials_alone_and_tests_of_another_winner(results):
    add_trials(results, ("qare",))
    (setting,) = found(results)
    assert [one.term for one in setting.objectives] == ["qare"]
    assert "have not both been tuned yet" in tuned_answer(setting)
    add_tests(results)
    trial = next(job for job in expand("tuning", results=results) if tuning.PLACES[job.variant] == ("qare", 9))
    write(trial, results, 0.9)  # another wins now, which nobody has tested
    (setting,) = found(results)
    assert setting.objectives[0].best.path == f"{NAME}/{trial.variant}/seed-1.json"
    assert setting.objectives[0].tests.runs == {}
    trial.record(results).unlink()
    (setting,) = found(results)
    assert trials_table(setting).rows[0][1] == "23 of 24"
    assert len(setting.objectives[0].tests.runs) == 10


def test_the_commands_from_the_first_trial_to_the_page(tmp_path, monkeypatch, capsys):
    """On digits, with as few of all as possible; QARe alone beside SimCLR."""
    monkeypatch.setattr(tuning, "EPOCHS", 1)
    monkeypatch.setattr(tuning, "VALIDATION", 100)
    monkeypatch.setattr(tuning, "TRIALS", {"conv4": 1, "resnet32": 1})
    monkeypatch.setattr(tuning, "TERMS", {term: tuning.TERMS[term] for term in ("plain", "qare")})
    monkeypatch.setattr(jobs, "MORE_SEEDS", 1)
    short = tuning.recipe
    monkeypatch.setattr(tuning, "recipe", lambda name: short(name).changed({"epochs": 1, "probe.epochs": 1}))
    where = ["--data", "digits", "--only", "conv4", "--results", str(tmp_path / "results")]
    for table in ("tuning", "tuned"):
        main(["reproduce", table, *where, "--scratch", str(tmp_path / "runs"), "--device", "cpu"])
    assert "2 of 2 records" in capsys.readouterr().out
    assert tmp_path / "page/tuned-digits-conv4.csv" in report(tmp_path / "results", tmp_path / "page")
    assert max(path.stat().st_size for path in (tmp_path / "results").rglob("*.json")) < 4000
