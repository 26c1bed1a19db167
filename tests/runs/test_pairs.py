"""Runs on pairs: from the command line to the record and the report; recall against brute force; nothing lost."""

import json
import os
import random
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import top_k_accuracy_score

import setwise as sw
from setwise.cli import main
from setwise.data import PairSet, Side
from setwise.evaluation.retrieval import pair_retrieval
from setwise.front import compose
from setwise.paper.recipes import recipe as recipe_by_name
from setwise.recipe import Recipe
from setwise.runs.pairs import embed_pairs, evaluate_pairs, pair_data
from setwise.training import checkpoint
from setwise.training.engine import Engine, untrained
from setwise.training.errors import Interrupted

RECIPE = recipe_by_name("pairs/multi30k-bag-infonce")
SMALL = {"epochs": 6, "batch": 64, "encoder.features": 16, "data.vocabulary": 2048}


@pytest.fixture
def tsv(tmp_path):
    """Sentences of five words in one language, and word by word in another, in another order."""
    draw = random.Random(0)
    words = [f"{draw.randrange(10**6)}" for _ in range(80)]
    lines = []
    for _ in range(300):
        chosen = draw.sample(range(len(words)), 5)
        lines.append(
            f"{' '.join('a' + words[k] for k in chosen)}\t{' '.join('z' + words[k] for k in sorted(chosen))}\n"
        )
    path = tmp_path / "mine.tsv"
    path.write_text("".join(lines))
    return path


def options(changes):
    return [word for name, value in changes.items() for word in (f"--{name}", str(value))]


@pytest.mark.parametrize("similarity", ["cosine", "euclidean"])
def test_recall_is_that_of_brute_force(similarity):
    torch.manual_seed(0)
    z_a = torch.randn(60, 4)
    z_b = z_a + 0.8 * torch.randn(60, 4)
    found = pair_retrieval(z_a, z_b, similarity=similarity)
    a, b = z_a.double().numpy(), z_b.double().numpy()
    if similarity == "cosine":
        scores = a @ b.T / np.linalg.norm(a, axis=1)[:, None] / np.linalg.norm(b, axis=1)
    else:
        scores = -np.linalg.norm(a[:, None] - b, axis=2)
    for k in (1, 5, 10):
        ways = [top_k_accuracy_score(np.arange(60), one, k=k) for one in (scores, scores.T)]
        assert found[f"recall{k}_first_to_second"] == pytest.approx(ways[0])
        assert found[f"recall{k}_second_to_first"] == pytest.approx(ways[1])
        assert found[f"recall{k}"] == pytest.approx(sum(ways) / 2)
    assert found["matching_accuracy"] == sw.matching_accuracy(z_a, z_b, similarity=similarity)
    assert pair_retrieval(torch.ones(9, 2), torch.ones(9, 2))["recall1"] == 0, "equal is not found"


def brute_force(scores, labels_a, labels_b, k):
    """The share of rows with a column of their label among the k largest scores."""
    return np.mean([labels_a[i] in labels_b[np.argsort(-row)[:k]] for i, row in enumerate(scores)])


def test_recall_with_labels_is_that_of_brute_force():
    torch.manual_seed(0)
    images, labels = torch.randn(20, 4), torch.randint(20, (90,))
    z_b = images[labels] + 0.7 * torch.randn(90, 4)
    found = pair_retrieval(images[labels], z_b, labels=labels, items=(labels, None), similarity="cosine")
    a, b = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (images.double().numpy(), z_b.double().numpy()))
    number, names = labels.numpy(), np.unique(labels.numpy())
    scores = a[names] @ b.T
    for k in (1, 5, 10):
        there, back = brute_force(scores, names, number, k), brute_force(scores.T, number, names, k)
        assert found[f"recall{k}_first_to_second"] == pytest.approx(there)
        assert found[f"recall{k}_second_to_first"] == pytest.approx(back)
        assert found[f"recall{k}"] == pytest.approx((there + back) / 2)
    assert 0.1 < found["recall1"] < 0.9
    rows, columns = linear_sum_assignment(-a[number] @ b.T)
    assert found["matching_accuracy"] == pytest.approx((number[rows] == number[columns]).mean(), abs=1e-12)
    plain = pair_retrieval(images[labels], z_b, labels=torch.arange(90), similarity="cosine")
    assert plain == pair_retrieval(images[labels], z_b, similarity="cosine")


