"""Several positives by labels, and negatives of each row's own: against plain loops, SupCon and entmax."""

import copy
from itertools import combinations

import entmax
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import setwise as sw
from setwise.losses import structured

LABELS = torch.tensor([3, 7, 3, -1, 7, 3, 0])
SIMILARITIES = ["cosine", "euclidean", "sqeuclidean"]
EXTRA = ["none", "bank", "own"]


def one_score(a: Tensor, b: Tensor, similarity: str) -> Tensor:
    if similarity == "cosine":
        return F.cosine_similarity(a, b, dim=0)
    d = (a - b).norm()
    return -d if similarity == "euclidean" else -(d**2)


def reference(loss: nn.Module, z_a: Tensor, z_b: Tensor, extra: Tensor | None, labels: Tensor | None) -> Tensor:
    """The loss, one row and one candidate at a time."""
    options, n = loss.options, len(z_a)
    sparse = isinstance(loss, sw.SparseCLR)
    labels = torch.arange(n) if labels is None else labels
    a, b = [(z_a, i) for i in range(n)], [(z_b, i) for i in range(n)]
    if isinstance(loss, sw.NTXent) or options.get("candidates") == "all":
        rows, columns = a + b, lambda row: [x for x in a + b if x is not row]
    else:
        rows = a + b if options.get("symmetric") else a
        columns = lambda row: b if row[0] is z_a else a  # noqa: E731
    losses = []
    for row in rows:
        anchor = row[0][row[1]]
        theta, true = [], []
        for z, j in columns(row):
            theta.append(one_score(anchor, z[j], options["similarity"]))
            true.append(bool(labels[j] == labels[row[1]]))
        if extra is not None:
            for negative in extra if extra.ndim == 2 else extra[row[1]]:
                theta.append(one_score(anchor, negative, options["similarity"]))
                true.append(False)
        values, flags = torch.stack(theta), torch.tensor(true)
        if options.get("clamp") is not None:
            values = values.clamp_min(options["clamp"])
        values = (values - options.get("margin", 0.0) * flags) / options["temperature"]
        if sparse:  # max <θ, p> - ½|p|² + ½|y|² - <θ, y>
            p, y = entmax.sparsemax(values, dim=0), flags / flags.sum()
            losses.append(values @ p - p @ p / 2 + y @ y / 2 - values[flags].mean())
        else:  # SupCon's mean of -log p over the positives
            losses.append(-torch.log_softmax(values, 0)[flags].mean())
    return torch.stack(losses).mean()


def learned(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(value, dtype=torch.float64))


LOSSES = {
    "info-nce": lambda **o: sw.InfoNCE(0.3, **o),
    "info-nce, both ways": lambda **o: sw.InfoNCE(0.3, symmetric=True, **o),
    "info-nce, learned": lambda **o: sw.InfoNCE(learned(0.3), symmetric=True, **o),
    "nt-xent": lambda **o: sw.NTXent(0.4, **o),
    "nt-xent, clamped": lambda **o: sw.NTXent(0.4, clamp=0.1 if o["similarity"] == "cosine" else -2.0, **o),
    "nt-xent, learned": lambda **o: sw.NTXent(learned(0.4), **o),
    "sparse-clr": lambda **o: sw.SparseCLR(**o),
    "sparse-clr, clamped": lambda **o: sw.SparseCLR(0.3, clamp=0.1 if o["similarity"] == "cosine" else -2.0, **o),
    "sparse-clr, cross, learned": lambda **o: sw.SparseCLR(0.4, candidates="cross", temperature=learned(0.7), **o),
}


def negatives(kind: str, n: int, e: int = 4) -> Tensor | None:
    generator = torch.Generator().manual_seed(9)
    shape = {"none": None, "bank": (3, e), "own": (n, 2, e)}[kind]
    return None if shape is None else torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def value_and_gradients(find, loss: nn.Module, *tensors: Tensor | None) -> list[Tensor]:
    value = find(*tensors)
    leaves = [x for x in (*tensors, *loss.parameters()) if x is not None and x.requires_grad]
    return [value.detach(), *torch.autograd.grad(value, leaves)]


