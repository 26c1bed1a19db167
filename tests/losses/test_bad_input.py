"""Bad input is answered with what was expected, what came and what to do."""

import functools
import math

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import setwise as sw
from setwise.losses.controls import FrobeniusProduct, StructuralDifference
from setwise.losses.gram import CKA, CodingRate, Covariance, NuclearNorm, Uniformity, Variance, vicreg

PAIR_LOSSES = [
    sw.InfoNCE(),
    sw.NTXent(),
    sw.SparseCLR(),
    sw.TripletMargin(),
    sw.NTLogistic(),
    sw.AssignmentLoss(),
    sw.QARe(),
    sw.SetContrastive(sw.NTXent()),
    FrobeniusProduct(),
    StructuralDifference(),
    CodingRate(),
    NuclearNorm(),
    Variance(),
    Covariance(),
    Uniformity(),
    CKA(),
    sw.BarlowTwins(),
    sw.VICReg(),
    sw.matching_accuracy,
]


def good() -> torch.Tensor:
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def with_value(value: float) -> torch.Tensor:
    z = good()
    z[1, 2] = value
    return z


@pytest.mark.parametrize(
    ("z_a", "z_b", "message"),
    [
        (good(), good()[:3], r"expected z_b of shape \(4, 3\) like z_a, got \(3, 3\)"),
        (good(), good()[:, :2], r"expected z_b of shape \(4, 3\) like z_a, got \(4, 2\)"),
        (good()[0], good()[0], r"expected z_a of shape \(N, E\), one row an item, got \(3,\)"),
        (good()[None], good()[None], r"expected z_a of shape \(N, E\)"),
        (good()[:0], good()[:0], "at least one row and one column"),
        (good()[:, :0], good()[:, :0], "at least one row and one column"),
        (good().long(), good().long(), r"expected z_a of a floating-point dtype, got torch.int64; convert it"),
        (good(), good().double(), "z_b of dtype torch.float32 like z_a, got torch.float64; convert"),
        (good(), torch.arange(4), r"expected z_b of shape .N, E., .* got torch.int64 of shape .4,., labels perhaps"),
        (good().numpy(), good(), "expected z_a to be a torch.Tensor, got ndarray; torch.as_tensor"),
        (None, good(), "expected z_a to be a torch.Tensor, got NoneType"),
        (good(), None, "expected z_b to be a torch.Tensor, got NoneType"),
        (with_value(float("nan")), good(), "expected z_a to be finite, got 1 NaN or infinite of 12 values; look for"),
        (good(), with_value(float("inf")), "expected z_b to be finite"),
        (*2 * [good().to(torch.float8_e4m3fn)], r"expected z_a of float16, .* got torch.float8_e4m3fn; use .float\(\)"),
        (*2 * [good().to("meta")], "expected z_a with values, got a meta tensor, which has a shape alone; make it"),
        (*2 * [FakeTensorMode().from_tensor(good())], "expected z_a with values, got a fake tensor"),
    ],
)
@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=lambda x: getattr(x, "__name__", type(x).__name__))
def test_embeddings(loss, z_a, z_b, message):
    with pytest.raises(ValueError, match=message):
        loss(z_a, z_b)


