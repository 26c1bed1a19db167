"""Blur against SciPy, solarisation against Pillow; views without them are untouched."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy.ndimage import gaussian_filter
from torch.overrides import TorchFunctionMode

from setwise.recipe import Recipe
from setwise.views import Views, blur, contact_sheet, preset
from setwise.views.draw import draw_blur

SIZES = [(224, 224), (33, 50), (8, 8), (2, 9), (40, 1)]


def batch(n, channels=3, height=16, width=16):
    shape = (n, channels, height, width)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(height), dtype=torch.uint8)


def unchanged(n, height, width):
    return Views().draw(torch.arange(n), (height, width), seed=0, epoch=0)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_blur_is_that_of_scipy(height, width, channels):
    """The filter of torchvision: its kernel ends after a tenth of the side, its images are mirrored at the edges."""
    images, sigmas = batch(5, channels, height, width), [0.1, 0.5, 1.3, 2.0, 30.0]
    radius = {224: 11, 33: 1, 8: 1, 2: 1, 40: 0}[height]
    parameters = unchanged(5, height, width)._replace(blur=torch.tensor(sigmas))
    got = Views().apply(images, parameters).numpy()
    for image, view, sigma in zip(images.double().numpy() / 255, got, sigmas, strict=True):
        expected = gaussian_filter(image, (0, sigma, sigma), mode="mirror", radius=radius)
        np.testing.assert_allclose(view, expected, atol=1e-6)


def test_solarisation_is_that_of_pillow():
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, -1, -1)
    got = Views().apply(images, unchanged(2, 16, 16)._replace(solarize=torch.tensor([True, False])))
    expected = np.asarray(ImageOps.solarize(Image.fromarray(images[0].movedim(0, 2).contiguous().numpy()), 128))
    np.testing.assert_array_equal((255 * got[0]).round().byte().movedim(0, 2).numpy(), expected)
    torch.testing.assert_close(got[1], images[1] / 255)


@pytest.mark.parametrize(("size", "tolerance"), [(None, 0.0), ((12, 10), 1e-5)])
def test_other_images_keep_their_bits(size, tolerance):
    """Of an image that is neither blurred nor solarised. Smaller views are normalised after they are reduced."""
    images, samples, keys = batch(60), torch.arange(60), {"seed": 3, "epoch": 2}
    views = replace(preset("photos", mean=0.4, std=0.3), size=size, solarize=0.3)
    found = views.several(images, 3, samples=samples, **keys)
    plain = replace(views, blur=0.0, solarize=0.0).several(images, 3, samples=samples, **keys)
    for view in range(3):
        drawn = views.draw(samples, (16, 16), view=view, **keys)
        same = (found[view] - plain[view]).abs().flatten(1).amax(1) <= tolerance
        kept, changed = (drawn.blur == 0) & ~drawn.solarize, drawn.blur > 0.5
        assert same[kept].all()
        assert not same[changed].any()
        assert min(kept.sum(), changed.sum()) > 10


def test_each_view_has_its_own_probability():
    samples, keys = torch.arange(5000), {"seed": 0, "epoch": 0}
    for view, blur_share, solarize_share in ((0, 1.0, 0.0), (1, 0.1, 0.2), (2, 0.1, 0.2)):
        drawn = preset("byol").draw(samples, (32, 32), view=view, **keys)
        assert (drawn.blur > 0).float().mean().item() == pytest.approx(blur_share, abs=0.02)
        assert drawn.solarize.float().mean().item() == pytest.approx(solarize_share, abs=0.02)
    drawn = preset("byol").draw(samples, (32, 32), **keys)
    assert 0.1 <= drawn.blur.min() < 0.11
    assert 1.99 < drawn.blur.max() <= 2.0


def test_small_views_are_blurred_in_their_own_size():
    images, samples, keys = batch(20, height=60, width=60), torch.arange(20), {"seed": 1, "epoch": 0, "first": 2}
    views = replace(preset("photos"), size=(41, 43), blur=1.0, solarize=0.5, mean=0.5, std=0.25)
    found = views.several(images, 2, samples=samples, **keys)
    sharp = replace(views, blur=0.0, solarize=0.0, mean=0.0, std=1.0).several(images, 2, samples=samples, **keys)
    for view in range(2):
        drawn = views.draw(samples, (60, 60), seed=1, epoch=0, view=2 + view)
        for row in range(20):
            sigma = drawn.blur[row].item()
            x = gaussian_filter(sharp[view, row].numpy(), (0, sigma, sigma), mode="mirror", radius=2)
            x = np.where(x < 0.5, x, 1 - x) if drawn.solarize[row] else x
            np.testing.assert_allclose(found[view, row].numpy(), (x - 0.5) / 0.25, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(61, 97), (224, 224)])
def test_batches_and_threads_do_not_matter(height, width):
    images, samples, views = batch(9, 3, height, width), torch.arange(9), preset("byol", mean=0.4, std=0.3)
    whole = views.pair(images, samples=samples, seed=5, epoch=2)
    try:
        torch.set_num_threads(2)
        for part in (samples, *samples.split(1), samples[3:5], samples.flip(0)):
            assert torch.equal(views.pair(images[part], samples=part, seed=5, epoch=2), whole[:, part])
    finally:
        torch.set_num_threads(1)


def test_the_way_of_a_gpu_is_the_same(monkeypatch):
    """There all images are blurred, those without blur by a sigma of 0."""
    images, samples = batch(50, 3, 45, 31), torch.arange(50)
    views, keys = replace(preset("photos", mean=0.4, std=0.3), solarize=0.4), {"seed": 5, "epoch": 2}
    expected = views.pair(images, samples=samples, **keys)
    monkeypatch.setattr(blur, "_rows", lambda x, drawn: [slice(0, 30), slice(30, 200)])
    assert torch.equal(views.pair(images, samples=samples, **keys), expected)


class NoCopies(TorchFunctionMode):
    """Raise where numbers of the host would be copied to a device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert getattr(function, "__name__", "") not in ("tensor", "as_tensor", "new_tensor"), function
        return function(*args, **kwargs or {})


