"""What a run on one's own images chooses, and that a person's word counts more."""

import json
import sys
from pathlib import Path

import pytest
import torch

import setwise as sw
from setwise.cli import main
from setwise.front import BASE, DEFAULT
from setwise.paper.recipes import recipe
from setwise.runs import choices
from setwise.runs.choices import choose

CPU, GPU = "cpu", "cuda"


@pytest.mark.parametrize(
    ("count", "size", "device", "encoder", "batch", "epochs", "views"),
    [
        (1_797, (8, 8), CPU, "conv4", 64, 100, "modern"),
        (1_797, (8, 8), GPU, "conv4", 256, 400, "modern"),
        (1_797, (8, 7), GPU, "resnet8", 256, 400, "modern"),
        (300, (224, 224), CPU, "conv4", 64, 13, "self-supervised"),
        (300, (224, 224), GPU, "resnet18", 64, 400, "self-supervised"),
        (50_000, (32, 32), CPU, "conv4", 64, 5, "modern"),
        (50_000, (32, 32), GPU, "resnet18", 256, 200, "modern"),
        (2_000, (64, 65), CPU, "conv4", 64, 24, "self-supervised"),
        (1_281_167, (224, 224), GPU, "resnet18", 256, 20, "self-supervised"),
        (5_000, (512, 512), GPU, "resnet18", 32, 400, "self-supervised"),
        (2, (32, 32), CPU, "conv4", 2, 100, "modern"),
    ],
)  # fmt: skip
def test_images_and_device_decide(count, size, device, encoder, batch, epochs, views):
    found = {path: value for path, (value, _) in choose(count, *size, device).items()}
    assert found == {"encoder.name": encoder, "batch": batch, "epochs": epochs, "views.preset": views}


PARTS = {"method.views": 4, "method.against": "mean", "head.layers": 3, "objective.temperature": 0.2}
PARTS |= {"views.preset": "parts", "encoder.name": "quick", "optimizer.name": "muon", "optimizer.filters": True}
PARTS |= {"optimizer.lr": 7e-3}
NARROW = {"encoder.widths": (32, 64, 128), "encoder.depth": 2, "head.hidden": 256}


@pytest.mark.parametrize(
    ("count", "size", "device", "batch", "epochs", "cut", "more"),
    [
        (2_000, (32, 32), CPU, 64, 40, 16, NARROW),
        (2_000, (64, 64), CPU, 64, 10, 32, NARROW),
        (1_000, (48, 64), CPU, 64, 35, 24, NARROW),
        (100_000, (64, 64), CPU, 64, 5, 32, NARROW),
        (300, (20, 64), CPU, 64, 100, 10, NARROW),
        (50_000, (32, 32), GPU, 512, 200, 16, {}),
        (100_000, (64, 64), GPU, 512, 25, 32, {}),
        (600, (16, 17), GPU, 128, 400, 8, {}),
        (600, (1, 17), GPU, 128, 400, 1, {}),  # if a person wants parts of these
    ],
)  # fmt: skip
def test_small_images_are_cut_into_parts(count, size, device, batch, epochs, cut, more):
    found = {path: value for path, (value, _) in choose(count, *size, device, parts=True).items()}
    assert found == PARTS | {"batch": batch, "epochs": epochs, "views.size": (cut, cut)} | more


@pytest.mark.parametrize(
    ("size", "parts"),
    [((32, 32), True), ((16, 16), True), ((64, 16), True), ((15, 64), False), ((64, 65), False), ((224, 224), False)],
)  # fmt: skip
def test_images_of_16_to_64_pixels_suit_parts(size, parts):
    assert choices.suit_parts(*size) == parts


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, True),
        ({"epochs": 3, "batch": 8, "lr": 1e-3, "optimizer": "adam", "objective.temperature": 0.5, "seed": None}, True),
        ({"encoder": "conv4"}, False),
        ({"encoder.weights": "xavier"}, False),
        ({"views": "modern"}, False),
        ({"grey": 0.5}, False),
        ({"method": "byol", "objective": "built-in"}, False),
        ({"method.views": 3}, False),
    ],
)
def test_who_decides_about_network_method_or_views_gets_enlarged_crops(images, changes, parts):
    changes = {path: value for path, value in changes.items() if path != "seed"}
    base = recipe(BASE).changed({"warmup": 0})
    found = choices.recipe_for(base, images, device="cpu", changes=changes)
    assert (found.views["crop"] == "part") == parts
    if not parts:
        values = {path: value for path, (value, _) in choose(40, 20, 24, "cpu").items()}
        robust = {"optimizer": "adam", "schedule": "cosine", "drop_last": False, "about": found.about}
        assert found == base.changed(robust | values).changed(changes)
    else:
        assert found.changed({"views.size": (10, 10)}) == found
        assert all(found.changed({path: value}) == found for path, value in changes.items())