@pytest.mark.parametrize("loss", PAIR_LOSSES[:6], ids=lambda x: type(x).__name__)
def test_extra_negatives(loss):
    with pytest.raises(ValueError, match=r"expected extra_negatives of shape \(M, 3\) like z_a, got \(5, 2\)"):
        loss(good(), good(), torch.zeros(5, 2))
    with pytest.raises(ValueError, match="expected extra_negatives of dtype torch.float32"):
        loss(good(), good(), torch.zeros(5, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="expected extra_negatives to be finite"):
        loss(good(), good(), torch.full((5, 3), float("nan")))


def on_embeddings(function):
    """A function of embeddings as something that is made of options."""
    return functools.partial(function, good(), good())


TOO_LARGE, FINITE = [1e300, -1e300, 10**400, np.float64(1e39)], "to be a finite number"  # for float32
SCORES = functools.partial(sw.functional.score_assignment_loss, torch.eye(3))
SET, CONVEX = (functools.partial(make, sw.NTXent()) for make in (sw.SetContrastive, sw.SetContrastive.convex))


@pytest.mark.parametrize(
    ("make", "name", "values", "message"),
    [
        (sw.InfoNCE, "similarity", ["cosin"], "to be one of .* did you mean 'cosine'"),
        (sw.InfoNCE, "temperature", [0.0, math.nan, "0.1", np.float32("nan"), True, np.True_], "a finite number above"),
        (sw.InfoNCE, "block_size", [True, np.True_, np.int64(0), np.float64(2), 0], "None or a positive integer"),
        (sw.SparseCLR, "margin", [-1], "to be a finite number of at least 0, got -1"),
        (sw.SparseCLR, "margin", [torch.nn.Parameter(torch.tensor(0.1))], "Python number, got a Parameter"),
        *((make, "beta", [torch.tensor(0.5)], "to be a Python number, got a Tensor") for make in (SET, CONVEX)),
        (SET, "beta", [-1], "to be a finite number of at least 0"),
        (CONVEX, "beta", [1.5, math.nan, True], "between 0 and 1"),
        *((make, "reduction", ["sum"], "'log-mean'") for make in (sw.NTXent, on_embeddings(sw.functional.nt_xent))),
        *((x, "candidates", ["both"], "'cross'") for x in (sw.SparseCLR, on_embeddings(sw.functional.sparse_clr))),
        *((x, "negatives", ["max"], "'sum'") for x in (sw.NTLogistic, on_embeddings(sw.functional.nt_logistic))),
        (sw.AssignmentLoss, "mining", ["hard"], "'batch-hard'"),
        (sw.AssignmentLoss, "smoothing", ["entropic"], "did you mean 'entropy'"),
        (sw.AssignmentLoss, "smoothing", ["sinkhorn"], "'entropy' with mining=\"batch-hard\""),
        (sw.AssignmentLoss, "temperature", [0.1], '1.0 with smoothing="none"'),
        (sw.AssignmentLoss, "reduction", ["max"], "to be one of"),
        (sw.QARe, "bound", ["projected"], "did you mean 'projection'"),
        (sw.QARe, "reference", ["gt"], "to be one of"),
        (sw.QARe, "normalization", ["n"], "to be one of"),
        (sw.QARe, "spectrum", ["top"], "to be one of"),
        (functools.partial(sw.QARe, spectrum="topk"), "k", [None, 0], "a positive integer"),
        (sw.QARe, "k", [3], 'with spectrum="topk" and only there'),
        (functools.partial(sw.QARe, k=3, spectrum="topk"), "reference", ["truth"], "got .topk.: the eigenvalues"),
        (functools.partial(sw.QARe, similarity="euclidean"), "spectrum", ["lowrank"], "Euclidean distances have full"),
        (functools.partial(sw.QARe, clamp=0.0), "spectrum", ["lowrank"], "clamped similarities have full rank"),
        (sw.SetContrastive, "pairwise", [sw.NTXent], r"to be a loss, got the class NTXent; NTXent\(\) is one"),
        (sw.SetContrastive, "pairwise", ["infonce", None], r"to be a loss\(z_a, z_b\), got"),
        (SET, "regularizer", [0.3], "to be a loss.*, got 0.3"),
        (functools.partial(sw.NTXent, similarity="euclidean"), "clamp", [0.0], "below 0 .* all scores would be equal"),
        (functools.partial(sw.SparseCLR, similarity="sqeuclidean"), "clamp", [1e-8], "below 0 .* got 1e-08"),
        (sw.presets, "name", ["paper/simclr-qar"], "did you mean 'paper/simclr-qare'"),
        *((SET, name, TOO_LARGE, FINITE) for name in ("alpha", "beta")),
        *((make, "margin", TOO_LARGE, FINITE) for make in (sw.SparseCLR, sw.TripletMargin, sw.AssignmentLoss, SCORES)),
        *((make, "clamp", TOO_LARGE, FINITE) for make in (sw.SparseCLR, sw.NTXent, sw.QARe)),
        *((x, "shift", TOO_LARGE, FINITE) for x in (sw.QARe, FrobeniusProduct, on_embeddings(sw.functional.qare))),
        (sw.NTXent, "temperature", TOO_LARGE, FINITE),
        (CodingRate, "distortion", [0.0, -1, math.nan, *TOO_LARGE], "a finite number above 0"),
        (Uniformity, "sharpness", [0, "2", *TOO_LARGE], "a finite number above 0"),
        (Variance, "target", [-1.0, *TOO_LARGE], "a finite number of at least 0"),
        *((make, "epsilon", [0.0, -1e-4], "a finite number above 0") for make in (Variance, sw.VICReg, sw.BarlowTwins)),
        (sw.BarlowTwins, "redundancy", [-1, True, *TOO_LARGE], "a finite number of at least 0"),
        *((sw.VICReg, name, [-1.0], "of at least 0") for name in ("invariance", "variance", "covariance", "target")),
        *((on_embeddings(vicreg), name, [-1.0], "of at least 0") for name in ("invariance", "variance", "covariance")),
        (functools.partial(sw.presets, "paper/simclr"), "beta", [0.5], "see 'paper/simclr-qare'"),
    ],
)
def test_options_are_checked_when_the_loss_is_made(make, name, values, message):
    for value in values:
        with pytest.raises(ValueError, match=f"expected .*{name}.*{message}"):
            make(**{name: value})


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (sw.InfoNCE, {"temperature": 1e-300}),
        (sw.NTLogistic, {"temperature": 5e-324}),
        (sw.SparseCLR, {"margin": 1e38, "temperature": 1e-3}),
        (sw.NTXent, {"clamp": -1e38, "temperature": 1e-3}),
        (sw.AssignmentLoss, {"smoothing": "entropy", "margin": 1e38, "temperature": 1e-3}),
    ],
)
def test_a_temperature_too_low_for_what_is_divided_by_it(make, options):
    with pytest.raises(ValueError, match="divided by temperature"):
        make(**options)