def test_nothing_waits_for_a_device():
    """A meta tensor has no values: to ask for one, or for a shape made of some, raises. Copies to it raise too."""
    finish = Views(mean=0.4, std=0.3).finish(3, torch.bfloat16, channels_last=True)
    samples, key = (torch.empty(shape, dtype=torch.int64, device="meta") for shape in ((6,), ()))
    x, options = torch.empty(12, 3, 40, 50, device="meta"), {"sigma": (0.1, 2.0)}
    draw_blur(samples, key, key, 0, (1.0,), (0.0,), **options)  # constants of the generator are copied once
    with NoCopies():
        sigmas, solarize = draw_blur(samples, key, key, 0, (1.0, 0.1), (0.0, 0.2), **options)
        out = blur.finished(x, finish, blur=sigmas.flatten(), solarize=solarize.flatten())
    assert (out.dtype, out.shape) == (torch.bfloat16, x.shape)
    assert out.is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(NotImplementedError):
        sigmas.nonzero()
    with pytest.raises(AssertionError), NoCopies():
        x.new_tensor([1.0, 2.0])


def test_no_images_and_no_gradient():
    assert preset("byol").pair(batch(0), samples=torch.arange(0), seed=0, epoch=0).shape == (2, 0, 3, 16, 16)
    view = preset("byol")(batch(4), samples=torch.arange(4), seed=0, epoch=0)
    weight = torch.ones(3, 1, 1, requires_grad=True)
    (view * weight).sum().backward()
    assert not view.requires_grad
    assert weight.grad is not None


def test_a_recipe_has_them():
    recipe = Recipe.read({"views": {"preset": "photos"}})
    assert recipe.views.options["blur"] == 0.5
    changed = recipe.changed({"views.blur": "1,0.1", "views.sigma": "0.1,1", "views.solarize": "0.2"})
    assert changed.views.options | {"blur": (1.0, 0.1), "sigma": (0.1, 1.0), "solarize": 0.2} == changed.views.options
    assert Recipe.read(changed.tree()) == changed
    assert Recipe.read({"views": {"preset": "modern", "blur": [1, 0.1]}}).views.options["blur"] == (1.0, 0.1)


def test_the_contact_sheet_shows_them():
    images = batch(2, 1, 96, 96)
    sheet = np.asarray(contact_sheet(images, Views(blur=(1.0, 0.0), sigma=(2.0, 2.0), solarize=(0.0, 1.0)), columns=2))
    _, blurred, solarised = (sheet[4:100, 4 + 100 * k + 8 * (k > 0) :][:, :96, 0].astype(float) for k in range(3))
    image = images[0, 0].double().numpy()
    assert np.abs(blurred - gaussian_filter(image, 2.0, mode="mirror", radius=4)).max() <= 0.51
    np.testing.assert_array_equal(solarised, np.minimum(image, 255 - image))
