"""Views from given parameters against Pillow and NumPy references of torchvision's operations."""

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance
from scipy.ndimage import gaussian_filter

from setwise.views import Parameters, Views, preset
from setwise.views.render import shift_hue

WEIGHTS = np.array([0.2989, 0.587, 0.114])


def float_geometry(image, box, flip):
    """Crop, with black where it leaves the image, enlarge, flip: Pillow enlarges each channel as floats."""
    top, left, height, width = box
    _, h, w = image.shape
    ys, xs = np.arange(top, top + height), np.arange(left, left + width)
    inside = ((ys >= 0) & (ys < h))[:, None] & ((xs >= 0) & (xs < w))
    crop = np.where(inside, image[:, ys.clip(0, h - 1)][:, :, xs.clip(0, w - 1)], 0).astype(np.float32)
    planes = [Image.fromarray(plane).resize((w, h), Image.Resampling.BILINEAR) for plane in crop]
    moved = np.stack([np.asarray(plane, dtype=np.float64) for plane in planes]) / 255
    return moved[..., ::-1] if flip else moved


def lightness(x):
    """[H, W] of [C, H, W]."""
    return x[0] if len(x) == 1 else np.tensordot(WEIGHTS, x, 1)


def float_hue(x, turns):
    """torchvision's float path: to HSV, turn, and back by sextants."""
    if len(x) == 1:
        return x
    pixels = [colorsys.rgb_to_hsv(*p) for p in x.reshape(3, -1).T]
    turned = [colorsys.hsv_to_rgb((h + turns) % 1, s, v) for h, s, v in pixels]
    return np.array(turned).T.reshape(x.shape)


FLOAT_PARTS = [
    lambda x, f: np.clip(f * x, 0, 1),
    lambda x, f: np.clip(f * x + (1 - f) * lightness(x).mean(), 0, 1),
    lambda x, f: x if len(x) == 1 else np.clip(f * x + (1 - f) * lightness(x), 0, 1),
    float_hue,
]