def test_a_weighted_sum_that_overflows_is_reported():
    loss = sw.SetContrastive(sw.NTXent(), 3e38, alpha=3e38)
    with pytest.raises(ValueError, match="that torch.float32 can hold, got an overflow"):
        loss(good(), good())
    assert loss(good().double(), good().double()).isfinite()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.int64, np.uint8])
def test_numpy_numbers_are_numbers(kind):
    one, two, small = kind(1), np.int64(2), np.float32(0.5)
    for mine, pythons in (
        (sw.InfoNCE(temperature=one, block_size=two), sw.InfoNCE(temperature=1.0, block_size=2)),
        (sw.NTXent(temperature=small, clamp=one), sw.NTXent(temperature=0.5, clamp=1.0)),
        (sw.SparseCLR(margin=one, temperature=one), sw.SparseCLR(margin=1.0)),
        (sw.QARe(spectrum="topk", k=two, shift=one), sw.QARe(spectrum="topk", k=2, shift=1.0)),
        (sw.SetContrastive(sw.NTXent(), one, alpha=one), sw.SetContrastive(sw.NTXent(), 1.0)),
        (sw.SetContrastive.convex(sw.NTXent(), small), sw.SetContrastive.convex(sw.NTXent(), 0.5)),
    ):
        torch.testing.assert_close(mine(good(), good().flip(0)), pythons(good(), good().flip(0)))
        assert "np." not in repr(mine)
    z = good().requires_grad_()
    loss = sw.functional.sparse_clr(z, good(), margin=one, temperature=small, block_size=two)
    torch.testing.assert_close(loss, sw.functional.sparse_clr(z, good(), margin=1.0, temperature=0.5))
    loss.backward()
    assert z.grad.any()


