"""Exact forms by name: the notes' table written out here, and the two sides kept apart."""

import re

import pytest
import torch
import torch.nn.functional as F

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


def test_paper_simclr_qare_is_algorithm_2(views):
    z_a, z_b = views(7, 4)
    a, b = F.normalize(z_a), F.normalize(z_b)
    pairwise = F.cross_entropy(a @ b.T / 0.05, torch.arange(7))
    eigenvalues = [torch.linalg.eigvalsh(1 + x @ x.T).sort(descending=True).values for x in (a, b)]
    expected = pairwise + 0.375 * eigenvalues[0] @ eigenvalues[1] / 7**2
    torch.testing.assert_close(sw.presets("paper/simclr-qare", beta=0.375)(z_a, z_b), expected)


@pytest.mark.parametrize(
    ("name", "beta"), [("triplet", 0.4), ("infonce", 0.5), ("nt-logistic", 0.2), ("sparseclr", 0.3)]
)
def test_paper_matching_is_algorithm_1_in_convex_combination(views, name, beta):
    z_a, z_b = views(6, 4)
    up = torch.linalg.eigvalsh(torch.cdist(z_a, z_a)).sort().values
    down = torch.linalg.eigvalsh(torch.cdist(z_b, z_b)).sort(descending=True).values
    plain = sw.presets(f"paper/matching-{name}")(z_a, z_b)
    expected = (1 - beta) * plain + beta * -(up @ down) / 6**2
    torch.testing.assert_close(sw.presets(f"paper/matching-{name}-qare")(z_a, z_b), expected)


def test_released_simclr_qare(views):
    z_a, z_b = views(6, 4)
    z = F.normalize(torch.cat([z_a, z_b]))
    s = (z @ z.T).clamp_min(1e-8)
    keep = ~torch.eye(12, dtype=torch.bool)
    weights = torch.exp(s / 0.5) * keep
    p = weights[torch.arange(12), torch.arange(12).roll(6)] / weights.sum(1)
    eigenvalues = [torch.linalg.eigvalsh(1 + s[i : i + 6, i : i + 6]) for i in (0, 6)]
    expected = -p.mean().log() + 0.5 * eigenvalues[0] @ eigenvalues[1] / (6 * 5)
    torch.testing.assert_close(sw.presets("released/simclr-qare", beta=0.5)(z_a, z_b), expected)


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


def test_modern_presets_are_nt_xent_with_algorithm_2_or_the_gap(views):
    z_a, z_b = views(6, 4)
    plain = sw.NTXent(temperature=0.5)(z_a, z_b)
    torch.testing.assert_close(sw.presets("modern/simclr")(z_a, z_b), plain)
    a, b = (1 + F.normalize(z) @ F.normalize(z).T for z in (z_a, z_b))
    both = torch.linalg.eigvalsh(a) @ torch.linalg.eigvalsh(b)
    torch.testing.assert_close(sw.presets("modern/simclr-qare", beta=2.0)(z_a, z_b), plain + 2 * both / 36)
    gap = (both - (a * b).sum()) / 36
    torch.testing.assert_close(sw.presets("modern/simclr-gap", beta=2.0)(z_a, z_b), plain + 2 * gap)


@pytest.mark.parametrize("name", ["triplet", "infonce", "nt-logistic", "sparseclr"])
def test_matching_beyond_the_paper(views, name):
    z_a, z_b = views(6, 4)
    plain = sw.presets(f"paper/matching-{name}")(z_a, z_b)
    a, b = torch.cdist(z_a, z_a), torch.cdist(z_b, z_b)
    gap = (torch.linalg.eigvalsh(a) @ torch.linalg.eigvalsh(b) - (a * b).sum()) / 36
    torch.testing.assert_close(sw.presets(f"setwise/matching-{name}-gap", beta=3.0)(z_a, z_b), plain + 3 * gap)
    control = 0.5 * (a - b).square().mean()
    torch.testing.assert_close(sw.presets(f"setwise/matching-{name}-control", beta=3.0)(z_a, z_b), plain + 3 * control)


def test_ablations_change_one_thing(views):
    z_a, z_b = views(6, 4)
    base = sw.presets("released/simclr")
    for name, change in (
        ("cold", {"temperature": 0.05}),
        ("mean", {"reduction": "mean"}),
        ("clamp", {"clamp": 1e-8}),
    ):
        assert sw.presets(f"ablation/simclr-{name}").options == base.options | change
    a, b = (F.normalize(z) @ F.normalize(z).T for z in (z_a, z_b))

    def both(x, y):
        return torch.linalg.eigvalsh(x) @ torch.linalg.eigvalsh(y) / 30

    v = torch.linalg.qr(torch.cat([torch.ones(6, 1), torch.eye(6)[:, :5]], 1).double())[0][:, 1:]
    inner = torch.linalg.eigvalsh(v.T @ (1 + a) @ v) @ torch.linalg.eigvalsh(v.T @ (1 + b) @ v)
    sums = [(1 + x).sum(1).sort().values for x in (a, b)]
    expected = {
        "qare": both(1 + a, 1 + b),
        "noshift": both(a, b),
        "projection": (inner + 2 / 6 * sums[0] @ sums[1] - sums[0].sum() * sums[1].sum() / 36) / 30,
        "gap": both(1 + a, 1 + b) - ((1 + a) * (1 + b)).sum() / 30,
        "center": both(*(1 + c @ c.T for c in (F.normalize(z - z.mean(0)) for z in (z_a, z_b)))),
        "frobenius": (1 + a).norm() * (1 + b).norm() / 36,
        "control": 0.5 * (a - b).square().mean(),
    }
    for name, term in expected.items():
        found = sw.presets(f"ablation/simclr-{name}", beta=2.0)(z_a, z_b)
        torch.testing.assert_close(found, base(z_a, z_b) + 2 * term)
    on_features = sw.presets("ablation/simclr-features", beta=2.0)
    found = on_features(torch.cos(z_a), torch.sin(z_b), (z_a, z_b))
    torch.testing.assert_close(found, base(torch.cos(z_a), torch.sin(z_b)) + 2 * expected["center"])
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