def test_a_file_of_texts_from_the_command_line(tsv, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in ("1", "2"):
        main(["pretrain", "--method", "pairs", tsv.name, "--seed", seed, "--device", "cpu", *options(SMALL)])
    said = capsys.readouterr().out
    assert "mine: 270 pairs to train on, ids 270x" in said
    assert "30 pairs to test on: held out, drawn by split_seed 0" in said
    record = json.loads((tmp_path / "runs/mine/seed-1/record.json").read_text())
    assert record["data"] == {"name": "mine", "train": 270, "test": 30}
    assert record["final"]["recall1"] > 0.8
    assert record["recipe"]["data"]["source"] == "mine.tsv"
    assert f"recall1: {100 * record['final']['recall1']:.2f} %" in said
    run = sw.load_run("runs/mine/seed-1")
    assert run.recipe.data.source == str(tsv), "so that it is found from elsewhere"
    assert run.encoder(torch.tensor([[3, 5, 0]])).shape == (1, 16)
    main(["embed", "runs/mine/seed-1", tsv.name, "--out", "z.npy", "--device", "cpu"])
    _, test = pair_data(run.recipe, None)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:30].sort().values.numpy()
    z_a, z_b = (torch.from_numpy(np.load(f"z-{side}.npy")[order]) for side in ("first", "second"))
    assert pair_retrieval(z_a, z_b) == record["final"]
    for mine, theirs in zip(run.embed_pairs(test, device="cpu"), (z_a, z_b), strict=True):
        torch.testing.assert_close(mine, theirs)
    Image.new("RGB", (8, 8)).save("black.png")
    (tmp_path / "captions.tsv").write_text("black.png\tnothing\n")
    for words, message in (
        (["embed", "runs/mine/seed-1", tsv.name, "--out", "z.parquet"], "expected a file that ends in .npy"),
        (["embed", "runs/mine/seed-1", "digits", "--out", "z.npy"], "expected a run whose encoder takes images"),
        (
            ["embed", "runs/mine/seed-1", "captions.tsv", "--out", "none.npy"],
            r"2048 and 2048\), got .* 3 x 8 x 8 and 2048",
        ),
        (["export", "runs/mine/seed-1"], "expected a run whose encoder takes images"),
        (["probe", "runs/mine/seed-1"], "expected images, got PairSet"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(words)
    main(["report", "runs", "--out", "page"])
    table = (tmp_path / "page/runs.csv").read_text()
    assert "recall1," in table.splitlines()[0]
    assert "matching accuracy" in table.splitlines()[0]


def test_what_is_held_out_and_what_is_trained_on(tsv):
    texts = tsv.read_text().splitlines()
    recipe = RECIPE.changed({"data.source": str(tsv), "data.validation": 50, "data.split_seed": 3})
    train, test = pair_data(recipe, None)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(3))
    assert (len(train), len(test), test.split) == (250, 50, "validation")
    whole = sw.data.load_pairs(tsv)
    assert torch.equal(test.second.values, whole.second.values[order[:50].sort().values])
    few, same = pair_data(recipe.changed({"data.instances": 100}), None)
    assert torch.equal(few.first.values, train.first.values[:100])
    assert torch.equal(same.first.values, test.first.values)
    assert len(texts) == len(whole)
    for changes, message in (
        ({"data.validation": 300}, "expected validation below the 300 pairs, got 300"),
        ({"data.instances": 251}, "expected instances of at most the 250 training pairs, got 251"),
    ):
        with pytest.raises(ValueError, match=message):
            pair_data(recipe.changed(changes), None)


def stop_and_resume(pretrain, tmp_path):
    """A run that a signal stops in its second epoch, and that goes on; it ends as one that nothing stopped."""
    whole = pretrain(out=tmp_path / "whole")
    step = Engine.step

    def stopping(engine):
        step(engine)
        if (engine.epoch, engine.step_in_epoch) == (1, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "step", stopping)
        with pytest.raises(Interrupted):
            pretrain(out=tmp_path / "stopped")
    found = pretrain(out=tmp_path / "stopped")
    assert found.record["final"] == whole.record["final"]
    mine, theirs = (checkpoint.load(tmp_path / name).tensors for name in ("whole", "stopped"))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(x, theirs[name]) for name, x in mine.items())
    return found


