"""Operations of a run: against those of ResNet-18's layers by hand, and the published number."""

import pytest
import torch

import setwise as sw
from setwise.data import ImageSet
from setwise.paper.recipes import recipe
from setwise.training.operations import training_operations

HEAD = 512 * 512 + 512 * 128  # multiply-adds of an image in the recipe's head


def images(count):
    pixels = torch.zeros(count, 3, 32, 32, dtype=torch.uint8)
    labels = torch.arange(count) % 2
    return ImageSet("zeros", "train", pixels, labels, ("a", "b"), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def resnet18(side):
    """Multiply-adds of its first layer and of all, of ``side`` pixels: 3 x 3 kernels, and 1 x 1 between."""
    first = 9 * 3 * 64 * side**2
    total, before = first, 64
    for width in (64, 128, 256, 512):
        if width != 64:
            side //= 2
            total += before * width * side**2
        total += (9 * before * width + 3 * 9 * width * width) * side**2
        before = width
    return first, total


def by_hand(side):
    """Of one view in training: forwards, the weights' gradient, and the inputs' of all layers but the first."""
    first, total = resnet18(side)
    return 2 * (3 * (total + HEAD) - first)


def test_the_layers_by_hand_are_the_published_number():
    assert resnet18(32)[1] == pytest.approx(0.56e9, rel=0.01)
    # 500 epochs of 50,000 images, two views, forwards and twice as much backwards: the public mark's 167 PFLOP.
    assert 500 * 50_000 * 2 * 3 * 2 * resnet18(32)[1] == pytest.approx(167e15, rel=0.01)


@pytest.mark.parametrize(("views", "drop_last"), [(2, True), (3, False)])
def test_a_run_counts_every_view_of_every_image(views, drop_last):
    it = recipe("modern/cifar10-resnet18-simclr").changed(
        {"epochs": 3, "warmup": 0, "batch": 4, "drop_last": drop_last, "method.views": views}
    )
    seen = 3 * (8 if drop_last else 10)
    # The loss's own products, small in so small a batch, are the rest.
    assert training_operations(it, images(10)) == pytest.approx(seen * views * by_hand(32), rel=1e-4)


def test_small_views_count_as_what_they_are():
    grown = recipe("modern/cifar10-resnet18-simclr").changed(
        {"epochs": 4, "warmup": 0, "batch": 4, "drop_last": True, "views.early": (16, 24), "views.until": (0.25, 0.5)}
    )
    expected = 8 * 2 * (by_hand(16) + by_hand(24) + 2 * by_hand(32))
    assert training_operations(grown, images(8)) == pytest.approx(expected, rel=1e-4)


def test_muons_products_count_and_sgds_steps_have_none():
    """Five times XXᵀ, its square, and a product with X, of every matrix and every row of filters."""
    small = {"head.hidden": 96, "head.out": 40, "encoder.widths": (16, 24, 32), "encoder.depth": 2, "epochs": 3}
    muon = recipe("speedrun/cifar10").changed(small | {"warmup": 0, "batch": 4})
    shapes = [(32, 3 * 9), (16, 32 * 9), (16, 16 * 9), (24, 16 * 9), (24, 24 * 9), (32, 24 * 9), (32, 32 * 9)]
    shapes += [(96, 32), (96, 96), (40, 96)]
    products = sum(5 * 2 * (2 * min(s) ** 2 * max(s) + min(s) ** 3) for s in shapes)
    others = training_operations(muon.changed({"optimizer": "sgd"}), images(8))
    assert training_operations(muon, images(8)) - others == 3 * 2 * products
    linear = muon.changed({"optimizer.filters": False})
    found = sum(5 * 2 * (2 * min(s) ** 2 * max(s) + min(s) ** 3) for s in shapes[-3:])
    assert training_operations(linear, images(8)) - others == 3 * 2 * found


def test_an_optimizer_that_looks_at_values_counts_nothing(registries):
    class Looking(torch.optim.SGD):
        def step(self):
            if self.param_groups[0]["params"][0].norm() > 0:
                super().step()

    sw.register.optimizer("looking", about="It reads a norm.")(lambda groups, *, lr=0.1: Looking(groups, lr))
    small = {"epochs": 1, "warmup": 0, "batch": 4, "encoder": "resnet8"}
    it = recipe("modern/cifar10-resnet18-simclr").changed(small)
    assert training_operations(it.changed({"optimizer": "looking"}), images(8)) == training_operations(it, images(8))
