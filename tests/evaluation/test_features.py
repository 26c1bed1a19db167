"""Features: against the encoder image by image; the same in any chunks; nothing of the encoder changes."""

import pytest
import torch
from torch import nn

import setwise as sw
from setwise.data import ImageSet
from setwise.evaluation import extract, frozen

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


def images(n: int = 23, channels: int = 3) -> ImageSet:
    generator = torch.Generator().manual_seed(n)
    pixels = torch.randint(256, (n, channels, 8, 8), generator=generator, dtype=torch.uint8)
    labels = torch.randint(4, (n,), generator=generator)
    return ImageSet("noise", "train", pixels, labels, tuple("abcd"), MEAN[:channels], STD[:channels])


def trained_encoder(name: str = "conv4") -> nn.Module:
    """An encoder whose BatchNorm has seen images, so that its two modes differ."""
    torch.manual_seed(0)
    encoder = sw.encoders.create(name)
    for _ in range(3):
        encoder(2 * torch.randn(16, 3, 8, 8) + 1)
    return encoder


def one_by_one(encoder: nn.Module, data: ImageSet) -> torch.Tensor:
    mean, std = (torch.tensor(x, dtype=torch.float64).view(-1, 1, 1) for x in (data.mean, data.std))
    encoder = encoder.double().eval()
    with torch.no_grad():
        return torch.cat([encoder(((x.double() / 255 - mean) / std)[None]) for x in data.images])


@pytest.mark.parametrize("name", ["conv4", "resnet8"])
@pytest.mark.parametrize("batch", [1, 7, 23, 1000])
def test_features_are_those_of_each_normalised_image_in_eval_mode(name, batch):
    data = images()
    found = extract(trained_encoder(name), data, device="cpu", batch=batch)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    torch.testing.assert_close(found.double(), one_by_one(trained_encoder(name), data), rtol=1e-4, atol=1e-5)


def test_precisions():
    data, exact = images(), one_by_one(trained_encoder(), images())
    double = extract(trained_encoder().double(), data, device="cpu", precision="float64")
    assert double.dtype == torch.float32
    torch.testing.assert_close(double, exact.float(), rtol=1e-6, atol=1e-6)
    half = extract(trained_encoder(), data, device="cpu", precision="bfloat16")
    assert half.dtype == torch.float32
    error = (half - exact).norm() / exact.norm()
    assert 1e-4 < error < 0.05
    # The precision asked for, whatever the caller's own is.
    encoder = trained_encoder()
    with torch.autocast("cpu", torch.bfloat16):
        inside = extract(encoder, data, device="cpu")
    assert torch.equal(inside, extract(encoder, data, device="cpu"))


def test_every_module_has_its_own_mode_again():
    encoder = trained_encoder()
    encoder.train()
    encoder.blocks[1].eval()
    modes = [module.training for module in encoder.modules()]
    assert len(set(modes)) == 2
    extract(encoder, images(), device="cpu")
    assert [module.training for module in encoder.modules()] == modes
    with pytest.raises(RuntimeError):
        extract(encoder, images(channels=1), device="cpu")
    assert [module.training for module in encoder.modules()] == modes


def test_nothing_changes_and_nothing_is_random():
    encoder, data = trained_encoder(), images()
    state = torch.random.get_rng_state()
    with frozen(encoder):
        first = extract(encoder, data, device="cpu")
    assert torch.equal(first, extract(encoder, data, device="cpu"))
    assert torch.equal(state, torch.random.get_rng_state())


def set_weight(encoder: nn.Module) -> None:
    encoder.blocks[4].weight.data[0, 0, 0, 0] = -0.0


def convert(encoder: nn.Module) -> None:
    encoder.blocks[1].running_var.data = encoder.blocks[1].running_var.double()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_weight, r"blocks\.4\.weight changed"),
        (lambda x: x.register_buffer("extra", torch.zeros(1), persistent=False), "extra appeared"),
        (lambda x: x.blocks[1].register_parameter("bias", None), r"blocks\.1\.bias disappeared"),
        (convert, r"blocks\.1\.running_var changed"),
        (lambda x: x.train()(torch.randn(4, 3, 8, 8)), r"blocks\.1\.num_batches_tracked changed"),
        (lambda x: x.blocks[1].running_mean.add_(1), r"blocks\.1\.running_mean changed"),
    ],
)
def test_frozen_names_the_tensor(change, message):
    encoder = trained_encoder()
    encoder.blocks[4].weight.data[0, 0, 0, 0] = 0.0
    with pytest.raises(RuntimeError, match=f"expected a frozen encoder, but {message}"), frozen(encoder):
        change(encoder)


def test_frozen_lets_pass_what_is_the_same():
    encoder = trained_encoder().eval()
    encoder.blocks[0].weight.data[0, 0, 0, 0] = float("nan")
    with frozen(encoder):
        encoder(torch.randn(2, 3, 8, 8)).sum().backward()  # gradients are not the encoder


@pytest.mark.parametrize(
    ("encoder", "data", "options", "message"),
    [
        (trained_encoder(), images(), {"precision": "float16"}, "expected precision to be one of"),
        (trained_encoder(), images(), {"batch": 0}, "expected batch to be"),
        (trained_encoder(), images(), {"precision": "float64"}, "an encoder of torch.float64"),
        (trained_encoder().double(), images(), {}, "an encoder of torch.float32"),
        (trained_encoder().to("meta"), images(), {}, r"expected the encoder on cpu, got blocks\.0\.weight on meta"),
        (trained_encoder(), images().images, {}, r"expected images as an ImageSet, .* shape \(23, 3, 8, 8\)"),
        (trained_encoder(), [images()], {}, r"expected images as an ImageSet, .* got \[ImageSet"),
        (trained_encoder(), images(0), {}, "not an empty one, got ImageSet"),
        (nn.Identity(), images(), {}, r"expected features of shape \(23, F\) from the encoder, got \(23, 3, 8, 8\)"),
    ],
)
def test_errors(encoder, data, options, message):
    with pytest.raises(ValueError, match=message):
        extract(encoder, data, device="cpu", **options)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["conv4", "resnet8"])
def test_a_gpu_gives_the_same_in_float32_proper(name, monkeypatch):
    cudnn, data = torch.backends.cudnn, images(300)
    monkeypatch.setattr(cudnn, "benchmark", True)
    before = cudnn.allow_tf32
    encoder = trained_encoder(name).cuda()
    with frozen(encoder):
        found = extract(encoder, data, device="cuda", batch=128)
    assert found.is_cuda
    assert (cudnn.benchmark, cudnn.allow_tf32) == (True, before)
    exact = one_by_one(trained_encoder(name), data)
    assert (found.cpu() - exact).norm() / exact.norm() < 1e-5  # TF32 is off by 1e-4 to 1e-3
    half = extract(encoder, data, device="cuda", precision="bfloat16")
    assert (half.cpu() - exact).norm() / exact.norm() < 0.05
