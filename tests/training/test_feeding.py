"""Images that stay outside of the device's memory train the same weights as images within it."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from setwise.data import DataError, ImageSet
from setwise.data.pixels import FilePixels, Pixels, StoredPixels
from setwise.recipe import Recipe
from setwise.training.engine import Engine
from setwise.training.loop import RunOptions, train

CPU = torch.device("cpu")
COUNT, SIZE, BATCH = 100, (16, 12), 24  # the last batch has 4
RECIPE = Recipe.read({"batch": BATCH, "epochs": 2, "encoder": "resnet8", "data": "digits"})


def outside(data: ImageSet, pixels: Pixels) -> ImageSet:
    return replace(data, images=torch.empty(pixels.shape, dtype=torch.uint8, device="meta"), pixels=pixels)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    random = np.random.default_rng(0)
    paths = [folder / f"{k}.png" for k in range(COUNT)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(path)
    return paths


@pytest.fixture(scope="module")
def resident(files) -> ImageSet:
    pixels = np.stack([np.asarray(Image.open(path)).transpose(2, 0, 1) for path in files])
    return ImageSet("own", "train", torch.from_numpy(pixels), torch.arange(COUNT) % 5, tuple("abcde"))


@pytest.fixture(params=["stored", "files"])
def elsewhere(request, resident, files, tmp_path) -> ImageSet:
    if request.param == "files":
        return outside(resident, FilePixels(files, SIZE, workers=2))
    resident.images.numpy().tofile(tmp_path / "images")
    return outside(resident, StoredPixels(tmp_path / "images", resident.images.shape))


def weights(recipe: Recipe, data: ImageSet, folder: Path, **how: object) -> dict[str, torch.Tensor]:
    engine, _ = train(recipe, data, folder, seed=3, how=RunOptions(CPU, quiet=True, **how))
    return engine.method.state_dict()


def assert_equal(got, expected) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        assert torch.equal(got[name], expected[name]), name


@pytest.mark.parametrize("method", ["contrastive", "deepcluster"])
def test_the_same_weights(elsewhere, resident, tmp_path, method):
    recipe = RECIPE.changed({"method": method})
    assert_equal(weights(recipe, elsewhere, tmp_path / "a"), weights(recipe, resident, tmp_path / "b"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("Thread-")]  # none reads ahead


def test_parts_and_chunks_are_the_same_images(elsewhere, resident):
    rows = torch.tensor([3, 99, 0, 50])
    assert torch.equal(elsewhere.read(rows), resident.images[rows])
    some, same = elsewhere.select(rows, split="some"), resident.select(rows, split="some")
    assert torch.equal(some.read(slice(1, 3)), same.images[1:3])
    assert torch.equal(some.labels, same.labels)
    assert torch.equal(torch.cat(list(elsewhere.chunks(33))), resident.images)


def test_any_step_can_be_gone_to(elsewhere, resident):
    """Forwards, back, and across the end of an epoch."""
    engine, reference = (Engine(RECIPE, data, seed=3, device=CPU) for data in (elsewhere, resident))
    for epoch, step, count in [(0, 1, 2), (0, 0, 1), (1, 4, 1), (0, 3, 2), (1, 0, 1)]:
        for one in (engine, reference):
            one.begin(epoch, step)
            for _ in range(count):
                one.step()
    engine.close()
    assert_equal(engine.tensors(), reference.tensors())


def test_a_file_that_breaks_while_training_is_named(resident, files, tmp_path):
    broken = tmp_path / "broken.png"
    broken.write_bytes(files[0].read_bytes()[:200])
    engine = Engine(RECIPE, outside(resident, FilePixels([*files[:-1], broken], SIZE, workers=2)), seed=3, device=CPU)
    engine.begin(0)
    with pytest.raises(DataError, match="broken.png"):
        all(engine.step() is None for _ in range(engine.steps))
    engine.close()


def test_a_resumed_run_goes_on_with_the_same_images(elsewhere, resident, tmp_path):
    """Stopped within an epoch, from a checkpoint after each step."""
    recipe = RECIPE.changed({"epochs": 1})
    whole = weights(recipe, resident, tmp_path / "whole")
    engine = Engine(recipe, elsewhere, seed=3, device=CPU)
    engine.begin(0)
    for _ in range(2):
        engine.step()
    engine.close()
    again = Engine(recipe, elsewhere, seed=3, device=CPU)
    again.restore(engine.tensors())
    again.begin(0, 2)
    for _ in range(3):
        again.step()
    again.close()
    assert_equal(again.method.state_dict(), whole)


@pytest.mark.gpu
@pytest.mark.parametrize("capture", [True, False])
def test_on_a_gpu_the_same_weights(elsewhere, resident, capture):
    """While captured steps run, the next batches are copied; the steps are the same to the bit."""
    found = []
    for data in (elsewhere, resident):
        engine = Engine(RECIPE, data, seed=3, device=torch.device("cuda"), capture=capture)
        for epoch in range(20):
            engine.begin(epoch)
            for _ in range(engine.steps):
                engine.step()
        engine.close()
        found.append({name: x.cpu() for name, x in engine.tensors().items()})
    assert_equal(*found)