@pytest.mark.parametrize("labels", [LABELS, None], ids=["labels", "one partner"])
@pytest.mark.parametrize("kind", EXTRA)
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("name", LOSSES)
def test_equals_a_loop_over_rows_and_candidates(views, name, similarity, kind, labels):
    z_a, z_b = views(7, 4)
    extra = negatives(kind, 7)
    loss = LOSSES[name](similarity=similarity)
    expected = value_and_gradients(lambda *x: reference(loss, *x), loss, z_a, z_b, extra, labels)
    torch.testing.assert_close(value_and_gradients(loss, loss, z_a, z_b, extra, labels), expected)
    for block_size in (1, 3, 20):
        blocks = LOSSES[name](similarity=similarity, block_size=block_size)
        torch.testing.assert_close(value_and_gradients(blocks, blocks, z_a, z_b, extra, labels), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_nt_xent_with_labels_is_supcon_of_pytorch_metric_learning(views, dtype):
    pair = views(7, 4, dtype=dtype)
    loss = sw.NTXent(0.3)
    peer = pytest.importorskip("pytorch_metric_learning.losses").SupConLoss(temperature=0.3)
    expected = value_and_gradients(
        lambda a, b, labels: peer(torch.cat([a, b]), torch.cat([labels, labels])), loss, *pair, LABELS
    )
    found = value_and_gradients(lambda a, b, labels: loss(a, b, labels=labels), loss, *pair, LABELS)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_labels_that_all_differ_change_no_bit(views, name, dtype):
    pair = views(7, 4, dtype=dtype)
    loss = LOSSES[name](similarity="cosine").to(dtype)
    without = value_and_gradients(loss, loss, *pair)
    found = value_and_gradients(loss, loss, *pair, None, torch.arange(7) * 5 - 3)
    for x, y in zip(found, without, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


def test_the_sparse_loss_is_zero_at_its_minimum_and_the_entropic_one_the_log_of_the_partners():
    z = torch.eye(3, dtype=torch.float64)[[0, 0, 1, 1, 2, 2]]
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    sparse = sw.SparseCLR(0.0, candidates="cross", temperature=0.1)(z, z, labels=labels)
    assert sparse.item() == pytest.approx(0, abs=1e-6)
    entropic = sw.InfoNCE(0.02)(z, z, labels=labels)
    assert entropic.item() == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-6)


@pytest.mark.parametrize("kind", EXTRA)
@pytest.mark.parametrize("name", ["info-nce, both ways", "nt-xent", "sparse-clr"])
def test_gradients_by_differences(views, name, kind):
    z_a, z_b = views(7, 4)
    loss = LOSSES[name](similarity="cosine")
    assert torch.autograd.gradcheck(lambda a, b, extra: loss(a, b, extra, LABELS), (z_a, z_b, negatives(kind, 7)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_gives_float32(views, dtype):
    z_a, z_b = (z.detach().to(dtype) for z in views(7, 4))
    own = negatives("own", 7).detach().to(dtype)
    for make in LOSSES.values():
        loss = make(similarity="euclidean").float()
        value = loss(z_a, z_b, own, LABELS)
        assert value.dtype == torch.float32
        expected = loss(z_a.float(), z_b.float(), own.float(), LABELS)
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    "loss",
    [
        sw.TripletMargin(),
        sw.NTLogistic(temperature=0.4, symmetric=True),
        sw.NTLogistic(negatives="hardest"),
        sw.AssignmentLoss(smoothing="entropy", symmetric=True),
        sw.AssignmentLoss(smoothing="sparse", margin=0.3, similarity="cosine"),
    ],
    ids=repr,
)
def test_negatives_of_each_row_for_the_other_losses(views, loss):
    # The reference has the negatives of all rows as columns and forbids those of other rows.
    z_a, z_b = views(4, 3)
    own = negatives("own", 4, 3)
    found = loss(z_a, z_b, own)
    options = {"similarity": loss.similarity}
    scores = [
        sw.similarity.scores(x, torch.cat([y, own.flatten(0, 1)]), **options) for x, y in ((z_a, z_b), (z_b, z_a))
    ]
    mine = torch.eye(4, dtype=torch.bool).repeat_interleave(2, 1)
    allowed = torch.cat([torch.ones(4, 4, dtype=torch.bool), mine], 1)
    parts = []
    for s in scores[: 2 if loss.options["symmetric"] else 1]:
        if isinstance(loss, sw.NTLogistic):
            s = s / loss.options["temperature"]
            others = allowed & ~torch.eye(4, 12, dtype=torch.bool)
            false = F.softplus(s).masked_fill(~others, 0)
            false = false.amax(1) if loss.options["negatives"] == "hardest" else false.sum(1) / others.sum(1)
            parts.append((F.softplus(-s.diagonal()) + false).mean())
        else:
            cell = {"smoothing": loss.options.get("smoothing", "none"), "margin": loss.options["margin"]}
            s = s.masked_fill(~allowed, -torch.inf)  # forbidden pairs
            parts.append(sw.functional.score_assignment_loss(s, **cell))
    expected = torch.stack(parts).mean()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, (z_a, z_b, own)), torch.autograd.grad(expected, (z_a, z_b, own))
    )


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_no_negatives_of_each_row_are_none(views, similarity):
    z_a, z_b = views(5, 4)
    for loss in (sw.InfoNCE(similarity=similarity), sw.NTXent(similarity=similarity), sw.NTLogistic()):
        expected = value_and_gradients(loss, loss, z_a, z_b)
        found = value_and_gradients(lambda a, b, loss=loss: loss(a, b, torch.zeros(5, 0, 4).double()), loss, z_a, z_b)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("make", [lambda: sw.InfoNCE(0.3), lambda: sw.NTXent(), lambda: sw.SparseCLR()])
