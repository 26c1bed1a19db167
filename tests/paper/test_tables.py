"""Tables from hand-made records: numbers by hand, missing and foreign records, chosen weights, Markdown and CSV."""

import csv
import io
import json
import math

import pytest
from scipy.stats import ttest_1samp

from setwise.paper.collected import collect, groups
from setwise.paper.report import make_page
from setwise.paper.tables import Table, changes_table, classification_table, matching_table, overview
from setwise.records.statistics import MeanStd, PairedDifference


def matching(keep, loss, term, seed, test, *, weight=None, val=0.5, held_out=None, **changes):
    name = f"{'paper' if term in ('', 'qare') else 'setwise'}/cifar10-matching-{loss}" + (f"-{term}" if term else "")
    final = {"test_accuracy": test, "val_accuracy": val, "rank1": test / 2}
    final |= {} if held_out is None else {"held_out_accuracy": held_out}
    if weight is not None:
        changes["beta"] = weight
    return keep(name, seed, final, variant=f"beta-{weight}" if weight else "", **changes)


def text(table, row, column):
    """A cell as a reader of the Markdown file finds it."""
    lines = [line.strip("| ").split(" | ") for line in table.markdown().splitlines() if line.startswith("|")]
    (found,) = [line for line in lines[2:] if line[0] == row]
    return found[lines[0].index(column)]


def only(tmp_path):
    runs, aside = collect(tmp_path / "results")
    assert aside == []
    (group,) = groups(runs)
    return group


def test_a_matching_table_by_hand(tmp_path, keep):
    for seed, plain, qare in ((1, 0.50, 0.53), (2, 0.52, 0.53), (3, 0.54, 0.56)):
        matching(keep, "infonce", "", seed, plain)
        matching(keep, "infonce", "qare", seed, qare, held_out=0.6)
    matching(keep, "triplet", "", 1, 0.4)
    matching(keep, "triplet", "qare", 1, 0.41)
    table = matching_table(only(tmp_path))
    assert (table.name, len(table.rows)) == ("matching-cifar10-1467", 16)
    assert text(table, "InfoNCE", "n") == "3"
    assert text(table, "InfoNCE", "test accuracy") == "52.00 ± 2.00"
    assert text(table, "InfoNCE", "rank-1") == "26.00 ± 1.00"
    assert text(table, "InfoNCE + QARe", "test accuracy") == "54.00 ± 1.73"
    assert text(table, "InfoNCE + QARe", "test, difference to plain") == "+2.00 (-0.48 to +4.48)"
    assert text(table, "InfoNCE + QARe", "held-out accuracy") == "60.00 ± 0.00"
    assert text(table, "InfoNCE + QARe", "held-out, difference to plain") == "-", "the plain loss has none"
    assert text(table, "InfoNCE + QARe", "paper (CUHK-03)") == "61.96 ± 1.38"
    assert text(table, "Triplet + QARe", "test, difference to plain") == "+1.00 (one seed)"
    assert text(table, "Triplet", "test accuracy") == "40.00"
    assert text(table, "Triplet", "test, difference to plain") == "-"
    missing = dict(zip(table.columns, table.rows[-1], strict=True))
    assert {name for name, cell in missing.items() if cell is not None} == {"loss"}
    assert text(table, missing["loss"], "n") == "-"


def test_the_weight_is_chosen_by_validation_over_shared_seeds(tmp_path, keep):
    for seed in (1, 2):
        matching(keep, "infonce", "", seed, 0.5)
        matching(keep, "infonce", "gap", seed, 0.90, weight=1.0, val=0.60)  # the best of test, not of validation
        matching(keep, "infonce", "gap", seed, 0.55, weight=10.0, val=0.70)
        matching(keep, "infonce", "gap", seed, 0.30, weight=30.0, val=0.65)
    matching(keep, "infonce", "gap", 3, 0.9, weight=1.0, val=1.0)  # a seed that the others lack
    for weight in (3.0, 1.0):
        matching(keep, "triplet", "control", 1, weight / 10, weight=weight, val=0.4)
    matching(keep, "sparseclr", "gap", 1, 0.5, weight=1.0)
    matching(keep, "sparseclr", "gap", 2, 0.5, weight=3.0)
    table = matching_table(only(tmp_path))
    assert text(table, "InfoNCE + alignment gap, weight 10", "test, difference to plain").startswith("+5.00")
    assert text(table, "Triplet + structural difference, weight 1", "test accuracy") == "10.00", "the least of equals"
    assert text(table, "SparseCLR + alignment gap", "n") == "-"
    assert len(table.rows) == 16


