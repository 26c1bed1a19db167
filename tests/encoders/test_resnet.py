"""ResNets for small images: shape, size, initialisation."""

import pytest
import torch

from setwise.encoders.resnet import CifarResNet, projection_head


@pytest.mark.parametrize("depth", [8, 32])
def test_depth_and_shape(depth):
    model = CifarResNet(depth)
    weighted = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert sum(not (isinstance(m, torch.nn.Conv2d) and m.kernel_size == (1, 1)) for m in weighted) == depth
    features = model(torch.randn(2, 3, 32, 32))
    assert features.shape == (2, 64)
    assert projection_head()(features).shape == (2, 64)


def test_resnet_32_has_he_et_als_size():
    # 0.46 M in their Table 6, with parameter-free shortcuts and a 10-class layer: 464,154; less that layer, plus ours.
    shortcuts = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    expected = 464_154 - (64 * 10 + 10) + (64 * 64 + 64) + shortcuts
    assert sum(p.numel() for p in CifarResNet(32).parameters()) == expected


def test_initialisation_is_the_released_codes():
    torch.manual_seed(0)
    conv = CifarResNet(56).blocks[-1].conv2
    assert conv.weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_a_depth_that_does_not_exist():
    with pytest.raises(ValueError, match=r"expected depth 6n \+ 2 .*, got 18"):
        CifarResNet(18)