def test_a_stopped_run_ends_as_if_it_had_not(tsv, tmp_path):
    learn = {"method.learn_temperature": True, "terms": [{"term": "gap", "weight": 3.0}], "epochs": 2}
    pretrain = partial(sw.pretrain, tsv, changes=SMALL | learn, device="cpu", resume=True)
    stop_and_resume(pretrain, tmp_path)
    with pytest.raises(ValueError, match="expected the checkpoint .* data.ngrams"):
        sw.pretrain(tsv, changes=SMALL | learn | {"data.ngrams": "2"}, out=tmp_path / "whole", resume=True)


def test_pairs_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    hidden = torch.randn(200, 6)
    sides = [Side((hidden @ torch.randn(6, width)).relu()) for width in (20, 30)]
    pairs = PairSet("frozen", "train", *sides)
    run = sw.pretrain(pairs, encoder="mlp", changes={"epochs": 20, "batch": 50}, device="cpu")
    assert (run.folder.as_posix(), run.record["final"]["recall5"] > 0.8) == ("runs/frozen/seed-1", True)
    assert run.recipe.data.source == "python:frozen"


@pytest.mark.parametrize("first", ["ids", "features", "images"])
def test_the_kinds_of_the_sides_choose_the_encoders(first, tmp_path):
    sides = {"ids": Side(torch.ones(20, 3, dtype=torch.int32), 9), "features": Side(torch.randn(20, 4))}
    sides["images"] = Side(torch.zeros(20, 3, 8, 8, dtype=torch.uint8))
    wanted = {"ids": "bag", "features": "mlp", "images": "resnet18"}
    for second, side in sides.items():
        pairs = PairSet("any", "train", sides[first], side)
        changes = {"epochs": 1, "batch": 8}
        run = sw.pretrain(pairs, changes=changes, device="cpu", evaluate=False, out=tmp_path / second)
        found = run.recipe
        assert (found.encoder.name, (found.second_encoder or found.encoder).name) == (wanted[first], wanted[second])


def test_features_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    hidden = torch.randn(200, 6)
    for name, width in (("questions", 20), ("answers", 30)):
        np.save(tmp_path / f"{name}.npy", (hidden @ torch.randn(6, width)).numpy())
    command = ["pretrain", "--method", "pairs", "questions.npy", "--data.second", "answers.npy", "--device", "cpu"]
    main([*command, "--epochs", "20", "--batch", "50", "--lr", "0.01"])
    record = json.loads((tmp_path / "runs/questions/seed-1/record.json").read_text())
    assert record["final"]["recall1"] > 0.8
    assert (record["recipe"]["encoder"]["name"], record["recipe"]["method"]["head"]) == ("mlp", "none")
    data = record["recipe"]["data"]
    assert (data["source"], data["second"]) == ("questions.npy", "answers.npy"), "paths are private"
    for name in ("questions", "answers"):
        np.save(tmp_path / f"more-{name}.npy", np.load(f"{name}.npy")[5:9])
    embed = ["embed", "runs/questions/seed-1", "--device", "cpu"]
    main([*embed, "questions.npy", "--out", "z.npy"])
    main([*embed, "more-questions.npy", "--second", "more-answers.npy", "--out", "more.npy"])
    for side in ("first", "second"):
        np.testing.assert_allclose(np.load(f"more-{side}.npy"), np.load(f"z-{side}.npy")[5:9], rtol=1e-5, atol=1e-6)
    with pytest.raises(SystemExit, match=r"got 4 in more-questions.npy and 200 in answers.npy"):
        main([*embed, "more-questions.npy", "--out", "none.npy"])
    with pytest.raises(SystemExit, match="expected pairs beside --second, got digits"):
        main([*embed, "digits", "--second", "more-answers.npy", "--out", "none.npy"])
    assert not list(tmp_path.glob("none*"))