def test_set_contrastive_and_more_views_pass_labels_on(views, make):
    z_a, z_b = views(7, 4)
    pairwise = make()
    loss = sw.SetContrastive(pairwise, beta=0.5)
    terms = loss.terms(z_a, z_b, labels=LABELS)
    torch.testing.assert_close(terms["pairwise"], pairwise(z_a, z_b, labels=LABELS))
    torch.testing.assert_close(terms["regularizer"], sw.QARe()(z_a, z_b))
    torch.testing.assert_close(loss(z_a, z_b, labels=LABELS), terms["loss"])
    three = [z_a, z_b, z_a + z_b]
    for one in (pairwise, loss):
        pairs = [one(*x, labels=LABELS) for x in ((z_a, z_b), (z_a, three[2]), (z_b, three[2]))]
        torch.testing.assert_close(one(three, labels=LABELS), sum(pairs) / 3)
        torch.testing.assert_close(one(torch.stack(three), labels=LABELS), sum(pairs) / 3)


def test_set_contrastive_passes_labels_to_a_function(views):
    z_a, z_b = views(7, 4)
    loss = sw.SetContrastive(sw.functional.nt_xent, beta=0.5)
    expected = sw.NTXent()(z_a, z_b, labels=LABELS) + 0.5 * sw.QARe()(z_a, z_b)
    torch.testing.assert_close(loss(z_a, z_b, labels=LABELS), expected)


@pytest.mark.parametrize("kind", EXTRA)
@pytest.mark.parametrize("pairwise", [sw.InfoNCE(), sw.SparseCLR(), sw.functional.nt_xent], ids=["a", "b", "function"])
def test_a_combination_gives_its_pairwise_loss_negatives_and_labels(views, pairwise, kind):
    z_a, z_b = views(7, 4)
    extra, loss = negatives(kind, 7), sw.SetContrastive(pairwise, beta=0.5)
    for labels in (None, LABELS):
        expected = pairwise(z_a, z_b, extra, labels) + 0.5 * sw.QARe()(z_a, z_b)
        torch.testing.assert_close(loss(z_a, z_b, labels=labels, extra_negatives=extra), expected)
        three = [z_a, z_b, z_a + z_b]
        parts = loss.terms(three, labels=labels, extra_negatives=extra)
        each = [pairwise(x, y, extra, labels) for x, y in combinations(three, 2)]
        torch.testing.assert_close(parts["pairwise"], sum(each) / 3)


def test_a_combination_says_what_its_pairwise_loss_does_not_take(views):
    z_a, z_b = views(7, 4)

    def mine(z_a: Tensor, z_b: Tensor) -> Tensor:
        return (z_a - z_b).square().mean()

    def any_name(z_a: Tensor, z_b: Tensor, **more: Tensor) -> Tensor:
        return mine(z_a, z_b) + len(more)

    given = {"labels": LABELS, "extra_negatives": negatives("bank", 7)}
    for name, value in given.items():
        with pytest.raises(ValueError, match=f"expected a pairwise loss that takes {name}, got mine"):
            sw.SetContrastive(mine, 0.5)(z_a, z_b, **{name: value})
    plain = sw.SetContrastive(any_name, 0.5)
    torch.testing.assert_close(plain(z_a, z_b, **given), plain(z_a, z_b) + 2)
    with pytest.raises(ValueError, match="expected no labels for TripletMargin"):
        sw.SetContrastive(sw.TripletMargin(), 0.5)(z_a, z_b, labels=LABELS)
    bank = sw.SetContrastive(sw.TripletMargin(), 0.5)(z_a, z_b, extra_negatives=given["extra_negatives"])
    assert bank >= sw.SetContrastive(sw.TripletMargin(), 0.5)(z_a, z_b)


@pytest.mark.parametrize("kind", EXTRA)
def test_functions_take_the_same(views, kind):
    z_a, z_b = views(7, 4)
    extra = negatives(kind, 7)
    for loss, function in (
        (sw.InfoNCE(), sw.functional.info_nce),
        (sw.NTXent(), sw.functional.nt_xent),
        (sw.SparseCLR(), sw.functional.sparse_clr),
    ):
        expected = loss(z_a, z_b, extra, LABELS)
        assert torch.equal(function(z_a, z_b, extra, LABELS), expected)
        assert torch.equal(function(z_a, z_b, extra_negatives=extra, labels=LABELS), expected)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["info-nce, learned", "nt-xent", "sparse-clr, clamped"])