def test_other_settings_are_other_tables(tmp_path, keep):
    name = "paper/cifar10-matching-infonce"
    keep(f"{name}-qare", 1, {"test_accuracy": 0.7})
    keep(name, 2, {"test_accuracy": 0.5})
    keep(name, 1, {"test_accuracy": 0.6}, variant="n10000", instances=10_000)
    for epochs in (3, 4):
        keep(name, 1, {"test_accuracy": 0.1}, variant=f"epochs-{epochs}", epochs=epochs)
    runs, aside = collect(tmp_path / "results")
    assert aside == []
    found = groups(runs)
    assert [group.title for group in found] == [
        "Matching, CIFAR-10, 1,467 instances",
        "Matching, CIFAR-10, 10,000 instances",
        "Matching, CIFAR-10, 1,467 instances (epochs 3)",
        "Matching, CIFAR-10, 1,467 instances (epochs 4)",
    ]
    assert found[2].name == "matching-cifar10-1467-epochs-3"
    assert text(matching_table(found[0]), "InfoNCE + QARe", "test, difference to plain") == "-", "3 epochs are not 50"


def test_a_record_that_is_older_than_a_field(tmp_path, keep):
    path = matching(keep, "infonce", "", 1, 0.5)
    record = json.loads(path.read_text())
    del record["recipe"]["data"]["validation"]
    path.write_text(json.dumps(record))
    matching(keep, "infonce", "qare", 1, 0.6)
    assert text(matching_table(only(tmp_path)), "InfoNCE + QARe", "test, difference to plain") == "+10.00 (one seed)"
    del record["recipe"]["optimizer"]["lr"]  # 0.001 by default: the recipe's 0.01 is another run
    path.write_text(json.dumps(record))
    assert [group.changed for group in groups(collect(tmp_path / "results")[0])] == ["", "lr 0.001"]


def test_foreign_files_are_listed_and_harm_nothing(tmp_path, keep):
    good = matching(keep, "infonce", "", 1, 0.5)
    folder = tmp_path / "results" / "runs" / "z"
    folder.mkdir()
    record = json.loads(good.read_text())
    bad = {
        "cut.json": good.read_text()[:100],
        "list.json": "[1, 2]",
        "other.json": '{"format": "another program"}',
        "note.txt": "words",
        "unknown.json": json.dumps({**record, "name": "paper/nowhere"}),
        "unnamed.json": json.dumps({**record, "name": ["x"]}),
        "seedless.json": json.dumps({**record, "seed": "1"}),
        "recipeless.json": json.dumps({**record, "recipe": None}),
        "unfinished.json": json.dumps({**record, "final": {}}),
        "batch.json": json.dumps({**record, "recipe": {**record["recipe"], "batch": "many"}}),
        "field.json": json.dumps({**record, "recipe": {**record["recipe"], "learning": 1}}),
        "deep.json": json.dumps({**record, "recipe": "X"}).replace('"X"', '{"terms":' * 300 + "1" + "}" * 300),
        "twice.json": good.read_text(),
    }
    for name, words in bad.items():
        (folder / name).write_text(words)
    (folder / "binary.json").write_bytes(b"\xff\xfe\x00")
    (folder / "seed-2.lock").touch()
    (folder / ".hidden").touch()
    runs, aside = collect(tmp_path / "results")
    assert len(runs) == 1
    assert sorted(line.split(": ")[0] for line in aside) == sorted(f"z/{name}" for name in [*bad, "binary.json"])
    assert any("'paper/nowhere'" in line for line in aside)
    assert not any(str(tmp_path) in line for line in aside)
    assert collect(tmp_path / "nowhere") == ([], [])


