"""The random generator against published answers; the parameters against the documented procedure."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy import stats

from setwise.views import Views, preset
from setwise.views.draw import exponential, fallback_box
from setwise.views.philox import philox

N = 20_000
CIFAR = (32, 32)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # kat_vectors of Random123, philox4x32 with 10 rounds
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_known_answers(counter, key, expected):
    counter, key = (torch.tensor([int(word, 16) for word in words.split()]) for words in (counter, key))
    found = philox(counter[:, None].expand(4, 3), key)
    assert [f"{word:08x}" for word in found[:, 1].tolist()] == expected.split()
    assert (found == found[:, :1]).all()


def scalar_philox(counter, key):
    """Python integers, which do not wrap around."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q % 2**32, p >> 32 ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize("size", [CIFAR, (128, 64), (3, 40)])
def test_parameters_word_by_word(size):
    """The whole layout of docs and kernel in scalar Python, for seeds, samples and views of many bits."""
    views = preset("self-supervised")
    seed, epoch, view, samples = 2**40 + 12345, 77, 5, [0, 1, 2**33 + 7, *range(49_900, 50_001)]
    found = views.draw(torch.tensor(samples), size, seed=seed, epoch=epoch, view=view)
    for row, sample in enumerate(samples):
        blocks = [
            scalar_philox([sample % 2**32, sample >> 32, epoch, 16 * view + block], [seed % 2**32, seed >> 32])
            for block in range(8)
        ]
        box = None
        for attempt in range(10):
            u, v = (word / 2**32 for word in blocks[attempt // 2][attempt % 2 * 2 :][:2])
            area = size[0] * size[1] * (0.08 + 0.92 * u)
            aspect = math.exp(math.log(3 / 4) + v * math.log(16 / 9))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= size[1] and 0 < h <= size[0]:
                top, left = blocks[5][0] * (size[0] - h + 1) >> 32, blocks[5][1] * (size[1] - w + 1) >> 32
                box = [top, left, h, w]
                break
        assert found.box[row].tolist() == (box or list(fallback_box(size, (3 / 4, 4 / 3))))
        assert found.flip[row] == (blocks[5][2] / 2**32 < 0.5)
        assert found.jitter[row] == (blocks[5][3] / 2**32 < 0.8)
        low, high = [0.2, 0.2, 0.2, -0.2], [1.8, 1.8, 1.8, 0.2]
        factors = [a + (b - a) * word / 2**32 for a, b, word in zip(low, high, blocks[6], strict=True)]
        np.testing.assert_allclose(found.factors[row].numpy(), factors, rtol=1e-6, atol=1e-8)
        assert tuple(found.order[row].tolist()) == list(permutations(range(4)))[blocks[7][0] * 24 >> 32]
        assert found.grey[row] == (blocks[7][1] / 2**32 < 0.2)


def test_blur_and_solarisation_word_by_word():
    """They have a block of words of their own, and nothing else changes."""
    seed, epoch, samples = 2**40 + 12345, 77, [0, 1, 2**33 + 7, *range(49_900, 50_001)]
    views = replace(preset("self-supervised"), blur=(0.0, 0.9, 0.3), sigma=(0.5, 3.0), solarize=(0.6, 0.2))
    for view, (blur, solarize) in enumerate([(0.0, 0.6), (0.9, 0.2), (0.3, 0.2), (0.3, 0.2)]):
        found = views.draw(torch.tensor(samples), CIFAR, seed=seed, epoch=epoch, view=view)
        plain = preset("self-supervised").draw(torch.tensor(samples), CIFAR, seed=seed, epoch=epoch, view=view)
        assert all(torch.equal(x, y) for x, y in zip(found[:6], plain[:6], strict=True))
        assert not plain.blur.any()
        assert not plain.solarize.any()
        for row, sample in enumerate(samples):
            counter = [sample % 2**32, sample >> 32, epoch, 16 * view + 8]
            words = [word / 2**32 for word in scalar_philox(counter, [seed % 2**32, seed >> 32])]
            sigma = 0.5 + 2.5 * words[1] if words[0] < blur else 0.0
            np.testing.assert_allclose(found.blur[row].item(), sigma, rtol=1e-6)
            assert found.solarize[row] == (words[2] < solarize)


def test_exponential():
    x = torch.linspace(-3, 3, 10_001, dtype=torch.float64)
    np.testing.assert_allclose(exponential(x).numpy(), np.exp(x.numpy()), rtol=1e-14)


@pytest.mark.parametrize("padding", [0, 4, 8])
def test_padded_crops(padding):
    box = Views(crop="padded", padding=padding).draw(torch.arange(N), (64, 48), seed=0, epoch=0).box.numpy()
    assert (box[:, 2:] == [64, 48]).all()
    for side in box[:, :2].T:
        values, counts = np.unique(side, return_counts=True)
        assert values.tolist() == list(range(-padding, padding + 1))
        assert padding == 0 or stats.chisquare(counts).pvalue > 0.001


@pytest.mark.parametrize(
    ("size", "aspect", "expected"),
    [
        ((32, 32), (3 / 4, 4 / 3), (0, 0, 32, 32)),
        ((128, 64), (3 / 4, 4 / 3), (21, 0, 85, 64)),
        ((3, 40), (3 / 4, 4 / 3), (0, 18, 3, 4)),
        ((32, 4), (16, 16), (15, 0, 1, 4)),  # at least one pixel
        ((4, 32), (1 / 16, 1 / 16), (0, 15, 4, 1)),
    ],
)
def test_fallback_is_the_central_crop(size, aspect, expected):
    assert fallback_box(size, aspect) == expected
