"""What tells runs apart, in as few words as possible."""

import csv
import json
from types import SimpleNamespace

import pytest

import setwise.records as records
from setwise.paper.recipes import recipe
from setwise.recipe import Recipe
from setwise.report.any_runs import PICTURED, differing, group_by, labels, report_runs

PLAIN = {"epochs": 20, "encoder.name": "conv4", "encoder.weights": "xavier", "objective.temperature": 0.1}
GAP = {f"objective.terms.gap.{name}": value for name, value in {"similarity": "cosine", "weight": 100.0}.items()}


def runs(*recipes):
    return [SimpleNamespace(fields=fields, seed=1) for fields in recipes]


@pytest.mark.parametrize(
    ("recipes", "paths", "names"),
    [
        ([PLAIN | GAP, PLAIN], ["objective.terms.gap.weight"], ["gap 100", "no gap"]),
        ([PLAIN, PLAIN | {"epochs": 5}], ["epochs"], ["epochs 20", "epochs 5"]),
        (
            [PLAIN, {key: value for key, value in PLAIN.items() if key != "encoder.weights"} | {"encoder.name": "vit"}],
            ["encoder.name"],
            ["encoder conv4", "encoder vit"],
        ),
        (  # nothing else tells these apart
            [PLAIN | {"encoder.stem": "small"}, PLAIN],
            ["encoder.stem"],
            ["stem small", "no stem"],
        ),
        (  # another similarity is said, one that is not there is not
            [PLAIN | GAP, PLAIN | GAP | {"objective.terms.gap.similarity": "euclidean"}, PLAIN],
            ["objective.terms.gap.similarity", "objective.terms.gap.weight"],
            ["similarity cosine, gap 100", "similarity euclidean, gap 100", "no similarity, no gap"],
        ),
    ],
    ids=["a term", "a number", "an encoder", "an option alone", "a term's option"],
)
def test_as_few_fields_as_tell_the_runs_apart(recipes, paths, names):
    found = runs(*recipes)
    assert differing(found) == paths
    assert labels(group_by(found, paths), paths) == names


def test_of_many_fields_as_few_are_named_as_tell_the_runs_apart():
    # Ten numbers go along with the encoder; the temperature and the seed of the split do not.
    recipes = [
        {"encoder.name": name, "split": split, "objective.temperature": t}
        | {f"option{i}": f"{name}{i}" for i in range(10)}
        for name in ("conv4", "vit")
        for split in (0, 1)
        for t in (0.1, 0.2, 0.3)
    ]
    recipes[0]["method.name"] = "contrastive"
    found = runs(*recipes)
    paths = differing(found)
    assert sorted(paths) == ["encoder.name", "objective.temperature", "split"]
    assert len(group_by(found, paths)) == len(recipes)


def test_labels_of_many_fields_say_what_is_not_usual():
    usual = {f"field{i}": i for i in range(8)}
    paths = list(usual)
    groups = group_by(runs(usual, usual | {"field3": None}, usual | {"field1": 0.5, "field2": "x"}, usual), paths)
    assert labels(groups, paths) == ["the usual", "no field3", "field1 0.5, field2 x"]


def test_labels_of_many_fields_are_silent_about_parts_that_a_recipe_does_not_have():
    usual = {f"field{i}": i for i in range(8)} | {"method.name": "contrastive", "objective.loss": "nt-xent"}
    term = {"objective.terms.qare.weight": 0.5, "objective.terms.qare.bound": "eigenvalue"}
    supervised = {path: value for path, value in usual.items() if path != "objective.loss"}
    several = [usual, usual | term, usual | term | {"objective.terms.qare.bound": "best"}, usual | {"field1": 9}]
    groups = group_by(runs(*several, supervised | {"method.name": "supervised", "field1": 3}), [*usual, *term])
    assert labels(groups, [*usual, *term]) == [
        "the usual",
        "qare 0.5",
        "qare 0.5, bound best",
        "field1 9",
        "method supervised, field1 3",
    ]


def test_labels_tell_groups_apart_that_differ_in_a_part_alone():
    usual = {f"field{i}": i for i in range(8)}
    groups = group_by(runs(usual, {path: value for path, value in usual.items() if path != "field7"}), list(usual))
    assert labels(groups, list(usual)) == ["the usual", "no field7"]


def test_a_terms_weight_is_named_whatever_else_differs():
    many = {f"option{i}": i for i in range(8)}
    found = runs(PLAIN | GAP | many | {"option0": 9}, PLAIN | {name: -value for name, value in many.items()})
    assert "objective.terms.gap.weight" in differing(found)


def test_runs_on_other_data_alone_leave_no_empty_chart(tmp_path):
    finals = dict.fromkeys(("probe_accuracy", "knn20_accuracy", "knn200_accuracy", "knn10_accuracy", "extra"), 0.5)
    for data in ("digits", "cifar10"):
        tree = Recipe.read({"data": data}).tree()
        record = {"format": records.FORMAT, "name": "own", "recipe": tree, "seed": 1, "epochs": {"loss": [1.0]}}
        place = tmp_path / "runs" / data / records.FILE
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(record | {"final": finals}))
    page, *_ = report_runs([tmp_path / "runs"], tmp_path / "out")
    assert "Against" not in page.read_text()
    assert "1 more number of each" in page.read_text()