def test_a_record_that_names_what_is_not_here_is_set_aside_and_imports_nothing(tmp_path, keep, monkeypatch):
    (tmp_path / "foreign_module.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    path = keep("paper/cifar10-conv4-simclr", 1, {"probe_accuracy": 0.5})
    record = json.loads(path.read_text())
    for part in ("method", "encoder", "optimizer", "schedule", "views"):
        for name, reason in (("unheard-of", "to be registered, one of"), ("foreign_module:make", "import nothing")):
            record["recipe"][part], kept = {"preset" if part == "views" else "name": name}, record["recipe"][part]
            path.write_text(json.dumps(record))
            runs, (line,) = collect(tmp_path / "results")
            assert runs == []
            assert reason in line
            assert repr(name) in line
            record["recipe"][part] = kept


def test_runs_that_differ_in_any_field_stand_apart(tmp_path, keep):
    changes = {
        "epochs 2": {"epochs": 2},
        "epochs 2, probe_epochs 3": {"epochs": 2, "evaluation.probe.epochs": 3},
        "optimizer sgd": {"optimizer": "sgd"},
        "lr 0.5, optimizer sgd": {"optimizer": "sgd", "optimizer.lr": 0.5},
    }
    for i, changed in enumerate(changes.values()):
        keep("paper/cifar10-conv4-simclr", 1, {"probe_accuracy": 0.5}, variant=f"v{i}", **changed)
    runs, aside = collect(tmp_path / "results")
    assert aside == []
    assert [run.changed for run in runs] == list(changes)


def test_values_that_are_no_shares_are_set_aside(tmp_path, keep):
    for seed, value in ((1, 0.5), (2, math.nan), (3, None), (4, "0.5"), (5, True), (6, 0.6), (7, 1e308), (8, -0.1)):
        keep("paper/cifar10-matching-infonce", seed, {"test_accuracy": value})
    runs, aside = collect(tmp_path / "results")
    assert [int(line[line.index("seed-") + 5]) for line in aside] == [2, 4, 5, 7, 8]
    (group,) = groups(runs)
    assert text(matching_table(group), "InfoNCE", "n") == "3"
    assert text(matching_table(group), "InfoNCE", "test accuracy") == "55.00 ± 7.07 (n = 2)", "None: not measured"


def test_classification_by_form_and_overview(tmp_path, keep):
    for form in ("paper", "released"):
        for encoder in ("conv4", "resnet32"):
            for seed, plain, qare in ((1, 0.590, 0.600), (2, 0.600, 0.620)):
                name = f"{form}/cifar10-{encoder}-simclr"
                keep(name, seed, {"probe_accuracy": plain, "knn20_accuracy": 0.5})
                keep(f"{name}-qare", seed, {"probe_accuracy": qare})
    keep("paper/cifar10-conv4-random", 1, {"probe_accuracy": 0.33})
    runs, aside = collect(tmp_path / "results")
    assert aside == []
    found = groups(runs)
    assert [group.title for group in found] == [
        f"Linear probe, CIFAR-10, {encoder}, {form} form"
        for form in ("paper", "released")
        for encoder in ("Conv-4", "ResNet-32")
    ]
    table = classification_table(found[0])
    assert len(table.rows) == 9
    assert text(table, "SimCLR", "probe accuracy") == "59.50 ± 0.71"
    assert text(table, "SimCLR", "kNN-20 accuracy") == "50.00 ± 0.00"
    # Differences 1 and 2: mean 1.5, deviation 0.7071, half of the interval 12.7062 * 0.7071 / sqrt(2).
    assert text(table, "SimCLR + QARe", "difference to plain") == "+1.50 (-4.85 to +7.85)"
    assert text(table, "SimCLR + QARe", "paper") == "61.54 ± 1.17"
    assert text(table, "Random weights", "probe accuracy") == "33.00"
    assert text(table, "Deep InfoMax", "probe accuracy") == "-"
    wide = overview(found)
    assert [one.name for one in wide] == ["classification-paper", "classification-released"]
    names = {row.label for group in found[:2] for row in group.rows}
    assert {row[0] for row in wide[0].rows} == names, "no row for a term that no group has"
    assert text(wide[0], "SimCLR + QARe", "ResNet-32, CIFAR-10") == "61.00 ± 1.41"
    assert text(wide[0], "SimCLR + QARe", "ResNet-32, CIFAR-10, paper") == "76.85 ± 0.39"
    tables = [one for one in make_page(found, [])[1] if one.name.startswith("classification")]
    assert len({one.name for one in tables}) == len(tables) == 6


def test_an_overview_of_many_data_sets_has_a_table_for_each_encoder(tmp_path, keep):
    for data in ("cifar10", "cifar100", "tiny-imagenet"):
        for encoder in ("conv4", "resnet32"):
            keep(f"released/{data}-{encoder}-random", 1, {"probe_accuracy": 0.33})
    found = groups(collect(tmp_path / "results")[0])
    wide = overview(found)
    assert [one.name for one in wide] == ["classification-released-conv4", "classification-released-resnet32"]
    assert [one.caption for one in wide] == [f"Linear probe, released form, {name}" for name in ("Conv-4", "ResNet-32")]
    assert [name for name in wide[1].columns if not name.endswith("paper")] == [
        "method",
        *(f"ResNet-32, {name}" for name in ("CIFAR-10", "CIFAR-100", "tiny-ImageNet")),
    ]
    tables = [one for one in make_page(found, [])[1] if one.name.startswith("classification")]
    assert len({one.name for one in tables}) == len(tables) == 8


def test_other_weights_and_losses_are_rows_of_their_own(tmp_path, keep):
    name = "released/cifar10-conv4-simclr"
    for seed in (1, 2):
        keep(name, seed, {"probe_accuracy": 0.5}, validation=5000)
        other = {"variant": "gap", "loss": "ablation/simclr-gap", "beta": 2.0}
        keep(name, seed, {"probe_accuracy": 0.5 + seed / 100}, validation=5000, **other)
        keep(f"{name}-qare", seed, {"probe_accuracy": 0.4}, variant="beta-0.25", beta=0.25)
        keep(f"{name}-qare", seed, {"probe_accuracy": 0.6})
    runs, aside = collect(tmp_path / "results")
    assert aside == []
    first, second = groups(runs)
    usual = classification_table(first)
    assert text(usual, "SimCLR + QARe", "probe accuracy") == "60.00 ± 0.00"
    assert text(usual, "SimCLR + QARe, weight 0.25", "probe accuracy") == "40.00 ± 0.00"
    assert text(usual, "SimCLR + QARe, weight 0.25", "paper") == "-"
    assert [row.label for row in second.rows] == ["SimCLR", "SimCLR + alignment gap, weight 2"]
    assert (first.validation, second.validation) == (0, 5000)
    tables = make_page([first, second], [])[1]
    named = [one for one in tables if one.name.startswith("classification")]
    assert named == [usual], "runs for choosing are in no table of the paper's"


def test_a_changed_recipe_is_compared_with_the_one_that_has_fewer_changes(tmp_path, keep):
    name, mean_form = "released/cifar10-resnet32-simclr", "ablation/simclr-mean"
    values = {
        (): (0.75, 0.76, 0.77),
        (("weights", "xavier"),): (0.765, 0.776, 0.784),  # +1.5, +1.6, +1.4
        (("epochs", 50),): (0.70, 0.72, 0.71),
        (("loss", mean_form),): (0.74, 0.75, 0.76),
        (("epochs", 50), ("loss", mean_form)): (0.68, 0.70, 0.69),
        (("epochs", 50), ("precision", "float32")): (0.71, 0.72, 0.73),
        (("epochs", 50), ("validation", 5000)): (0.1, 0.1, 0.1),
    }
    for changes, accuracies in values.items():
        for seed, accuracy in enumerate(accuracies, start=1):
            keep(name, seed, {"probe_accuracy": accuracy}, variant=f"v{len(changes)}-{changes}", **dict(changes))
    keep(name, 11, {"probe_accuracy": 0.1}, variant="more")
    found = groups(collect(tmp_path / "results")[0])
    table = changes_table(found)
    assert [row[1:4] for row in table.rows] == [
        ["with mean instead of log-mean", "the recipe as it is", 3],
        ["with epochs 50", "the recipe as it is", 3],
        ["with mean instead of log-mean, epochs 50", "with epochs 50", 3],
        ["with epochs 50, precision float32", "with epochs 50", 3],
        ["with weights xavier", "the recipe as it is", 3],
    ]
    assert {row[0] for row in table.rows} == {"SimCLR: CIFAR-10, ResNet-32, released form"}
    gains = [row[5] for row in table.rows]
    assert [gain.mean for gain in gains] == pytest.approx([-1.0, -5.0, -2.0, 1.0, 1.5]), "seed 11 has no partner"
    expected = ttest_1samp([1.5, 1.6, 1.4], 0).confidence_interval(0.95)
    assert (gains[-1].low, gains[-1].high) == pytest.approx((expected.low, expected.high))
    assert len(changes_table([group for group in found if not group.changed]).rows) == 1
    assert changes_table([]) is None
    alone = [group for group in found if group.changed == "epochs 50"]
    own = "classification-released-cifar10-resnet32"  # others' rows are all in the table of changes
    for some, names in ((found, [own]), (alone, [f"{own}-epochs-50"])):
        assert [table.name for table in make_page(some, [])[1] if table.name.startswith("classif")] == names


def test_means_and_differences_share_a_column_of_a_csv_file_unrounded():
    table = Table(
        "t", ["a", "b"], [["x", MeanStd(1 / 3, 0.5, 3)], ["y", PairedDifference(2.0, 1.0, 3.0, 2, (1, 2))]], "c"
    )
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["a", "b", "b std", "b low", "b high", "b n"],
        ["x", "0.3333333333333333", "0.5", "", "", "3"],
        ["y", "2.0", "", "1.0", "3.0", "2"],
    ]