def test_a_batch_is_a_power_of_two_and_at_most_a_quarter():
    for count in range(8, 2000, 7):
        for device, parts in ((CPU, False), (GPU, False), (CPU, True), (GPU, True)):
            batch = choose(count, 40, 300, device, parts=parts)["batch"][0]
            assert batch.bit_count() == 1
            assert 2 <= batch <= count / 4


@pytest.fixture
def images():
    pixels = torch.randint(256, (40, 20, 24, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return sw.data.from_images(pixels, name="noise")


@pytest.fixture
def photos(images, tmp_path, monkeypatch):
    """The same images as files."""
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for k, image in enumerate(images.images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / "photos" / f"{k:02}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "photos"


def test_a_folder_and_images_of_python_choose_alike(photos, images):
    changes = {"epochs": 1}
    run = sw.pretrain("photos", changes=changes, device="cpu")
    other = sw.pretrain(images, changes=changes, device="cpu")
    assert (run.record["name"], other.record["name"]) == ("photos", "noise")
    assert (str(run.folder), str(other.folder)) == ("runs/photos/seed-1", "runs/noise/seed-1")
    own, base = run.recipe, recipe(BASE)
    chosen = (own.encoder.name, own.batch, own.epochs, own.views.name, own.optimizer.name, own.drop_last)
    assert chosen == ("quick", 8, 1, "parts", "muon", False)
    assert own.objective == base.changed({"objective.temperature": 0.2}).objective
    assert own.views["size"] == (10, 10)
    assert not own.objective.terms
    assert own.about == "chosen for 40 images of 20x24 on a CPU"
    trees = [one.recipe.tree() | {"data": None} for one in (run, other)]
    assert trees[0] == trees[1]
    assert run.record["final"] == other.record["final"]  # the same images, the same bits


def test_a_cpu_shrinks_large_images_unless_a_person_says_a_size(tmp_path, monkeypatch):
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").mkdir()
    for k in range(8):
        Image.effect_noise((192, 96), 60).convert("RGB").save(tmp_path / "large" / f"{k}.png")
    for words, shape in (([], [3, 32, 64]), (["--size", "40"], [3, 40, 40]), (["--data.largest", "96"], [3, 48, 96])):
        out = "-".join(["run", *words])
        main(["pretrain", "large", "--epochs", "1", "--device", "cpu", "--quiet", "--out", out, *words])
        run = sw.load_run(out)
        assert run.checkpoint.data["shape"] == shape
        assert run.embed("large").embeddings.shape == (8, 128 if min(shape[1:]) <= 40 else 64)
        main(["pretrain", "large", "--resume", "--device", "cpu", "--quiet", "--out", out, *words])
        assert sw.load_run(out).checkpoint.data["shape"] == shape


def test_a_form_of_images_that_is_not_taken_is_told_what_makes_it_one(photos):
    files = sorted(map(str, Path("photos").rglob("*.png")))
    with pytest.raises(ValueError, match="got list; sw.data.from_images"):
        sw.pretrain(files)
    with pytest.raises(ValueError, match="encoder as a name, got Linear; .*your-network"):
        sw.pretrain("photos", encoder=torch.nn.Linear(2, 2))
    run = sw.pretrain(sw.data.from_images(files), changes={"epochs": 1}, device="cpu", out="from-files")
    with pytest.raises(ValueError, match="got list; sw.data.from_images"):
        run.embed(files)
    assert sw.load_run("from-files/checkpoint.safetensors") == run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--encoder timm/vit_tiny_patch16_224", "expected the package timm"),
        ("--encoder torchvision/resnet18", "expected the package torchvision"),
        ("--logger wandb", "expected the package wandb"),
        ("--logger tensorboard", "expected the package tensorboard"),
        ("--out taken", "expected to use taken, got: File exists"),
        ("--out taken/run", "expected to use taken/run, got: Not a directory"),
    ],
)
def test_what_cannot_work_is_told_before_any_image_is_read(photos, monkeypatch, words, message):
    for package in ("timm", "torchvision", "torchvision.models", "wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("setwise.runs.pretraining.load", lambda *_, **__: pytest.fail("images were read"))
    Path("taken").touch()
    with pytest.raises(SystemExit, match=message):
        main(["pretrain", "photos", "--device", "cpu", *words.split()])
    assert sorted(map(str, Path().iterdir())) == ["photos", "taken"], "no empty folder is left"


def test_a_page_that_cannot_be_written_is_told_before_any_image_is_embedded(photos, monkeypatch):
    monkeypatch.setattr("setwise.runs.embed", lambda *_, **__: pytest.fail("images were embedded"))
    Path("taken").touch()
    for command in (["map", "run", "photos"], ["neighbours", "run", "photos", "--query", "photos/00.png"]):
        with pytest.raises(SystemExit, match="expected to use taken, got: File exists"):
            main([*command, "--device", "cpu", "--out", "taken/page.html"])


def test_a_person_decides_against_it(photos, capsys):
    words = ["--epochs", "1", "--encoder.weights", "xavier", "--batch", "4", "--term", "qare=0.5", "--device", "cpu"]
    main(["pretrain", "photos", *words])
    shown = capsys.readouterr().out
    assert "  batch 4: as asked\n" in shown
    assert "  encoder conv4: a small network, since a CPU is slow\n" in shown
    assert "view retrieval accuracy: " in shown
    found = sw.load_run("runs/photos/seed-1").recipe
    assert (found.batch, found.epochs, found.encoder["weights"]) == (4, 1, "xavier")
    assert [(one.term.name, one.weight) for one in found.objective.terms] == [("qare", 0.5)]
    with pytest.raises(SystemExit, match="got '--bach'; did you mean"):
        main(["pretrain", "photos", "--bach", "4"])
    main(["pretrain", "photos", "--recipe", DEFAULT, "--epochs", "1", "--device", "cpu", "--out", "named"])
    assert sw.load_run("named").recipe.encoder == recipe(DEFAULT).encoder
    assert sw.load_run("named").record["name"] == f"{DEFAULT} (changed)"


def test_a_run_in_the_way_is_met_before_an_image_is_read(photos, monkeypatch):
    words = ["pretrain", "photos", "--epochs", "1", "--device", "cpu", "--quiet"]
    main(words)
    monkeypatch.setattr("setwise.runs.pretraining.load", None)
    with pytest.raises(SystemExit, match="expected no run in runs/photos/seed-1.*--resume"):
        main(words)


def test_a_run_that_goes_on_keeps_what_it_chose(photos, monkeypatch):
    words = ["pretrain", "photos", "--size", "16", "--device", "cpu", "--quiet"]
    main([*words, "--epochs", "2", "--batch", "16"])
    before = sw.load_run("runs/photos/seed-1")
    monkeypatch.setattr(choices, "choose", lambda *images: {"batch": (2, "another version's rule")})
    main([*words[:2], "--resume", "--device", "cpu", "--quiet"])  # the run knows its size, too
    after = sw.load_run("runs/photos/seed-1")
    assert after.recipe == before.recipe
    with pytest.raises(SystemExit, match="batch 16, not 4"):
        main([*words, "--resume", "--batch", "4"])


def test_sets_by_name_keep_their_recipe(tmp_path):
    run = sw.pretrain("digits", changes={"epochs": 0}, evaluate=False, device="cpu", out=tmp_path)
    assert run.recipe == recipe(DEFAULT).changed({"epochs": 0})


def test_a_report_of_runs_without_labels(photos, capsys):
    for seed in (1, 2):
        sw.pretrain("photos", changes={"epochs": 1}, seed=seed, device="cpu")
    main(["report", "runs", "--out", "page"])
    table = (photos.parent / "page" / "runs.csv").read_text()
    values = [json.loads((photos.parent / f"runs/photos/seed-{n}/record.json").read_text())["final"] for n in (1, 2)]
    mean = 50 * sum(one["view_retrieval_accuracy"] for one in values)
    header, row = (line.split(",") for line in table.splitlines())
    assert float(row[header.index("view retrieval accuracy")]) == pytest.approx(mean)


def test_a_test_folder_without_classes_is_tested_on(photos):
    for split, count in (("train", 34), ("test", 6)):
        (photos / split).mkdir()
        for path in sorted(photos.glob("*.png"))[:count]:
            path.rename(photos / split / path.name)
    run = sw.pretrain("photos", changes={"epochs": 1}, device="cpu")
    assert run.record["data"] == {"name": "photos", "train": 34, "test": 6}
    assert run.record["final"]["view_retrieval_accuracy"] * 6 == pytest.approx(
        round(run.record["final"]["view_retrieval_accuracy"] * 6)
    )


def test_too_few_images_to_hold_any_out(images, tmp_path):
    few = images.select(torch.arange(14), split="train")
    run = sw.pretrain(few, changes={"epochs": 1, "batch": 4}, device="cpu", out=tmp_path)
    assert run.record["data"] == {"name": "noise", "train": 14}
    assert run.record["final"] == {}