def test_sizes_a_loss_cannot_take():
    z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match='go with smoothing="none"'):
        sw.AssignmentLoss(mining="one-to-one", smoothing="sinkhorn")(z, z, z)
    with pytest.raises(ValueError, match="at least two rows .* by drop_last=True, .*add-qare#rows"):
        sw.QARe(normalization="n(n-1)")(z[:1], z[:1])
    with pytest.raises(ValueError, match="expected scores of shape .N, M. with M >= N"):
        sw.functional.score_assignment_loss(torch.zeros(4, 3))


def test_matrices():
    lopsided = torch.arange(9.0).reshape(3, 3)
    with pytest.raises(ValueError, match=r"expected a to be symmetric.*pass \(a \+ a.mT\) / 2"):
        sw.assignment.spectral_bounds(lopsided, torch.eye(3))
    with pytest.raises(ValueError, match=r"expected b of shape \(3, 3\) like a, got \(2, 2\)"):
        sw.assignment.spectral_bounds(torch.eye(3), torch.eye(2))
    with pytest.raises(ValueError, match="expected bound to be one of"):
        sw.assignment.spectral_bounds(torch.eye(3), torch.eye(3), bound="tight")
    with pytest.raises(ValueError, match="expected direction to be one of"):
        sw.functional.quadratic_assignment_loss(torch.eye(3), torch.eye(3), torch.eye(3), direction="min")


DISTANCES = [
    *(sw.QARe(similarity=s, bound=b) for s in ("euclidean", "sqeuclidean") for b in ("eigenvalue", "best")),
    *(sw.QARe(similarity=s, spectrum="topk", k=1) for s in ("euclidean", "sqeuclidean")),
    *(make(similarity=s) for s in ("euclidean", "sqeuclidean") for make in (FrobeniusProduct, StructuralDifference)),
    *(make(similarity="sqeuclidean") for make in (sw.InfoNCE, sw.NTXent, sw.SparseCLR, sw.TripletMargin)),
    *(make(similarity="sqeuclidean") for make in (sw.NTLogistic, sw.AssignmentLoss)),
    sw.AssignmentLoss(mining="one-to-one", similarity="sqeuclidean"),
    functools.partial(sw.matching_accuracy, similarity="sqeuclidean"),
]


@pytest.mark.parametrize("loss", DISTANCES, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("gradient", [False, True])
def test_an_overflow_is_reported(loss, gradient):
    z_a, z_b = 1e20 * torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0))
    message = "that torch.float32 can hold, got an overflow; scale or normalise the embeddings, or use float64"
    with pytest.raises(ValueError, match=message):
        loss(z_a.requires_grad_(gradient), z_b)
    loss(z_a.double(), z_b.double())
    loss(z_a / 1e20, z_b / 1e20)


CELLS = [
    *(("batch-hard", smoothing) for smoothing in ("none", "entropy", "sparse")),
    *(("one-to-one", smoothing) for smoothing in ("none", "entropy", "sinkhorn", "sparse", "sparsemap")),
]


@pytest.mark.parametrize(("mining", "smoothing"), CELLS)
class TestScores:
    def loss(self, mining, smoothing, temperature=1.0):
        return functools.partial(
            sw.functional.score_assignment_loss, mining=mining, smoothing=smoothing, temperature=temperature
        )

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_not_finite(self, mining, smoothing, value):
        with pytest.raises(ValueError, match="expected scores to be finite or -inf"):
            self.loss(mining, smoothing)(with_value(value).mT)

    def test_true_pairs_cannot_be_forbidden(self, mining, smoothing):
        scores = torch.eye(4)
        scores[2, 2] = -math.inf
        with pytest.raises(ValueError, match="the diagonal of scores.* to be finite, got 1 NaN or infinite of 4"):
            self.loss(mining, smoothing)(scores)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_overflow(self, mining, smoothing, sign):
        scores, temperature = sign * 1e38 * (torch.eye(4) + 1), 1e-3
        if smoothing == "none":  # the difference of true pairs and others overflows
            scores, temperature = torch.full((4, 4), 3e38).fill_diagonal_(-3e38), 1.0
        with pytest.raises(ValueError, match="that torch.float32 can hold, got an overflow"):
            self.loss(mining, smoothing, temperature)(scores)
        small = (scores / 1e38 * 2e4).half()  # float32 holds what float16 cannot
        assert self.loss(mining, smoothing, temperature)(small).isfinite()

    def test_forbidden_pairs(self, mining, smoothing):
        scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        forbidden = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0]]).bool()
        low = scores.masked_fill(forbidden, -1e4).requires_grad_()  # so low that nothing chooses them
        scores = scores.masked_fill(forbidden, -math.inf).requires_grad_()
        found, expected = (self.loss(mining, smoothing)(x) for x in (scores, low))
        torch.testing.assert_close(found, expected)
        (grad,), (expected_grad,) = torch.autograd.grad(found, scores), torch.autograd.grad(expected, low)
        torch.testing.assert_close(grad, expected_grad)
        assert (grad[forbidden] == 0).all()