def test_numbers_on_other_data_are_not_compared(tmp_path):
    accuracies = {"digits": {"info-nce": 0.9, "nt-xent": 0.8}, "cifar10": {"info-nce": 0.5, "nt-xent": 0.7}}
    for data, losses in accuracies.items():
        for loss, accuracy in losses.items():
            for seed in (1, 2, 3):
                tree = Recipe.read({"data": data, "objective": {"loss": loss}}).tree()
                record = {"format": records.FORMAT, "name": "own", "recipe": tree, "seed": seed, "epochs": {}}
                place = tmp_path / "runs" / data / loss / str(seed) / records.FILE
                place.parent.mkdir(parents=True)
                place.write_text(json.dumps(record | {"final": {"probe_accuracy": accuracy + seed / 100}}))
    _, *files = report_runs([tmp_path / "runs"], tmp_path / "out")
    (table,) = (list(csv.DictReader(path.read_text().splitlines())) for path in files if path.suffix == ".csv")
    rows = {(row["source"], row["loss"]): row["difference to the first"] for row in table}
    assert rows[("digits", "info-nce")] == rows[("cifar10", "info-nce")] == ""
    assert rows[("digits", "nt-xent")].startswith("-10")
    assert rows[("cifar10", "nt-xent")].startswith("20")


@pytest.mark.parametrize(("spread", "unclear"), [(0.001, False), (0.1, True)])
def test_the_lead_says_if_the_first_may_be_as_good(tmp_path, spread, unclear):
    for temperature, gain in ((0.1, 0.0), (0.2, 0.01)):
        tree = recipe("paper/digits-conv4-simclr").changed({"objective.temperature": temperature}).tree()
        for seed in range(4):
            final = {"probe_accuracy": 0.5 + gain + (spread if gain else 0) * (-1) ** seed}
            record = {"name": "mine", "recipe": tree, "seed": seed, "final": final}
            path = tmp_path / "runs" / str(temperature) / f"seed-{seed}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            records.write(path, record)
    page = report_runs([tmp_path / "runs"], tmp_path / "out")[0].read_text()
    assert "temperature 0.2: probe accuracy 51.00" in page
    assert ("these seeds cannot tell it from the first" in page) == unclear


def test_the_picture_names_what_the_first_has_not_and_comes_before_its_note(tree_of, tmp_path):
    for i, (batch, temperature) in enumerate([(32, 0.1), (32, 0.2), (64, 0.1), (64, 0.2)]):
        tree = recipe("paper/digits-conv4-simclr").changed({"batch": batch, "temperature": temperature}).tree()
        path = tmp_path / "runs" / str(i) / "seed-1.json"
        path.parent.mkdir(parents=True)
        records.write(path, {"name": "mine", "recipe": tree, "seed": 1, "final": {"probe_accuracy": 0.5 + i / 100}})
    html = report_runs([tmp_path / "runs"], tmp_path / "out")[0].read_text()
    texts = tree_of(html)
    assert "Against temperature 0.1, batch 32" in texts.texts("strong")
    picture = html[html.index('<table class="intervals">') :]
    names = tree_of(picture.partition("</table>")[0] + "</table>").texts("th")
    assert names == ["temperature 0.2", "batch 64", "temperature 0.2, batch 64"]
    assert html.index("</table>") < html.index("Differences in probe accuracy, seed by seed")


def test_a_page_of_many_different_runs_stays_narrow(tree_of, tmp_path):
    plain = recipe("paper/digits-conv4-simclr")
    for i in range(40):
        rates = {"lr": 0.1 * (1 + i % 13), "optimizer.weight_decay": 0.01 * (i % 5)}
        changes = {
            "epochs": i % 7,
            "batch": 2 + i % 11,
            "drop_last": i % 2 == 0,
            "probe.epochs": 1 + i % 3,
            "probe.lr": 1 + i,
        }
        tree = plain.changed(changes | rates | {"objective.temperature": 0.1 + i % 4}).tree()
        record = {"format": records.FORMAT, "name": "own", "recipe": tree, "seed": 1, "epochs": {"loss": [1.0]}}
        place = tmp_path / "runs" / str(i) / records.FILE
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps(record | {"final": {"probe_accuracy": (i * 7 % 40) / 100}}))
    fields = ["epochs", "batch", "drop_last", "probe.epochs", "probe.lr", "optimizer.lr", "temperature"]
    page, *files = report_runs([tmp_path / "runs"], tmp_path / "out", by=fields)
    texts = tree_of(page.read_text())
    heads = [
        words
        for (tag, about, _), words in zip(texts.all("th"), texts.texts("th"), strict=True)
        if about["scope"] == "col"
    ]
    assert heads == ["runs", "n", "probe accuracy", "difference to the first"]
    assert len(texts.all("td")) > 40 * 3
    assert (
        len([about for _, about, _ in texts.all("td") if about.get("class") == "bar"]) == PICTURED - 1 + 2
    )  # and two axes
    assert "The best 20 of 40" in page.read_text()
    (table,) = (path for path in files if path.suffix == ".csv")
    assert table.read_text().partition("\n")[0].startswith("epochs,batch,drop_last,")