def test_images_and_captions_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}
    lines = []
    for k in range(40):
        name, colour = list(colours.items())[k % 4]
        Image.new("RGB", (8, 8), colour).save(tmp_path / "photos" / f"{k}.png")
        lines.append(f"{k}.png\tit is {name}\n")
    (tmp_path / "photos/captions.tsv").write_text("".join(lines))
    main(["pretrain", "photos/captions.tsv", "--encoder", "conv4", "--epochs", "2", "--batch", "8", "--device", "cpu"])
    said = capsys.readouterr().out
    assert "photos: 36 pairs to train on, images 36x3x8x8 and ids 36x" in said
    assert "8x8 pixels (height x width), as all of them are" in said
    record = json.loads((tmp_path / "runs/photos/seed-1/record.json").read_text())
    assert (record["data"]["test"], record["recipe"]["second_encoder"]["name"]) == (4, "bag")


@pytest.fixture
def photos(tmp_path):
    """Forty photos with one to five captions each, 120 in all."""
    folder, draw, lines = tmp_path / "photos", random.Random(1), []
    folder.mkdir()
    for k in range(40):
        Image.new("RGB", (8, 8), tuple(draw.randrange(256) for _ in range(3))).save(folder / f"{k}.png")
        lines += [f"{k}.png\tword{k} and {draw.choice(['a', 'b'])}\n" for _ in range(1 + k % 5)]
    draw.shuffle(lines)
    (folder / "captions.tsv").write_text("".join(lines))
    return folder / "captions.tsv"