def test_compiles(views, name):
    torch.compiler.reset()
    z_a, z_b = views(7, 4)
    loss = LOSSES[name](similarity="cosine")
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for kind in ("none", "own"):
        tensors = (z_a, z_b, negatives(kind, 7), LABELS)
        expected = value_and_gradients(loss, loss, *tensors)
        torch.testing.assert_close(value_and_gradients(compiled, loss, *tensors), expected)


def test_a_kernel_has_one_partner_and_serves_for_negatives_of_each_row(views, monkeypatch):
    widths = []

    def row_losses(theta, partner, itself, sparse, margin, least):
        widths.append(theta.shape[1])
        best = torch.softmax(theta, 1)
        true = F.one_hot(partner, theta.shape[1])
        return torch.logsumexp(theta, 1) - (theta * true).sum(1), best - true

    z_a, z_b = views(7, 4)
    own, loss = negatives("own", 7), sw.InfoNCE()
    expected = [value_and_gradients(loss, loss, z_a, z_b, own, labels) for labels in (None, LABELS)]
    monkeypatch.setattr(structured.kernels, "have_row_losses", lambda theta: True)
    monkeypatch.setattr(structured.kernels, "row_losses", row_losses)
    found = [value_and_gradients(copy.deepcopy(loss), loss, z_a, z_b, own, labels) for labels in (None, LABELS)]
    torch.testing.assert_close(found, expected)
    assert widths == [9]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS.tolist(), "expected labels to be a torch.Tensor, got list; torch.as_tensor"),
        (LABELS.numpy(), "expected labels to be a torch.Tensor, got ndarray; torch.as_tensor"),
        (LABELS.float(), r"expected labels of dtype torch.int64, got torch.float32; number the classes, .long\(\)"),
        (LABELS > 0, "expected labels of dtype torch.int64, got torch.bool"),
        (LABELS[:6], r"expected labels of shape \(7,\), one for each row of z_a, got \(6,\)"),
        (torch.cat([LABELS, LABELS]), r"expected labels of shape \(7,\), .* got \(14,\); both views"),
        (LABELS[:, None], r"expected labels of shape \(7,\), .* got \(7, 1\)"),
        (LABELS.to("meta"), "expected labels on device cpu like z_a, got meta"),
    ],
    ids=["list", "array", "float", "bool", "short", "of both views", "matrix", "meta"],
)
def test_bad_labels(views, labels, message):
    z_a, z_b = views(7, 4)
    for loss in (sw.InfoNCE(), sw.NTXent(), sw.SparseCLR(), sw.SetContrastive(sw.NTXent()), sw.functional.info_nce):
        with pytest.raises(ValueError, match=message):
            loss(z_a, z_b, labels=labels)


def test_what_labels_do_not_go_with(views):
    z_a, z_b = views(7, 4)
    for loss in (sw.NTXent(reduction="log-mean"), lambda *a, **k: sw.functional.nt_xent(*a, reduction="log-mean", **k)):
        with pytest.raises(ValueError, match='expected reduction="mean" with labels, got "log-mean"'):
            loss(z_a, z_b, labels=LABELS)
    for loss in (sw.TripletMargin(), sw.NTLogistic(), sw.AssignmentLoss(), sw.QARe()):
        with pytest.raises(
            ValueError, match=f"expected no labels for {type(loss).__name__}, got some; InfoNCE, NTXent"
        ):
            loss(z_a, z_b, labels=LABELS)
    with pytest.raises(
        ValueError, match=r"labels perhaps; losses take two views, and labels by name: loss\(z_a, z_b, l"
    ):
        sw.InfoNCE()(z_a, z_b, LABELS)


def test_bad_negatives_of_each_row(views):
    z_a, z_b = views(7, 4)
    own = negatives("own", 7)
    for bad in (own[:6], own[..., :3], own.transpose(0, 1)):
        with pytest.raises(
            ValueError, match=r"expected extra_negatives of shape \(7, K, 4\), K of each row of z_a, got"
        ):
            sw.InfoNCE()(z_a, z_b, bad)
    with pytest.raises(ValueError, match=r"expected extra_negatives of shape \(N, E\)"):
        sw.InfoNCE()(z_a, z_b, own[None])
    with pytest.raises(ValueError, match="expected extra_negatives of dtype torch.float64"):
        sw.InfoNCE()(z_a, z_b, own.float())
    with pytest.raises(ValueError, match=r"expected extra_negatives of shape \(M, E\) with mining=\"one-to-one\""):
        sw.AssignmentLoss(mining="one-to-one")(z_a, z_b, own)
