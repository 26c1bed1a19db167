"""The spectra and the negatives' weights, against autograd, scipy and entmax."""

import json

import numpy as np
import pytest
import torch
from entmax import sparsemax
from scipy.stats import entropy

import setwise as sw
from setwise.data import load
from setwise.paper.jobs import with_loss
from setwise.paper.recipes import recipe as find
from setwise.runs import structure
from setwise.runs.pretraining import pretrain
from setwise.training.engine import Engine
from setwise.training.loop import RunOptions, train

CPU = torch.device("cpu")
LOSSES = {
    "infonce": sw.InfoNCE(temperature=0.2),
    "nt-xent": sw.NTXent(),
    "log-mean": sw.NTXent(reduction="log-mean"),
    "clamped": sw.NTXent(reduction="log-mean", clamp=1e-8),
    "sparse": sw.SparseCLR(),
    "sparse, cross, cold": sw.SparseCLR(candidates="cross", temperature=0.3),
    "with qare": sw.SetContrastive(sw.SparseCLR(clamp=1e-8), 0.0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_weights_are_the_gradient_of_the_loss_in_the_scores(name):
    """The gradient in the cosines' factors, assembled from the weights, is what autograd says of the whole loss."""
    loss, n = LOSSES[name], 12
    z = torch.randn(2 * n, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    loss(*z.chunk(2)).backward()
    weights, (mine, theirs) = structure.negative_weights(loss, *z.detach().chunk(2))
    # A row's weights sum to zero once the pull of the positive is in, wherever scores are not clamped.
    positive = mine[:, None] == theirs[None]
    unit = torch.nn.functional.normalize(z, dim=1)
    anchors, candidates = (unit, unit) if len(mine) == 2 * n else unit.chunk(2)
    score = anchors @ candidates.T
    if len(mine) == 2 * n:
        positive &= ~torch.eye(2 * n, dtype=torch.bool)
    pull = torch.autograd.grad(loss(*z.chunk(2)), z)[0]
    # The pull on each positive is what is left to explain: solve for it and see that it explains everything.
    rows, columns = positive.nonzero().T
    pushed = torch.autograd.grad((weights * score).sum(), z, retain_graph=True)[0]
    parts = [
        torch.autograd.grad(score[i, j], z, retain_graph=True)[0].flatten() for i, j in zip(rows, columns, strict=True)
    ]
    basis = torch.stack(parts, 1)
    amounts = torch.linalg.lstsq(basis, (pull - pushed).flatten()[:, None], driver="gelsd").solution
    torch.testing.assert_close((basis @ amounts)[:, 0].view_as(pull), pull - pushed, rtol=0, atol=1e-12)
    assert (weights >= 0).all()
    assert (weights[mine[:, None] == theirs[None]] == 0).all()


def test_support_and_classes_of_sparseclr_against_entmax():
    n = 16
    z_a, z_b = torch.randn(2, n, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(n) % 3
    cosines = torch.nn.functional.normalize(z_a, dim=1) @ torch.nn.functional.normalize(z_b, dim=1).T
    p = sparsemax(4 * (cosines - torch.eye(n)), dim=1).numpy()
    np.fill_diagonal(p, 0)
    same = (labels[:, None] == labels).numpy() & ~np.eye(n, dtype=bool)
    loss = sw.SparseCLR(candidates="cross", temperature=0.25)
    found = structure.weight_statistics(*structure.negative_weights(loss, z_a, z_b), labels)
    assert found["negatives"] == n - 1
    assert found["support"] == pytest.approx((p > 0).sum() / n, rel=1e-4)
    assert found["same_class_weight"] == pytest.approx(p[same].sum() / p.sum(), rel=1e-4)
    assert found["same_class"] == pytest.approx(same.sum() / (n * (n - 1)), rel=1e-4)
    assert structure.negative_weights(sw.NTLogistic(), z_a, z_b) is None
    assert structure.negative_weights(sw.InfoNCE(symmetric=True), z_a, z_b) is None


@pytest.mark.parametrize(("n", "e"), [(20, 7), (200, 128)])
def test_eigenvalues_are_numpys_and_all_of_them(n, e):
    z = torch.randn(n, e, generator=torch.Generator().manual_seed(1))
    x = (z / z.norm(dim=1, keepdim=True)).double().numpy()
    expected = np.linalg.svd(x, compute_uv=False) ** 2
    found = structure.eigenvalues(z.double())
    np.testing.assert_allclose(found[:e], expected, rtol=1e-4)
    np.testing.assert_allclose(found[e:], 0, atol=1e-9)


@pytest.mark.parametrize("name", ["features", "center", "qare"])
def test_what_the_term_acts_on_is_kept_where_it_is_not_the_embeddings(name):
    recipe = with_loss(find("released/digits-conv4-simclr").changed({"batch": 64}), f"ablation/simclr-{name}", 1.0)
    engine = Engine(recipe, load("digits", split="train"), seed=1, device=CPU)
    seen = []
    engine.method.encoder.register_forward_hook(lambda *found: seen.append(found[-1]))
    engine.method.head.register_forward_hook(lambda *found: seen.append(found[-1]))
    found = structure.structure(engine, engine.method)
    ranks = []
    for x in seen[0].detach().double().numpy().reshape(2, 64, -1):
        x = x - x.mean(0)
        ranks.append(
            np.exp(entropy(np.linalg.svd(x / np.linalg.norm(x, axis=1, keepdims=True), compute_uv=False) ** 2))
        )
    assert found["feature_rank"] == pytest.approx(np.mean(ranks), rel=1e-4)
    if name == "qare":
        assert "acted_on" not in found
        return
    for side, values in enumerate(found["acted_on"]):
        x = seen[0 if name == "features" else 1].chunk(2)[side].double()
        x = x - x.mean(0)
        x = (x / x.norm(dim=1, keepdim=True)).numpy()
        expected = np.linalg.svd(x, compute_uv=False)[:5] ** 2
        np.testing.assert_allclose(values[:5], expected, rtol=1e-3)
    assert found["acted_on"] != found["eigenvalues"]


def test_a_run_is_the_same_with_and_without_looking(tmp_path):
    changes = {"epochs": 3, "batch": 64, "evaluation.probe.epochs": 1}
    recipe = find("released/digits-conv4-sparseclr-qare").changed(changes)
    record = pretrain(recipe, tmp_path / "a", name="x", seed=1, how=RunOptions(CPU, quiet=True))
    _, last = train(recipe, load("digits", split="train"), tmp_path / "b", seed=1, how=RunOptions(CPU, quiet=True))
    rows = [json.loads(line) for line in (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epoch"] for row in rows if "structure" in row] == [1, 2, 3]
    assert "structure" not in (tmp_path / "a" / "metrics.csv").read_text()
    found = rows[-1]["structure"]
    assert record["structure"]["eigenvalues"] == found["eigenvalues"]
    assert record["structure"]["support"] == [row["structure"]["support"] for row in rows]
    assert found["rows"] == 64
    assert sum(found["eigenvalues"][0]) == pytest.approx(64, rel=1e-3)
    assert 0 < found["support"] <= found["negatives"] == 126
    assert [row["loss"] for row in rows] == [row["loss"] for row in last.history]
    from setwise.training import checkpoint

    weights = [checkpoint.load(tmp_path / x / "checkpoint.safetensors").tensors for x in "ab"]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
