"""RotationNet: the four turns, their labels, and that it learns which way up digits are."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import setwise as sw
from setwise.methods import Batch, Rotation
from setwise.methods.rotation import turned
from setwise.views import Views, preset


def make_batch(images, samples=None, *, epoch=0, **form):
    samples = torch.arange(len(images)) if samples is None else samples
    return Batch(images, samples, torch.zeros_like(samples), torch.tensor(1), torch.tensor(epoch), **form)


def random_images(n, channels=3, size=6):
    shape = (n, channels, size, size)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def rotation(encoder, features=4, views=None):
    return Rotation(SimpleNamespace(encoder=encoder, features=features, views=views or Views()))


class Corners(nn.Module):
    """The four corners of an image, in the order in which the top left one comes by when the image is turned."""

    def forward(self, x):
        self.seen = x
        return torch.stack([x[:, 0, 0, 0], x[:, 0, -1, 0], x[:, 0, -1, -1], x[:, 0, 0, -1]], 1)


def test_turns_are_numpys_and_in_order():
    images = random_images(5)
    expected = np.concatenate([np.rot90(images.numpy(), turn, (2, 3)) for turn in range(4)])
    assert (turned(images).numpy() == expected).all()


def test_accuracy_and_loss_by_hand():
    images = torch.zeros(3, 1, 5, 5, dtype=torch.uint8)
    images[:, :, 0, 0] = 255
    method = rotation(Corners())
    with torch.no_grad():
        method.classifier.weight.copy_(3 * torch.eye(4))
        method.classifier.bias.zero_()
    terms = method(make_batch(images))
    assert terms["accuracy"] == 1
    # Logits are 3 at the true turn and 0 at the others.
    assert terms["loss"].item() == pytest.approx(np.log(np.exp(3) + 3) - 3, rel=1e-5)
    with torch.no_grad():
        method.classifier.weight.copy_(3 * torch.eye(4).roll(1, 0))
    terms = method(make_batch(images))
    assert terms["accuracy"] == 0
    assert terms["loss"].item() == pytest.approx(np.log(np.exp(3) + 3), rel=1e-5)


def test_one_view_is_turned():
    # Not four views: flips and crops are the same in all turns of an image.
    images, views = random_images(8), preset("self-supervised", mean=0.5, std=0.25)
    encoder = Corners()
    rotation(encoder, views=views)(make_batch(images, epoch=3))
    expected = views(images, samples=torch.arange(8), seed=1, epoch=3)
    assert torch.equal(encoder.seen, torch.cat([torch.rot90(expected, turn, (2, 3)) for turn in range(4)]))


@pytest.mark.parametrize("channels_last", [False, True])
def test_memory_format_and_dtype_are_the_batchs(channels_last):
    encoder = Corners()
    method = rotation(encoder).double()
    method(make_batch(random_images(4), dtype=torch.float64, channels_last=channels_last))
    assert encoder.seen.dtype == torch.float64
    assert encoder.seen.is_contiguous(memory_format=torch.channels_last) == channels_last
    assert encoder.seen.is_contiguous() != channels_last


def test_autocast_gives_a_float32_loss():
    method = rotation(sw.encoders.create("conv4"), 64)
    with torch.autocast("cpu", torch.bfloat16):
        terms = method(make_batch(random_images(4, size=8), dtype=torch.bfloat16))
    assert terms["loss"].dtype == torch.float32
    terms["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_images_must_be_square():
    with pytest.raises(ValueError, match=r"expected square images, .*, got \(6, 4\)"):
        rotation(Corners())(make_batch(random_images(2)[..., :4]))
