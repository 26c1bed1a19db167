"""Exact forms by name: the notes' table written out here, and the two sides kept apart."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import setwise as sw
from setwise.losses.presets import PRESETS, beta_of


def make(name: str) -> torch.nn.Module:
    return sw.presets(name, beta=0.5) if beta_of(name) == "needed" else sw.presets(name)


@pytest.mark.parametrize("name", PRESETS)
def test_every_name_gives_a_finite_loss(views, name):
    z_a, z_b = views(6, 4)
    module = make(name)
    features = [(z_a.square(), z_b.square())] if getattr(module, "on", None) == "features" else []
    loss = module(z_a, z_b, *features)
    loss.backward()
    assert loss.isfinite()
    assert z_a.grad.isfinite().all()


def both(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(a) @ torch.linalg.eigvalsh(b)


def cosines(z: Tensor) -> Tensor:
    return F.normalize(z) @ F.normalize(z).T


def projected(a: Tensor, b: Tensor) -> Tensor:
    """The projection bound of 6 items, by a basis orthogonal to the ones vector."""
    v = torch.linalg.qr(torch.cat([torch.ones(6, 1), torch.eye(6)[:, :5]], 1).double())[0][:, 1:]
    sums = [x.sum(1).sort().values for x in (a, b)]
    return both(v.T @ a @ v, v.T @ b @ v) + 2 / 6 * sums[0] @ sums[1] - sums[0].sum() * sums[1].sum() / 36


def distances(name: str, a: Tensor, b: Tensor) -> Tensor:
    if name == "control":
        return 0.5 * (a - b).square().mean()
    if name == "gap":
        return (both(a, b) - (a * b).sum()) / 36
    return -(torch.linalg.eigvalsh(a) @ torch.linalg.eigvalsh(b).flip(0)) / 36


TERMS = {  # of 6 items, of cosines: a set-level term beside the plain loss
    "paper/simclr-qare": lambda a, b: both(1 + a, 1 + b) / 36,
    "released/simclr-qare": lambda a, b: both(1 + a.clamp_min(1e-8), 1 + b.clamp_min(1e-8)) / 30,
    "modern/simclr-qare": lambda a, b: both(1 + a, 1 + b) / 36,
    "modern/simclr-gap": lambda a, b: (both(1 + a, 1 + b) - ((1 + a) * (1 + b)).sum()) / 36,
    "ablation/simclr-qare": lambda a, b: both(1 + a, 1 + b) / 30,
    "ablation/simclr-noshift": lambda a, b: both(a, b) / 30,
    "ablation/simclr-projection": lambda a, b: projected(1 + a, 1 + b) / 30,
    "ablation/simclr-gap": lambda a, b: (both(1 + a, 1 + b) - ((1 + a) * (1 + b)).sum()) / 30,
    "ablation/simclr-frobenius": lambda a, b: (1 + a).norm() * (1 + b).norm() / 36,
    "ablation/simclr-control": lambda a, b: 0.5 * (a - b).square().mean(),
}


def plain(name: str, z_a: Tensor, z_b: Tensor) -> Tensor:
    """SimCLR's loss as the paper, the released code and everyone else have it."""
    if name.startswith("paper/"):
        return F.cross_entropy(F.normalize(z_a) @ F.normalize(z_b).T / 0.05, torch.arange(6))
    s = cosines(torch.cat([z_a, z_b]))
    s = s.clamp_min(1e-8) if name == "released/simclr-qare" else s
    losses = F.cross_entropy((s / 0.5).fill_diagonal_(-torch.inf), torch.arange(12).roll(6), reduction="none")
    return losses.mean() if name.startswith("modern/") else -torch.exp(-losses).mean().log()


@pytest.mark.parametrize("name", TERMS)
def test_simclr_is_its_loss_and_its_term_as_written(views, name):
    z_a, z_b = views(6, 4)
    expected = plain(name, z_a, z_b) + 0.375 * TERMS[name](cosines(z_a), cosines(z_b))
    torch.testing.assert_close(sw.presets(name, beta=0.375)(z_a, z_b), expected)
    if (alone := name.rpartition("-")[0]) in PRESETS and name != "released/simclr-qare":  # which clamps with QARe only
        torch.testing.assert_close(sw.presets(alone)(z_a, z_b), plain(name, z_a, z_b))


@pytest.mark.parametrize(
    ("name", "beta"), [("triplet", 0.4), ("infonce", 0.5), ("nt-logistic", 0.2), ("sparseclr", 0.3)]
)
def test_matching_is_algorithm_1_in_convex_combination_and_beyond_the_paper_in_a_sum(views, name, beta):
    z_a, z_b = views(6, 4)
    pair = torch.cdist(z_a, z_a), torch.cdist(z_b, z_b)
    alone = sw.presets(f"paper/matching-{name}")(z_a, z_b)
    expected = (1 - beta) * alone + beta * distances("qare", *pair)
    torch.testing.assert_close(sw.presets(f"paper/matching-{name}-qare")(z_a, z_b), expected)
    for term in ("gap", "control"):
        got = sw.presets(f"setwise/matching-{name}-{term}", beta=3.0)(z_a, z_b)
        torch.testing.assert_close(got, alone + 3 * distances(term, *pair))