def float_blur(x, sigma):
    """[C, H, W], the kernel 2 · radius + 1 pixels wide."""
    side = min(x.shape[1:])
    return gaussian_filter(x, (0, sigma, sigma), mode="mirror", radius=min(max(1, side // 20), side - 1))


def float_view(image, box, flip, jitter, factors, order, grey, blur, solarize):
    """The whole view in float64, clamped after each part and never rounded."""
    x = float_geometry(image, box, flip)
    for part in order if jitter else ():
        x = FLOAT_PARTS[part](x, factors[part])
    x = np.stack([lightness(x)] * len(x)) if grey and len(x) == 3 else x
    x = float_blur(x, blur) if blur else x
    return np.where(x < 0.5, x, 1 - x) if solarize else x


def pictures(n, channels, height, width, seed=0):
    """Smooth images with some noise and some extreme values: crops, blends and hues all have something to do."""
    rng = np.random.default_rng(seed)
    small = rng.uniform(-60, 315, (n, channels, 4, 4)).astype(np.float32)
    large = [
        [np.asarray(Image.fromarray(p).resize((width, height), Image.Resampling.BICUBIC)) for p in i] for i in small
    ]
    noisy = np.array(large) + rng.normal(0, 8, (n, channels, height, width))
    return torch.from_numpy(noisy.clip(0, 255).astype(np.uint8))


def nothing(n, height, width, **changed):
    """Parameters that change nothing, but for what is given."""
    fields = {
        "box": torch.tensor([[0, 0, height, width]], dtype=torch.int32).repeat(n, 1),
        "flip": torch.zeros(n, dtype=torch.bool),
        "jitter": torch.zeros(n, dtype=torch.bool),
        "factors": torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(n, 1),
        "order": torch.arange(4, dtype=torch.int32).repeat(n, 1),
        "grey": torch.zeros(n, dtype=torch.bool),
        "blur": torch.zeros(n),
        "solarize": torch.zeros(n, dtype=torch.bool),
    }
    return Parameters(**(fields | changed))


def levels(got, images, parameters, view):
    """Differences to the reference ``view`` in levels of 1 / 255."""
    rows = zip(*(x.tolist() for x in parameters), strict=True)
    expected = np.stack([view(image, *row) for image, row in zip(images.numpy(), rows, strict=True)])
    return 255 * np.abs(got.double().numpy() - expected)


@pytest.mark.parametrize("name", ["self-supervised", "supervised", "matching", "none", "photos", "byol"])
@pytest.mark.parametrize(("channels", "height", "width"), [(3, 32, 32), (3, 24, 12), (1, 8, 8), (3, 1, 1), (1, 5, 40)])
def test_whole_views(name, channels, height, width):
    images = pictures(40, channels, height, width)
    views = preset(name)
    parameters = views.draw(torch.arange(40), (height, width), seed=3, epoch=1, view=1)
    got = views.apply(images, parameters)
    assert torch.equal(views(images, samples=torch.arange(40), seed=3, epoch=1, view=1), got)
    assert got.shape == images.shape
    assert got.dtype == torch.float32
    assert levels(got, images, parameters, float_view).max() < 0.01
    assert -1e-6 < got.min() <= got.max() < 1 + 1e-6


@pytest.mark.parametrize("part", ["Brightness", "Contrast", "Color"])
def test_each_blend_is_what_pillow_does_in_bytes(part):
    images, factors = pictures(24, 3, 16, 16), torch.tensor([[1.0, 1.0, 1.0, 0.0]]).repeat(24, 1)
    strength = factors[:, ["Brightness", "Contrast", "Color"].index(part)]
    strength.copy_(torch.linspace(0, 1.8, 24))
    got = Views().apply(images, nothing(24, 16, 16, factors=factors, jitter=torch.ones(24, dtype=torch.bool)))
    for image, view, factor in zip(images.numpy(), got.numpy(), strength.tolist(), strict=True):
        expected = getattr(ImageEnhance, part)(Image.fromarray(np.moveaxis(image, 0, 2))).enhance(factor)
        assert np.mean(np.abs(255 * view - np.moveaxis(np.asarray(expected, dtype=float), 2, 0)) <= 2) >= 0.95


@given(st.tuples(*[st.integers(0, 255)] * 3), st.floats(-0.5, 0.5))
def test_hue_of_any_colour(colour, turns):
    x = torch.tensor(colour).div(255).view(1, 3, 1)
    h, s, v = colorsys.rgb_to_hsv(*x.flatten().tolist())
    shift_hue(x, torch.tensor([[turns]]))
    np.testing.assert_allclose(x.flatten().numpy(), colorsys.hsv_to_rgb((h + turns) % 1, s, v), atol=3e-6)


def test_normalisation_and_formats():
    images = pictures(5, 3, 6, 7)
    views = Views(mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    parameters = nothing(5, 6, 7)
    expected = (images / 255 - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(
        3, 1, 1
    )
    plain = views.apply(images, parameters)
    torch.testing.assert_close(plain, expected)
    for dtype in (torch.float32, torch.bfloat16):
        for last in (False, True):
            other = views.apply(images, parameters, dtype=dtype, channels_last=last)
            assert other.is_contiguous(memory_format=torch.channels_last) == last
            assert torch.equal(other, plain.to(dtype))
    assert torch.equal(views.apply(images.to(memory_format=torch.channels_last), parameters), plain)


def test_an_empty_batch():
    assert Views().apply(torch.empty(0, 3, 8, 8, dtype=torch.uint8), nothing(0, 8, 8)).shape == (0, 3, 8, 8)


def test_a_view_is_an_ordinary_tensor():
    images = pictures(2, 3, 8, 8)
    view = preset("self-supervised")(images, samples=torch.arange(2), seed=0, epoch=0)
    weight = torch.ones(3, 1, 1, requires_grad=True)
    (view * weight).sum().backward()
    assert not view.is_inference()
    assert weight.grad is not None