def test_no_image_is_on_both_sides_of_the_split(photos):
    whole = sw.data.load_pairs(photos)
    recipe = recipe_by_name("pairs/captions-resnet18-infonce").changed({"data.source": str(photos)})
    for validation, seed in ((0, 0), (30, 1), (5, 2), (1, 3)):
        changes = {"data.validation": validation, "data.split_seed": seed}
        train, test = pair_data(recipe.changed(changes), None)
        assert len(train) + len(test) == len(whole)
        assert not set(train.labels.tolist()) & set(test.labels.tolist())
        assert len(test) <= max(validation or 12, 5)
        assert len(test) > (validation or 12) - 5, "one image more would be too many"
        assert len(test.first.values) == len(test.labels.unique()), "no image that is not used"
        again = pair_data(recipe.changed(changes), None)[1]
        assert torch.equal(again.second.values, test.second.values)
    one = PairSet("one", "train", whole.second, whole.second, labels=torch.zeros(120, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected pairs of at least two labels"):
        pair_data(recipe.changed({"data.source": "python:one"}), None, one)


def test_a_stopped_run_on_several_captions_ends_as_if_it_had_not(photos, tmp_path):
    changes = {"encoder": "conv4", "epochs": 2, "batch": 16}
    pretrain = partial(sw.pretrain, photos, changes=changes, device="cpu", resume=True)
    found = stop_and_resume(pretrain, tmp_path)
    z_a, z_b = found.embed_pairs(photos, device="cpu")
    assert len(z_a) == len(z_b) == 120, "row by row"
    plain = replace(sw.data.load_pairs(photos), labels=None)
    other = sw.pretrain(plain, changes=changes | {"objective.loss": "triplet"}, device="cpu", out=tmp_path / "other")
    assert len(other.embed_pairs(photos, device="cpu")[0]) == 120, "a loss without labels is no hindrance"


def test_photos_and_captions_of_products_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    draw, lines = random.Random(0), ["image\tcaption\tproduct"]
    for k in range(48):
        Image.new("RGB", (8, 8), tuple(draw.randrange(256) for _ in range(3))).save(tmp_path / "photos" / f"{k}.png")
        lines += [f"{k}.png\tit is {k} {more}\tproduct {k % 24}" for more in ("now", "still")]
    (tmp_path / "photos/captions.tsv").write_text("\n".join(lines))
    command = ["pretrain", "--method", "pairs", "photos/captions.tsv", "--data.sets", "product", "--device", "cpu"]
    main([*command, "--encoder", "conv4", "--epochs", "1", "--batch", "16", "--lr", "0.01", "--data.validation", "12"])
    said = capsys.readouterr().out
    assert "photos: 84 pairs to train on" in said
    assert "training knows their 21 sets of 4 to 4 pairs, and not the pairs" in said
    record = json.loads((tmp_path / "runs/photos/seed-1/record.json").read_text())
    assert (record["data"]["test"], record["recipe"]["data"]["sets"]) == (12, "product"), "whole products are held out"
    recipe = Recipe.read(record["recipe"]).changed({"data.source": str(tmp_path / "photos/captions.tsv")})
    train, test = pair_data(recipe, None)
    assert not set(train.sets.tolist()) & set(test.sets.tolist())
    method = untrained(recipe, train, 1)
    z_a, z_b = embed_pairs(method, test, torch.device("cpu"))
    pictures = test.first.rows
    first = torch.tensor([int((pictures == k).nonzero()[0]) for k in pictures.unique()])
    scores = torch.nn.functional.normalize(z_a) @ torch.nn.functional.normalize(z_b).T
    there = [bool((pictures[scores[k].topk(5).indices] == pictures[k]).any()) for k in first]
    back = [
        bool((pictures[first[row.topk(5).indices]] == pictures[k]).any()) for k, row in enumerate(scores.T[:, first])
    ]
    found = evaluate_pairs(method, test, torch.device("cpu"))
    assert found["recall5_first_to_second"] == pytest.approx(np.mean(there)), "any caption of the image"
    assert found["recall5_second_to_first"] == pytest.approx(np.mean(back))


def test_halves_by_their_recipe(tmp_path):
    changes = {"epochs": 2, "data.instances": 400, "method.truth": "one-to-one"}
    run = sw.pretrain(recipe="pairs/digits-halves-resnet8-infonce-sets", changes=changes, out=tmp_path, device="cpu")
    assert (run.recipe.data.options["group"], run.record["data"]["name"]) == (8, "digits-halves")
    assert run.record["final"]["recall10"] > 0.06, "by chance 0.02"
    by_name = compose(None, {"data.source": "halves", "method": "pairs"})
    assert by_name.name == "pairs/digits-halves-resnet8-infonce"


@pytest.fixture
def documents(tsv, tmp_path):
    """The same sentences in documents of three to six, the lines of all in a random order."""
    draw, lines = random.Random(2), tsv.read_text().splitlines()
    rows, document = [], 0
    while lines:
        rows += [f"{lines.pop()}\tdocument {document}\n" for _ in range(min(len(lines), draw.randrange(3, 7)))]
        document += 1
    draw.shuffle(rows)
    path = tmp_path / "documents.tsv"
    path.write_text("a\tz\tdocument\n" + "".join(rows))
    return path


def test_documents_from_the_command_line(documents, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["pretrain", "--method", "pairs", documents.name, "--data.sets", "document", "--device", "cpu"]
    main([*command, *options(SMALL | {"epochs": 12})])
    said = capsys.readouterr().out
    assert "sets of 3 to 6 pairs, and not the pairs" in said
    record = json.loads((tmp_path / "runs/documents/seed-1/record.json").read_text())
    assert record["recipe"]["data"]["sets"] == "document"
    assert record["final"]["recall1"] > 0.7, "pairs that nobody had told"
    assert record["data"]["train"] + record["data"]["test"] == 300
    main(["embed", "runs/documents/seed-1", documents.name, "--out", "z.npy", "--device", "cpu"])
    assert len(np.load("z-first.npy")) == 300
    z_a, z_b = np.load("z-first.npy"), np.load("z-second.npy")
    sets = sw.data.load_pairs(documents, options={"sets": "document"}).sets
    found = sw.align(z_a, z_b, sets=(sets, sets))
    assert (found.partner == torch.arange(300)).double().mean() > 0.95
    plain = [line.rsplit("\t", 1)[0] for line in documents.read_text().splitlines()[1:]]
    (tmp_path / "plain.tsv").write_text("\n".join(plain))
    main(["embed", "runs/documents/seed-1", "plain.tsv", "--out", "plain.npy", "--device", "cpu"])
    np.testing.assert_array_equal(np.load("plain-first.npy"), z_a, "pairs without sets, too")
    with pytest.raises(SystemExit, match="expected no second side to be named for plain.tsv"):
        main(["embed", "runs/documents/seed-1", "plain.tsv", "--second", "x.npy", "--out", "none.npy"])


def test_training_sees_no_pairs_and_the_test_true_ones(documents):
    recipe = RECIPE.changed({"data.source": str(documents)}).changed({"data.sets": "document"})
    whole = sw.data.load_pairs(documents, options={"sets": "document"})
    train, test = pair_data(recipe, None)
    assert not set(train.sets.tolist()) & set(test.sets.tolist())
    rows = {tuple(row): k for k, row in enumerate(whole.first.values.tolist())}
    seconds = {tuple(row): k for k, row in enumerate(whole.second.values.tolist())}
    for part, true in ((test, True), (train, False)):
        a, b = (
            [where[tuple(row)] for row in side.values.tolist()]
            for where, side in ((rows, part.first), (seconds, part.second))
        )
        assert (a == b) is true
        assert whole.sets[a].tolist() == whole.sets[b].tolist() == part.sets.tolist()
        assert sorted(a) == sorted(b)
    assert np.mean(np.array(a) == np.array(b)) < 0.4, "one of four or five, by chance"


@pytest.mark.parametrize("anneal", [None, 0.6])
def test_a_stopped_run_on_sets_ends_as_if_it_had_not(documents, tmp_path, anneal):
    changes = SMALL | {"epochs": 2, "data.sets": "document"}
    if anneal is not None:
        changes |= {"method.truth": "one-to-one", "method.anneal": anneal, "method.price": -0.1}
    pretrain = partial(sw.pretrain, documents, changes=changes, device="cpu", resume=True)
    stop_and_resume(pretrain, tmp_path)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_pairs_to_train_on(tmp_path, count):
    path = tmp_path / "few.tsv"
    path.write_text("a dog\tein Hund\n" * count)
    with pytest.raises(ValueError, match=r"expected at least two pairs.* got 1.*; add others"):
        sw.pretrain(path, changes={"epochs": 1}, device="cpu", out=tmp_path / "run")


def test_few_pairs_and_no_evaluation(tmp_path):
    pairs = PairSet("few", "train", *(Side(torch.randn(12, 4)) for _ in "ab"))
    run = sw.pretrain(pairs, encoder="mlp", changes={"epochs": 1, "batch": 4}, device="cpu", out=tmp_path / "a")
    assert run.record["final"] == {}, "one held out says nothing"
    same = replace(pairs, labels=torch.arange(12) // 4)
    run = sw.pretrain(same, encoder="mlp", changes={"epochs": 1, "batch": 4}, device="cpu", out=tmp_path / "c")
    assert (run.record["final"], run.record["data"]["test"]) == ({}, 4), "nor does one label"
    run = sw.pretrain(
        pairs,
        encoder="mlp",
        changes={"epochs": 1, "batch": 4, "data.validation": 4},
        evaluate=False,
        out=tmp_path / "b",
    )
    assert (run.record["final"], run.record["data"]["train"]) == ({}, 8)


def test_other_pairs_are_read_as_the_run_read_its_own(tmp_path):
    (tmp_path / "multi30k").mkdir()
    for language in ("en", "de"):
        for split, count in (("train", 30), ("test_2016_flickr", 10)):
            text = "".join(f"{language}{k} und {k % 7}\n" for k in range(count))
            (tmp_path / "multi30k" / f"{split}.{language}").write_text(text)
    changes = {"epochs": 1, "batch": 8, "data.vocabulary": 64, "data.ngrams": "2", "data.second": "de"}
    run = sw.pretrain("multi30k", changes=changes, device="cpu", root=tmp_path, out=tmp_path / "run")
    path = tmp_path / "own.tsv"
    path.write_text("".join(f"en{k} und {k % 7}\tde{k} und {k % 7}\n" for k in range(10)))
    _, test = pair_data(run.recipe, tmp_path)
    for mine, theirs in zip(run.embed_pairs(path), run.embed_pairs(test), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(ValueError, match="expected the data that .* was trained on .* second_shape differ"):
        run.embed_pairs(PairSet("other", "all", test.first, Side(torch.randn(10, 3))))


@pytest.mark.gpu
@pytest.mark.parametrize("known", ["pairs", "sets"])
def test_a_captured_step_on_a_gpu_is_the_same(tsv, documents, known):
    file = {"data.source": str(tsv)} if known == "pairs" else {"data.source": str(documents), "data.sets": "document"}
    recipe = RECIPE.changed(file | SMALL | {"method.learn_temperature": True})
    train, _ = pair_data(recipe, None)
    engines = [Engine(recipe, train, seed=1, device=torch.device("cuda"), capture=capture) for capture in (True, False)]
    for engine in engines:
        for epoch in range(2):
            engine.begin(epoch)
            for _ in range(engine.steps):
                engine.step()
    assert engines[0].means() == pytest.approx(engines[1].means(), rel=1e-4)