def test_the_two_sides_never_mix():
    for name in PRESETS:
        if name.startswith(("modern/", "setwise/", "ablation/")):
            continue
        loss = make(name)
        parts = [loss.pairwise, loss.regularizer] if isinstance(loss, sw.SetContrastive) else [loss]
        released = name.startswith("released/")
        for part in parts:
            options = part.options
            assert options.get("candidates", "all" if released else "cross") == ("all" if released else "cross")
            assert isinstance(part, sw.NTXent) <= released
            assert isinstance(part, (sw.InfoNCE, sw.TripletMargin, sw.NTLogistic)) <= (not released)
            assert (options.get("clamp") is not None) <= (released and name.endswith("-qare"))
            if isinstance(part, sw.QARe):
                assert options["normalization"] == ("n(n-1)" if released else "n2")


def test_ablations_change_one_thing(views):
    base = sw.presets("released/simclr")
    for name, change in (("cold", {"temperature": 0.05}), ("mean", {"reduction": "mean"}), ("clamp", {"clamp": 1e-8})):
        assert sw.presets(f"ablation/simclr-{name}").options == base.options | change
    z_a, z_b = views(6, 4)
    center = both(*(1 + cosines(z - z.mean(0)) for z in (z_a, z_b))) / 30
    got = sw.presets("ablation/simclr-center", beta=2.0)(z_a, z_b)
    torch.testing.assert_close(got, base(z_a, z_b) + 2 * center)
    on_features = sw.presets("ablation/simclr-features", beta=2.0)
    got = on_features(torch.cos(z_a), torch.sin(z_b), (z_a, z_b))
    torch.testing.assert_close(got, base(torch.cos(z_a), torch.sin(z_b)) + 2 * center)
    with pytest.raises(ValueError, match=r'expected features .* for on="features" and only there, got none'):
        on_features(z_a, z_b)
    with pytest.raises(ValueError, match=r"only there, got some, on='embeddings'"):
        sw.presets("ablation/simclr-qare", beta=2.0)(z_a, z_b, (z_a, z_b))


def test_set_contrastive(views):
    z_a, z_b = views(6, 4)
    pairwise = sw.TripletMargin()
    loss = sw.SetContrastive(pairwise, beta=0.3)
    terms = loss.terms(z_a, z_b)
    assert set(terms) == {"loss", "pairwise", "regularizer"}
    assert loss.regularizer.similarity == "euclidean"  # of the pairwise loss
    torch.testing.assert_close(terms["loss"], pairwise(z_a, z_b) + 0.3 * sw.QARe(similarity="euclidean")(z_a, z_b))
    torch.testing.assert_close(loss(z_a, z_b), terms["loss"])
    convex = sw.SetContrastive.convex(pairwise, 0.3)
    torch.testing.assert_close(convex(z_a, z_b), 0.7 * terms["pairwise"] + 0.3 * terms["regularizer"])
    # Any loss of two views will do, also one that does not say what it compares by.
    foreign = sw.SetContrastive(torch.nn.MSELoss(), beta=1.0)
    torch.testing.assert_close(foreign(z_a, z_b), F.mse_loss(z_a, z_b) + sw.QARe()(z_a, z_b))
    assert "beta=0.3" in repr(loss)
    assert "margin=0.5" in repr(loss)
    functions = sw.SetContrastive(sw.functional.info_nce, 0.3, sw.functional.qare)
    assert "pairwise=info_nce, regularizer=qare, alpha=1.0, beta=0.3" in repr(functions)


def test_a_weight_where_there_is_none_and_none_where_there_must_be():
    for name in PRESETS:
        if beta_of(name) == "none":
            with pytest.raises(ValueError, match="expected no beta") as raised:
                sw.presets(name, beta=0.5)
            assert {*re.findall(r"see '(.*)'", str(raised.value))} <= {*PRESETS}
        elif beta_of(name) == "needed":
            with pytest.raises(ValueError, match=r"expected beta=... .* got None"):
                sw.presets(name)


@pytest.mark.parametrize("similarity", [torch.nn.CosineSimilarity(dim=2), torch.ones(3), "dot", ["cosine"], None])
def test_a_loss_whose_similarity_is_something_else(views, similarity):
    loss = torch.nn.MSELoss()
    loss.similarity = similarity
    combined = sw.SetContrastive(loss, beta=1.0)
    assert combined.regularizer.similarity == "cosine"
    z_a, z_b = views(6, 4)
    torch.testing.assert_close(combined(z_a, z_b), F.mse_loss(z_a, z_b) + sw.QARe()(z_a, z_b))


def test_a_regularizer_of_length_zero_is_kept(views):
    class Zero(torch.nn.ModuleList):
        def forward(self, z_a, z_b):
            return z_a.new_zeros(())

    z_a, z_b = views(6, 4)
    loss = sw.SetContrastive(sw.NTXent(), 1.0, Zero())
    torch.testing.assert_close(loss(z_a, z_b), sw.NTXent()(z_a, z_b))