def test_signs_of_markdown_and_csv_are_escaped():
    hostile = 'a|b <b>*x*</b> `c`\n# d, "e"'
    table = Table("name", [hostile, "n"], [[hostile, 1]], hostile, hostile)
    lines = table.markdown().splitlines()
    assert len(lines) == 7, "a new line in a cell starts no row"
    assert lines[4].replace("\\|", "").count("|") == 3
    assert "<b>" not in table.markdown()
    assert "`c`" not in table.markdown()
    assert list(csv.reader(io.StringIO(table.csv()))) == [[hostile, "n"], [hostile, "1"]]


def test_what_the_quadratic_assignment_adds(tmp_path, keep):
    for seed, (linear, quadratic) in enumerate(((0.50, 0.53), (0.60, 0.61)), start=1):
        final = {"test_accuracy": linear, "held_out_accuracy": linear, "quadratic_test_accuracy": 0.1}
        keep("paper/cifar10-matching-infonce", seed, final | {"quadratic_held_out_accuracy": quadratic})
        final["quadratic_held_out_accuracy"] = quadratic + 0.05
        keep("paper/cifar10-matching-infonce-qare", seed, final)
    table = matching_table(only(tmp_path))
    low, high = ttest_1samp([3.0, 1.0], 0).confidence_interval(0.95)
    assert text(table, "InfoNCE", "quadratic adds") == f"+2.00 ({low:+.2f} to {high:+.2f})"
    assert text(table, "InfoNCE + QARe", "quadratic held-out, difference to plain") == "+5.00 (equal in all seeds)"
    assert text(table, "InfoNCE + QARe", "quadratic test, difference to plain") == "+0.00 (+0.00 to +0.00)"