# Dynamo's own, when it meets an autograd.Function, and scipy.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("mining", "smoothing"), [*CELLS[:4], ("one-to-one", "sparse")])  # others take long to compile
def test_scores_in_what_is_compiled(mining, smoothing):
    temperature, overflow = 1e-3, 1e38 * (torch.eye(4) + 1)
    if smoothing == "none":
        temperature, overflow = 1.0, torch.full((4, 4), 3e38).fill_diagonal_(-3e38)
    options = {"mining": mining, "smoothing": smoothing, "temperature": temperature}
    loss = torch.compile(functools.partial(sw.functional.score_assignment_loss, **options), backend="eager")
    assert loss(overflow).isnan()
    for place, value in (((1, 2), math.nan), ((1, 2), math.inf), ((2, 2), -math.inf)):
        scores = torch.eye(4)
        scores[place] = value
        if (mining, smoothing) == ("one-to-one", "none") and place == (1, 2):  # where the solver is scipy's
            with pytest.raises(ValueError, match="expected cost to be finite or -inf, got NaN or inf"):
                loss(scores)
        else:
            assert loss(scores).isnan()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("loss", [sw.SparseCLR(), sw.NTXent(), sw.TripletMargin()], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_where_values_are_not_looked_at_nan_comes_out(device, loss):
    compiled = torch.compile(loss, backend="eager")
    for dtype in (torch.float32, torch.float64) if device == "cuda" else (torch.float32,):
        for value in (math.nan, math.inf, -math.inf):
            z_a, z_b = with_value(value).to(device, dtype), good().flip(0).to(device, dtype)
            for find in [compiled] if device == "cpu" else [compiled, loss]:
                assert find(z_a, z_b).isnan()
                assert find(z_b, z_a).isnan()


def test_terms_that_are_not_scalars():
    rows = torch.nn.PairwiseDistance()  # one number an item

    def mean(z_a, z_b):
        return rows(z_a, z_b).mean()

    for parts, name in (((rows, 0.5), "pairwise"), ((mean, 0.5, rows), "regularizer")):
        with pytest.raises(ValueError, match=rf"expected {name} to return a scalar, got shape \(4,\); take its mean"):
            sw.SetContrastive(*parts)(good(), good())
    loss = sw.SetContrastive(mean, 0.5, mean)
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(good(), good().flip(0)), loss(good(), good().flip(0)))


def test_a_third_argument_that_is_no_pair_of_features():
    z, bank = good(), torch.zeros(5, 3)
    with pytest.raises(ValueError, match=r"got a third tensor of shape \(5, 3\); give extra negatives by name"):
        sw.SetContrastive(sw.InfoNCE(), 0.5)(z, z, bank)
    on_features = sw.SetContrastive(sw.InfoNCE(), 0.5, on="features")
    for features, kind in ((z, "Tensor"), ((z,), "tuple"), ((z, z.numpy()), "tuple"), ((z, z, z), "tuple")):
        with pytest.raises(ValueError, match=rf"features to be a pair of tensors \(h_a, h_b\), got {kind}; give those"):
            on_features(z, z, features)
    torch.testing.assert_close(on_features(z, z, [z, z]), on_features(z, z, (z, z)))
