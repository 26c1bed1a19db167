"""Deep InfoMax: the losses against their literal forms, whose gradient goes where, and draws of the prior."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn
from torch.nn.functional import softplus
from torch.utils._python_dispatch import TorchDispatchMode

import setwise as sw
from setwise.methods import Batch, DeepInfoMax
from setwise.methods.deepinfomax import prior_draws
from setwise.views import Views, preset
from setwise.views import philox as generator
from setwise.views.draw import BLOCKS


class Small(nn.Module):
    """An encoder in two parts, the first at half the resolution."""

    def __init__(self, channels=1, width=5, features=6):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.blocks = nn.Sequential(nn.Conv2d(width, features, 3, 1, 1), nn.BatchNorm2d(features), nn.ReLU())

    def first(self, images):
        return self.stem(images)

    def rest(self, feature_map):
        return self.blocks(feature_map).mean((2, 3))

    def forward(self, images):
        return self.rest(self.first(images))


def make_batch(images, samples=None, *, epoch=0, **form):
    samples = torch.arange(len(images)) if samples is None else samples
    return Batch(images, samples, torch.zeros_like(samples), torch.tensor(1), torch.tensor(epoch), **form)


def random_images(n, channels=1, size=8):
    shape = (n, channels, size, size)
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def infomax(encoder, features=6, channels=1, views=None, *, adversarial=True):
    parts = {"features": features, "channels": channels, "views": views or Views()}
    return DeepInfoMax(SimpleNamespace(encoder=encoder, **parts), adversarial=adversarial)


def small_method(adversarial=True, channels=1):
    torch.manual_seed(0)
    return infomax(Small(channels), channels=channels, adversarial=adversarial)


def draws(samples, features=10, seed=7, epoch=2):
    return prior_draws(torch.as_tensor(samples), features, seed=torch.tensor(seed), epoch=torch.tensor(epoch))


# ---- the losses


@pytest.mark.parametrize("adversarial", [True, False])
def test_terms_are_the_literal_ones(adversarial):
    method, images = small_method(adversarial).double(), random_images(6)
    terms = method(make_batch(images, dtype=torch.float64))
    again = small_method(adversarial).double()
    feature_map = again.encoder.first((images / 255).double())
    y = again.encoder.rest(feature_map)
    local = 0.0
    for i in range(6):
        for j, sign in ((i, -1), ((i + 1) % 6, 1)):
            stacked = torch.cat([feature_map[j], y[i, :, None, None].expand(6, 4, 4)])
            hidden = again.local.second(again.local.first(stacked[None]).relu()).relu()
            local += softplus(sign * again.local.last(hidden)).mean() / 6
    u = draws(torch.arange(6), 6, seed=1, epoch=0).double()
    prior = -again.prior(u).sigmoid().log().mean() - (1 - again.prior(y).sigmoid()).log().mean()
    assert terms["local"].item() == pytest.approx(local.item(), rel=1e-6)
    assert terms["prior"].item() == pytest.approx(prior.item(), rel=1e-6)
    assert terms["loss"].item() == pytest.approx(local.item() + 0.1 * prior.item(), rel=1e-6)


@pytest.mark.parametrize(("bias", "expected"), [(0.0, 2 * math.log(2)), (1e4, 1e4)])
def test_scores_that_are_all_alike(bias, expected):
    method = small_method()
    with torch.no_grad():
        for layer in (method.local.last, method.prior[-1]):
            layer.weight.zero_()
            layer.bias.fill_(bias)
    terms = method(make_batch(random_images(4)))
    assert terms["local"].item() == pytest.approx(expected, rel=1e-3)
    assert terms["prior"].item() == pytest.approx(expected, rel=1e-3)
    terms["loss"].backward()
    assert all(p.grad.isfinite().all() for p in method.parameters())


# ---- whose gradient goes where


def test_the_published_encoder_climbs_what_the_discriminator_descends():
    found = {}
    for adversarial in (True, False):
        method = small_method(adversarial)
        terms = method(make_batch(random_images(8)))
        encoder, prior = list(method.encoder.parameters()), list(method.prior.parameters())
        found[adversarial] = torch.autograd.grad(terms["prior"], encoder + prior, retain_graph=True)
        local = torch.autograd.grad(terms["local"], encoder, retain_graph=True)
        whole = torch.autograd.grad(terms["loss"], encoder)
        for part, other, both in zip(local, found[adversarial], whole, strict=False):
            torch.testing.assert_close(both, part + 0.1 * other)
    count = len(list(small_method().encoder.parameters()))
    assert any(g.abs().max() > 1e-6 for g in found[True][:count])
    for i, (published, joint) in enumerate(zip(found[True], found[False], strict=True)):
        torch.testing.assert_close(published, -joint if i < count else joint)


# ---- draws of the prior


def test_draws_are_uniform():
    found = draws(torch.arange(2000), 30).numpy()
    assert found.shape == (2000, 30)
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() < 1
    assert kstest(found.ravel(), "uniform").pvalue > 0.01
    correlations = np.corrcoef(found.T) - np.eye(30)
    assert abs(correlations).max() < 5 / math.sqrt(2000)


def test_draws_do_not_depend_on_the_batch():
    samples = torch.tensor([5, 2**40 + 5, 0, 17, 2**33])
    whole = draws(samples)
    for i in range(5):
        assert torch.equal(draws(samples[i : i + 1])[0], whole[i])
    assert torch.equal(draws(samples.flip(0)), whole.flip(0))
    assert torch.equal(draws(samples, 3), whole[:, :3])


def test_draws_depend_on_seed_epoch_and_sample():
    keys = [(3, 7, 2), (4, 7, 2), (3, 8, 2), (3, 7, 3), (3 + 2**32, 7, 2), (3, 7 + 2**32, 2)]
    found = {tuple(draws([sample], 10, seed, epoch)[0].tolist()) for sample, seed, epoch in keys}
    assert len(found) == len(keys)


def test_the_largest_draw_is_below_one(monkeypatch):
    monkeypatch.setattr(generator, "philox", lambda counter, key: torch.full_like(counter, 2**32 - 1))
    assert draws([0]).max() == 1 - 2.0**-24


def test_no_view_shares_a_counter_with_the_draws(monkeypatch):
    seen, philox = [], generator.philox

    def spy(counter, key):
        seen.append(counter)
        return philox(counter, key)

    monkeypatch.setattr(generator, "philox", spy)
    draws([3, 2**32 + 4], 2048)
    last = seen[0][3]
    assert last.min() >= 0
    assert last.max() < 2**32
    # A view's are 16 view + block with block < BLOCKS, whatever the view's number.
    assert (last % 16 >= BLOCKS).all()
    assert len(last.unique()) == 512
    assert seen[0][:3, 0].T.tolist() == [[3, 0, 2], [4, 1, 2]]


def test_draws_can_be_captured():
    """No number of the host is copied to the device and none comes back: a CUDA graph could hold neither."""
    names = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(function.name())
            return function(*args, **(kwargs or {}))

    samples, seed, epoch = torch.arange(4), torch.tensor(1), torch.tensor(2)
    prior_draws(samples, 10, seed=seed, epoch=epoch)  # as before a capture: constants are copied once
    with Watch():
        prior_draws(samples, 10, seed=seed, epoch=epoch)
    assert "aten::arange" in names or "aten::arange.start_step" in names
    assert not {"aten::lift_fresh", "aten::_local_scalar_dense", "aten::nonzero"} & set(names)


# ---- the method


def test_a_step_uses_the_draws_of_its_samples(monkeypatch):
    method, images = small_method(), random_images(6)
    seen = []
    method.prior.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    rows = torch.tensor([4, 1, 5])
    method(make_batch(images[rows], rows, epoch=3))
    assert torch.equal(seen[0], draws(torch.arange(6), 6, seed=1, epoch=3)[rows])


def test_making_it_leaves_the_encoder_as_it_was():
    encoder = Small(3).train()
    method = infomax(encoder, channels=3)
    assert encoder.training
    assert encoder.stem[1].num_batches_tracked == 0
    assert (encoder.stem[1].running_var == 1).all()
    shapes = [tuple(layer.weight.shape) for layer in method.local.children()]
    assert shapes == [(256, 5 + 6, 1, 1), (256, 256, 1, 1), (1, 256, 1, 1)]
    assert [tuple(layer.weight.shape) for layer in method.prior[::2]] == [(512, 6), (128, 512), (1, 128)]
    assert not infomax(Small().eval()).encoder.training


@pytest.mark.parametrize(("name", "width"), [("conv4", 8), ("resnet8", 16), ("resnet18", 64)])
def test_setwises_encoders_come_in_two_parts(name, width):
    encoder = sw.encoders.create(name, **{"stem": "cifar"} if name == "resnet18" else {})
    method = infomax(encoder, encoder.features, 3)
    assert method.local.first.in_channels == width + encoder.features
    method(make_batch(random_images(2, 3)))["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_autocast_gives_float32_terms():
    method = small_method(channels=3)
    with torch.autocast("cpu", torch.bfloat16):
        terms = method(make_batch(random_images(4, 3), dtype=torch.bfloat16, channels_last=True))
    assert all(term.dtype == torch.float32 for term in terms.values())
    terms["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.gpu
def test_terms_and_gradients_by_kernels():
    exact, method = small_method(channels=3).double(), small_method(channels=3).cuda()
    method.to(memory_format=torch.channels_last)
    terms = exact(make_batch(random_images(64, 3), dtype=torch.float64))
    images, samples, seed, epoch = random_images(64, 3).cuda(), torch.arange(64).cuda(), *torch.tensor([1, 0]).cuda()
    batch = Batch(images, samples, torch.zeros_like(samples), seed, epoch, dtype=torch.bfloat16, channels_last=True)
    with torch.autocast("cuda", torch.bfloat16):
        got = method(batch)
    for x in (terms, got):
        x["loss"].backward()
    for name, term in terms.items():
        assert got[name].item() == pytest.approx(term.item(), rel=0.01)
    for a, b in zip(method.local.parameters(), exact.local.parameters(), strict=True):
        assert a.grad.dtype == torch.float32
        assert (a.grad.cpu() - b.grad).norm() < 0.2 * b.grad.norm()


def test_errors():
    with pytest.raises(ValueError, match=r"expected an encoder with the methods first\(images\) and rest.*got Linear"):
        infomax(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="expected at least two images, .*, got 1"):
        small_method()(make_batch(random_images(1)))


@pytest.mark.parametrize("adversarial", [True, False])
def test_it_learns_which_features_belong_to_a_map(adversarial):
    data = sw.data.load("digits")
    torch.manual_seed(0)
    views = preset("flip", mean=data.mean, std=data.std)
    method = infomax(Small(1, 16, 32), 32, views=views, adversarial=adversarial)
    optimizer = torch.optim.Adam(method.parameters(), 2e-3)
    seen = []
    for step in range(60):
        rows = torch.arange(32 * step, 32 * (step + 1)) % len(data)
        terms = method(make_batch(data.images[rows], rows, epoch=step // 20))
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
        seen.append(terms["local"].item())
    chance = 2 * math.log(2)
    assert abs(np.mean(seen[:3]) - chance) < 0.05
    assert np.mean(seen[-10:]) < chance - 0.03  # and maps without their features would never get below it
