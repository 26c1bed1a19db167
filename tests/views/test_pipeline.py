"""Views as a whole: presets, batches and processes that do not matter, errors, the contact sheet."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import setwise.register as register
from setwise.views import PRESETS, Views, contact_sheet, preset
from setwise.views.pipeline import add_preset


def batch(n, channels=3, height=16, width=16, seed=0):
    shape = (n, channels, height, width)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 16, 16), (1, 8, 8), (3, 9, 5)])
def test_batches_do_not_matter(name, channels, height, width):
    images, views = batch(67, channels, height, width), preset(name, mean=0.5, std=0.25)
    if views.size is not None:
        views = replace(views, size=(height // 2, width // 2))
    whole = views(images, samples=torch.arange(67), seed=5, epoch=2)
    for step in (1, 2, 3, 16, 50):
        for part in torch.arange(67).split(step):
            assert torch.equal(views(images[part], samples=part, seed=5, epoch=2), whole[part])
    mixed = torch.randperm(67, generator=torch.Generator().manual_seed(0))
    assert torch.equal(views(images[mixed], samples=mixed, seed=5, epoch=2), whole[mixed])


def test_threads_do_not_matter():
    images, views, samples = batch(3, 1, 200, 200), preset("matching"), torch.arange(3)
    whole = views(images, samples=samples, seed=5, epoch=2)
    try:
        torch.set_num_threads(2)
        assert torch.equal(views(images, samples=samples, seed=5, epoch=2), whole)
        for part in samples.split(1):
            assert torch.equal(views(images[part], samples=part, seed=5, epoch=2), whole[part])
    finally:
        torch.set_num_threads(1)


def test_large_batches_are_worked_on_in_parts(monkeypatch):
    images, samples, views = batch(40), torch.arange(40), replace(preset("byol"), solarize=0.5)
    whole = views(images, samples=samples, seed=0, epoch=0)
    monkeypatch.setattr("setwise.views.render.CHUNK", 2000)
    monkeypatch.setattr("setwise.views.blur.CPU_CHUNK", 3000)
    assert torch.equal(views(images, samples=samples, seed=0, epoch=0), whole)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["self-supervised", "supervised", "photos", "byol"])
def test_one_view_two_or_several(name, channels_last):
    images, views = batch(9), preset(name)
    keys = {"samples": torch.arange(100, 109), "seed": 1, "epoch": 4, "channels_last": channels_last}
    whole = views.several(images, 6, **keys)
    assert whole.shape == (6, 9, 3, 16, 16)
    pair = views.pair(images, **keys)
    assert torch.equal(whole[:2], pair)
    assert pair.flatten(0, 1).data_ptr() == pair.data_ptr()
    for first, count in ((0, 3), (1, 1), (2, 4), (5, 1)):
        part = views.several(images, count, first=first, **keys)
        assert torch.equal(part, whole[first : first + count]), "numbers decide, not how many are drawn"
    one = views(images, view=3, **keys)
    assert torch.equal(one, whole[3])
    for view in (*pair, one):
        assert view.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert len({view.sum().item() for view in whole}) == 6


def test_smaller_views():
    """Multi-crop's: the view of the image's size, reduced; the same whichever batch it is drawn in."""
    images, keys = batch(5), {"seed": 1, "epoch": 4}
    views, rows = replace(preset("self-supervised"), size=(8, 6)), torch.arange(5)
    found = views.several(images, 2, first=2, samples=rows, channels_last=True, dtype=torch.bfloat16, **keys)
    assert (found.shape, found.dtype) == ((2, 5, 3, 8, 6), torch.bfloat16)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    small = views.several(images, 2, first=2, samples=rows, **keys)
    assert torch.equal(small[:, 3:], views.several(images[3:], 2, first=2, samples=rows[3:], **keys))
    whole = replace(views, size=None).several(images, 2, first=2, samples=rows, **keys)
    means = torch.nn.functional.avg_pool2d(whole.flatten(0, 1), 4)
    even = replace(views, size=(4, 4)).several(images, 2, first=2, samples=rows, **keys).flatten(0, 1)
    assert (even - means).abs().mean() < 0.03, "no pixel is left out"
    assert torch.equal(replace(views, size=(16, 16)).several(images, 2, first=2, samples=rows, **keys), whole)
    with pytest.raises(ValueError, match=r"expected views of at most \(16, 16\), the images' size, got \(20, 8\)"):
        replace(views, size=(20, 8)).several(images, 2, samples=rows, **keys)
    with pytest.raises(ValueError, match=r"expected size to be \(height, width\)"):
        replace(views, size=(8, 0))


def test_parts_are_pixels_of_the_image_as_they_are():
    """Each is found in its image, in a place that differs between views, samples, epochs and seeds alone."""
    generator, keys = torch.Generator().manual_seed(5), {"seed": 1, "epoch": 4}
    images, rows = torch.randint(256, (40, 3, 12, 14), generator=generator, dtype=torch.uint8), torch.arange(40)
    views = Views(crop="part", size=(5, 6))
    found = views.several(images, 3, first=1, samples=rows, **keys)
    assert found.shape == (3, 40, 3, 5, 6)
    windows = images.float().div(255).unfold(2, 5, 1).unfold(3, 6, 1)  # [B, C, 8, 9, 5, 6]
    same = (windows - found[:, :, :, None, None]).abs().amax((2, 5, 6)) < 1e-6  # [V, B, 8, 9]
    assert (same.flatten(2).sum(2) == 1).all()
    places = same.flatten(2).int().argmax(2)
    assert len(places.unique()) > 50, "of the 72 places, 120 draws leave 13 or 14 out"
    assert all((places[i] != places[j]).sum() > 30 for i, j in ((0, 1), (0, 2), (1, 2)))
    again = views.several(images[7:9], 1, first=2, samples=rows[7:9], **keys)
    assert torch.equal(again[0], found[1, 7:9]), "whichever batch it is drawn in"
    other = views.several(images, 3, first=1, samples=rows, seed=1, epoch=5)
    assert (other != found).flatten(2).any(2).sum() > 100
    mirrored = replace(views, flip=1.0).several(images, 3, first=1, samples=rows, **keys)
    torch.testing.assert_close(mirrored, found.flip(-1))
    last = views.several(images, 3, samples=rows, channels_last=True, dtype=torch.bfloat16, **keys).flatten(0, 1)
    assert last.is_contiguous(memory_format=torch.channels_last)
    whole = replace(views, size=None).several(images, 2, samples=rows, **keys)
    assert torch.equal(whole, Views().several(images, 2, samples=rows, **keys)), "without a size all of it"
    with pytest.raises(ValueError, match=r"expected views of at most \(12, 14\), the images' size, got \(13, 2\)"):
        replace(views, size=(13, 2)).several(images, 2, samples=rows, **keys)
    with pytest.raises(ValueError, match="expected crop to be one of 'none', 'resized', 'padded', got 'part'"):
        views.draw(rows, (12, 14), **keys)


def test_colours_of_parts_are_drawn_for_each_view():
    images, rows, keys = batch(6), torch.arange(6), {"seed": 1, "epoch": 4}
    views = replace(preset("self-supervised"), crop="part", size=(9, 9))
    found = views.several(images, 2, samples=rows, **keys)
    plain = replace(views, jitter=0.0, grey=0.0, flip=0.0)
    for view, cut in enumerate(plain.several(images, 2, samples=rows, **keys)):
        bytes_of = (cut * 255).round().byte()  # the cut parts again, whose colours the same numbers decide
        expected = replace(views, crop="none", size=None)(bytes_of, samples=rows, view=view, **keys)
        torch.testing.assert_close(found[view], expected)


def test_views_have_the_size_of_their_part_of_training():
    views = replace(preset("modern"), early=(12, 24), until=(0.25, 0.75))
    sizes = {share: views.at(share).size for share in (0.0, 0.24, 0.25, 0.74, 0.75, 1.0)}
    assert sizes == {0.0: (12, 12), 0.24: (12, 12), 0.25: (24, 24), 0.74: (24, 24), 0.75: None, 1.0: None}
    assert preset("modern").at(0.0) == preset("modern")
    grown = replace(views, size=(26, 28))
    assert [grown.at(share).size for share in (0.0, 0.5, 0.75)] == [(12, 12), (24, 24), (26, 28)], "the size comes last"
    for early, until in (((12,), ()), ((12, 24), (0.5, 0.5)), ((12,), (0.0,)), ((12,), (1.0,)), ((12, 24), (0.7, 0.3))):
        with pytest.raises(ValueError, match="expected until to have a share of training between 0 and 1"):
            replace(preset("modern"), early=early, until=until)
    with pytest.raises(ValueError, match="expected early to be numbers of pixels above 0, got"):
        replace(preset("modern"), early=(0,), until=(0.5,))


def test_a_preset_of_ones_own_is_an_entry_with_all_numbers_as_options(monkeypatch):
    monkeypatch.setattr(register.views, "_entries", dict(register.views._entries))
    monkeypatch.setitem(PRESETS, "grey", None)
    add_preset("grey", Views(grey=1.0, flip=0.5), about="Always grey.")
    made = register.views.make("grey", {"flip": "0.25", "area": [0.2, 1]}, mean=(0.5,), std=(0.2,))
    assert (
        made
        == Views(grey=1.0, flip=0.25, area=(0.2, 1.0), mean=(0.5,), std=(0.2,))
        == replace(preset("grey", mean=(0.5,), std=(0.2,)), flip=0.25, area=(0.2, 1.0))
    )
    with pytest.raises(ValueError, match="expected an option of 'grey'.*got 'flipp'; did you mean 'flip'"):
        register.views.make("grey", {"flipp": 1}, mean=(0.5,), std=(0.2,))


def test_seed_and_epoch_as_tensors():
    images, samples, views = batch(9), torch.arange(9), preset("self-supervised")
    plain = views(images, samples=samples, seed=3, epoch=4)
    assert torch.equal(views(images, samples=samples, seed=torch.tensor(3), epoch=torch.tensor(4)), plain)


def test_presets_are_those_of_the_paper():
    colours = ("brightness", "contrast", "saturation")
    strong = {"crop": "resized", "area": (0.08, 1.0), "aspect": (3 / 4, 4 / 3), "flip": 0.5, "jitter": 0.8, "grey": 0.2}
    expected = {
        "self-supervised": Views(**strong, **dict.fromkeys(colours, 0.8), hue=0.2),
        "modern": Views(**strong, **dict.fromkeys(colours, 0.4), hue=0.1),
        "patches": Views(
            **strong | {"area": (0.25, 0.25), "aspect": (1.0, 1.0)}, **dict.fromkeys(colours, 0.4), hue=0.2
        ),
        "parts": Views(**strong | {"crop": "part"}, size=(16, 16), **dict.fromkeys(colours, 0.4), hue=0.2),
        "photos": Views(**strong | {"area": (0.2, 1.0)}, **dict.fromkeys(colours, 0.4), hue=0.1, blur=0.5),
        "byol": Views(
            **strong,
            **{"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1},
            **{"blur": (1.0, 0.1), "sigma": (0.1, 2.0), "solarize": (0.0, 0.2)},
        ),
        "supervised": Views(crop="padded", padding=4, flip=0.5),
        "matching": Views(flip=0.5, jitter=1.0, **dict.fromkeys(colours, 0.1), hue=0.1),
        "flip": Views(flip=0.5),
        "none": Views(),
    }
    assert {name: preset(name, mean=(0.5,), std=(0.2,)) for name in PRESETS} == {
        name: replace(views, mean=(0.5,), std=(0.2,)) for name, views in expected.items()
    }
    images = batch(3)
    torch.testing.assert_close(Views()(images, samples=torch.arange(3), seed=0, epoch=0), images / 255)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": batch(4) / 255}, "got torch.float32"),
        ({"images": batch(4).numpy()}, "got ndarray"),
        ({"images": batch(4)[0]}, r"got \(3, 16, 16\)"),
        ({"images": batch(4)[:, :2]}, r"C = 1 or 3, got \(4, 2, 16, 16\)"),
        ({"samples": torch.arange(3)}, r"expected samples of shape \(4,\).*got \(3,\)"),
        ({"samples": torch.arange(4).int()}, "got torch.int32"),
        ({"samples": [0, 1, 2, 3]}, "got list"),
        ({"seed": -1}, "expected seed .*got -1"),
        ({"seed": 2**63}, "expected seed .*got 9223372036854775808"),
        ({"epoch": 1.5}, "expected epoch .*got 1.5"),
        ({"epoch": torch.tensor([1])}, r"expected epoch .*got torch.int64, \(1,\)"),
        ({"first": -1}, "expected view .*got -1"),
        ({"count": 0}, "got count=0"),
        ({"dtype": torch.float16}, "got torch.float16"),
    ],
)
def test_bad_input(change, message):
    good = {"images": batch(4), "count": 1, "samples": torch.arange(4), "seed": 0, "epoch": 0}
    with pytest.raises(ValueError, match=message):
        preset("self-supervised").several(**good | change)


@pytest.mark.parametrize(("count", "channels"), [(3, 1), (1, 3)])
def test_a_normalisation_for_other_channels(count, channels):
    views, images, samples = Views(mean=(0.1,) * count, std=(0.2,) * count), batch(4, channels), torch.arange(4)
    message = rf"expected mean and std for the {channels} channel.*got \(0.1,"
    with pytest.raises(ValueError, match=message):
        views(images, samples=samples, seed=0, epoch=0)
    with pytest.raises(ValueError, match=message):
        views.apply(images, views.draw(samples, (16, 16), seed=0, epoch=0))


def test_bad_parameters():
    views, images = preset("self-supervised"), batch(4)
    good = views.draw(torch.arange(4), (16, 16), seed=0, epoch=0)
    for change, message in (
        ({"box": good.box[:3]}, r"expected box of shape \(4, 4\)"),
        ({"flip": good.flip.int()}, r"expected flip .*got \(4,\), torch.int32"),
        ({"order": torch.zeros_like(good.order)}, "expected order"),
        ({"blur": good.blur.double()}, r"expected blur of shape \(4,\), torch.float32"),
        ({"blur": good.blur - 1}, "expected blur to be sigmas"),
        ({"box": good.box + 16}, "expected boxes of 1 to 16 x 16 pixels"),
    ):
        with pytest.raises(ValueError, match=message):
            views.apply(images, good._replace(**change))
    with pytest.raises(ValueError, match="did you mean 'supervised'"):
        preset("supervized")


@pytest.mark.parametrize("number", [float, int, np.float32, np.int64])
def test_one_number_is_for_all_channels(number):
    one, std = number(2), number(4)
    each = Views(mean=(2.0,) * 3, std=(4.0,) * 3)
    for views in (Views(mean=one, std=std), Views(mean=one, std=(4.0,) * 3), preset("none", mean=one, std=std)):
        assert views.finish(3, torch.float32, False) == each.finish(3, torch.float32, False)
    assert Views(mean=one, std=std).finish(1, torch.float32, False).shift == (-0.5,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"crop": "resize"}, "expected crop to be one of .*did you mean 'resized'"),
        ({"flip": 1.5}, "expected flip to be at most 1, got 1.5"),
        ({"grey": -0.1}, "expected grey to be a finite number of at least 0"),
        ({"hue": 0.6}, "expected hue to be at most 0.5"),
        ({"brightness": float("nan")}, "expected brightness to be a finite number"),
        ({"area": (0.5, 0.1)}, "expected area to be two numbers"),
        ({"area": (0.0, 1.0)}, "expected area to be two numbers"),
        ({"aspect": (0.01, 1.0)}, "expected aspect to be"),
        ({"blur": 1.5}, "expected blur to be at most 1, got 1.5"),
        ({"blur": ()}, "expected blur to be a number or several, got none"),
        ({"solarize": (0.0, -0.2)}, "expected solarize to be a finite number of at least 0"),
        ({"sigma": (2.0, 0.1)}, "expected sigma to be two numbers"),
        ({"sigma": (0.0, 2.0)}, "expected sigma to be two numbers"),
        ({"padding": -1}, "expected padding"),
        ({"mean": (0.5, 0.5), "std": (0.5, 0.5)}, "expected mean and std of 1 or 3 numbers"),
        ({"mean": (0.5,), "std": (0.5,) * 3}, "expected mean and std of 1 or 3 numbers"),
        ({"mean": 0.5, "std": (0.5, 0.5)}, "expected mean and std of 1 or 3 numbers"),
        ({"mean": float("nan")}, "expected mean to be a finite number"),
        ({"std": 0.0}, "expected std to be a finite number above 0"),
        ({"std": (0.0,)}, "expected std to be a finite number above 0"),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(ValueError, match=message):
        Views(**change)


@pytest.mark.parametrize("channels", [1, 3])
def test_contact_sheet(channels):
    images, views = batch(3, channels, 8, 8), Views(mean=0.4, std=0.2)
    sheet = contact_sheet(images, views, columns=4)
    pixels = np.asarray(sheet)
    assert sheet.mode == "RGB"
    assert pixels.shape == (4 + 3 * 100, 12 + 5 * 100, 3)
    shown = np.moveaxis(images.numpy(), 1, 3)
    for row in range(3):
        for column in range(5):  # these views change nothing: every tile is the image, twelve times as large
            left = 4 + 100 * column + 8 * (column > 0)
            tile = pixels[4 + 100 * row :, left:][:96:12, :96:12]
            np.testing.assert_array_equal(tile, np.broadcast_to(shown[row], (8, 8, 3)))
    other = contact_sheet(images, preset("self-supervised"), columns=4, seed=1)
    assert np.abs(np.asarray(other, dtype=int) - pixels).mean() > 5
    with pytest.raises(ValueError, match="expected columns"):
        contact_sheet(images, views, columns=0)
    with pytest.raises(ValueError, match="expected at least one image"):
        contact_sheet(images[:0], views)
