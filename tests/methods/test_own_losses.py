"""Methods with a loss of their own: each equals its formula written out here, and its peer's code where that is."""

import math
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

import setwise as sw
from setwise import methods
from setwise.losses.gram import coding_rates
from setwise.losses.parallel import Processes
from setwise.methods.byol import regression
from setwise.methods.crops import swapped_cross_entropy
from setwise.methods.swav import sinkhorn_codes
from setwise.recipe import Recipe
from setwise.training.engine import Engine

CPU = torch.device("cpu")
SMALL = {"small": 2, "small_side": 0.75, "small_area": [0.1, 0.4]}
METHODS = {
    "byol": {"name": "byol", "momentum": 0.9, "predictor": 24},
    "simsiam": {"name": "simsiam", "predictor": 8},
    "many-patches": {"name": "many-patches", "patches": 4},
    "mocov3": {"name": "mocov3", "momentum": 0.9, "predictor": 24, "temperature": 0.3},
    "swav": {"name": "swav", "prototypes": 20, "freeze": 0},
    "swav-small": {"name": "swav", "prototypes": 20, "freeze": 0, **SMALL},
    "dino": {"name": "dino", "prototypes": 20, "momentum": 0.99, "freeze": 0},
    "dino-small": {"name": "dino", "prototypes": 20, "momentum": 0.99, "freeze": 0, "views": 3, **SMALL},
}


def recipe_of(name, **more):
    tree = {"method": METHODS[name], "encoder": "resnet8", "head": {"hidden": 32, "out": 12}, "precision": "float64"}
    return Recipe.read(tree | more)


def batch_of(data, count=10, *, epoch=2):
    rows = torch.arange(count)
    keys = {"seed": torch.tensor(1), "epoch": torch.tensor(epoch)}
    return sw.Batch(data.images[rows], rows, data.labels[rows], **keys, dtype=torch.float64)


@pytest.fixture(scope="module")
def digits():
    return sw.data.load("digits")


def made(name, digits, **more):
    """The method in float64, whose copies, if it has some, are elsewhere than the encoder."""
    torch.manual_seed(3)
    method = methods.create(recipe_of(name, **more), digits).double()
    for slow in (getattr(method, part, None) for part in ("target_encoder", "target_head")):
        for x in slow.parameters() if slow is not None else ():
            x.mul_(1 + 0.1 * torch.rand_like(x))
    return method


def cosines(a, b):
    a, b = (np.asarray(x.detach()) for x in (a, b))
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def two_views(method, batch):
    """Embeddings of both views [B, E], their predictions, and the copy's embeddings."""
    x = batch.view(method.views, count=2)
    z = method.head(method.encoder(x))
    target = method.target_head(method.target_encoder(x)) if hasattr(method, "target_head") else z
    return z.chunk(2), method.predictor(z).chunk(2), target.chunk(2)


def test_byol_is_its_formula(digits):
    method, batch = made("byol", digits), batch_of(digits)
    _, (p_a, p_b), (t_a, t_b) = two_views(method, batch)
    unit = [normalize(x) for x in (p_a, t_b, p_b, t_a)]
    distances = [(a - b).square().sum(1).mean() for a, b in (unit[:2], unit[2:])]  # of unit vectors: 2 - 2 cos
    torch.testing.assert_close(method(batch)["loss"], sum(distances) / 2)


def test_simsiam_is_its_formula(digits):
    method, batch = made("simsiam", digits), batch_of(digits)
    (z_a, z_b), (p_a, p_b), _ = two_views(method, batch)
    expected = -(cosines(p_a, z_b).mean() + cosines(p_b, z_a).mean()) / 2
    assert method(batch)["loss"].item() == pytest.approx(expected, rel=1e-12)
    layers = [type(layer).__name__ for layer in method.head]
    assert layers == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear", "BatchNorm1d"]
    assert method.head[-1].weight is None


def test_simsiam_sends_no_gradient_to_what_it_predicts(digits):
    method, batch = made("simsiam", digits), batch_of(digits)
    method(batch)["loss"].backward()
    found = method.head[0].weight.grad.clone()
    z, p, _ = two_views(method, batch)
    expected = torch.autograd.grad(
        -sum(torch.cosine_similarity(a, b.detach().clone()).mean() for a, b in zip(p, reversed(z), strict=True)) / 2,
        method.head[0].weight,
    )[0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["byol", "simsiam"])
def test_of_more_views_each_predicts_the_mean_of_the_others(digits, name):
    objective = {"loss": "built-in", "terms": [{"term": "qare"}]}
    method = made(name, digits, method=METHODS[name] | {"views": 4}, objective=objective)
    batch = batch_of(digits)
    x = batch.view(method.views, count=4)
    z = method.head(method.encoder(x))
    goals = z if name == "simsiam" else method.target_head(method.target_encoder(x))
    predictions, goals, z = method.predictor(z).chunk(4), goals.chunk(4), z.chunk(4)
    found = [
        cosines(predictions[i], torch.stack([goals[j] for j in range(4) if j != i]).mean(0)).mean() for i in range(4)
    ]
    expected = -np.mean(found) if name == "simsiam" else 2 - 2 * np.mean(found)
    terms = method(batch)
    assert terms["own"].item() == pytest.approx(expected, rel=1e-12)
    qare = np.mean([sw.QARe()(a, b).item() for a, b in combinations(z, 2)])
    assert terms["regularizer"].item() == pytest.approx(qare, rel=1e-10)


def test_mocov3_is_its_formula(digits):
    method, batch = made("mocov3", digits), batch_of(digits)
    _, (q_a, q_b), (k_a, k_b) = two_views(method, batch)
    ways = [cross_entropy(normalize(q) @ normalize(k).T / 0.3, torch.arange(10)) for q, k in ((q_a, k_b), (q_b, k_a))]
    torch.testing.assert_close(method(batch)["loss"], 2 * 0.3 * sum(ways) / 2)


def test_many_patches_is_its_formula(digits):
    method, batch = made("many-patches", digits), batch_of(digits)
    z = normalize(method.head(method.encoder(batch.view(method.views, count=4)))).chunk(4)
    mean = sum(z) / 4
    cosine = np.mean([cosines(one, mean).mean() for one in z])
    rate = np.mean([np.linalg.slogdet(np.eye(12) + 12 / (10 * 0.2) * (x.T @ x))[1] / 2 for x in map(detached, z)])
    found = method(batch)
    assert found["loss"].item() == pytest.approx(200 * (1 - cosine) - rate, rel=1e-10)
    assert (found["cosine"].item(), found["coding rate"].item()) == pytest.approx((cosine, rate), rel=1e-10)


def detached(x):
    return x.detach().numpy()


def plain_sinkhorn(scores, epsilon, iterations):
    """As published: the matrix itself, clusters first, each of 1/K, then rows of 1/B."""
    q = np.exp(scores / epsilon).T
    q /= q.sum()
    for _ in range(iterations):
        q /= q.sum(1, keepdims=True) * len(q)
        q /= q.sum(0, keepdims=True) * q.shape[1]
    return (q * q.shape[1]).T


def large_and_small(method, network, head, batch):
    """Embeddings of each view [B, E], the large ones first; all of them are one batch for the head."""
    crops = method.crops
    h = [network(batch.view(method.views, count=crops.count))]
    if crops.small:
        h.append(network(batch.view(crops.small_views, count=crops.small, first=crops.count)))
    return head(torch.cat(h)).chunk(crops.total), crops.count


def mean_cross_entropy(targets, logits):
    pairs = [(i, j) for i, j in product(range(len(targets)), range(len(logits))) if i != j]
    return np.mean([cross_entropy(logits[j], targets[i]).item() for i, j in pairs])


@pytest.mark.parametrize("name", ["swav", "swav-small"])
def test_swav_is_its_formula(digits, name):
    method, batch = made(name, digits), batch_of(digits)
    z, large = large_and_small(method, method.encoder, method.head, batch)
    directions = method.prototypes.weight
    torch.testing.assert_close(directions.norm(dim=1), torch.ones(20).double())
    scores = [normalize(x) @ directions.T for x in z]
    codes = [torch.from_numpy(plain_sinkhorn(detached(x), 0.05, 3)) for x in scores[:large]]
    expected = mean_cross_entropy(codes, [x / 0.1 for x in scores])
    assert method(batch)["loss"].item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ["dino", "dino-small"])
def test_dino_is_its_formula(digits, name):
    method, batch = made(name, digits), batch_of(digits)
    with torch.no_grad():
        method.center.normal_(generator=torch.Generator().manual_seed(0))
    center = method.center.clone()
    logits = []
    for network, head in ((method.encoder, method.head), (method.target_encoder, method.target_head)):
        z, large = large_and_small(method, network, head.layers, batch)
        logits.append([normalize(x) @ normalize(head.last.weight).T for x in z])
    students, teachers = logits[0], logits[1][:large]
    targets = [((x - center) / 0.04).softmax(1) for x in teachers]
    found = method(batch)["loss"].item()
    assert found == pytest.approx(mean_cross_entropy(targets, [x / 0.1 for x in students]), rel=1e-10)
    torch.testing.assert_close(method.center, 0.9 * center + 0.1 * torch.cat(teachers).mean(0))


def test_dinos_temperature_rises_and_stays(digits):
    options = {"first_temperature": 0.04, "target_temperature": 0.07, "temperature_epochs": 3}
    method = made("dino", digits, method=METHODS["dino"] | options)
    found = [method.target_temperature(torch.tensor(epoch)).item() for epoch in range(5)]
    assert found == pytest.approx([0.04, 0.05, 0.06, 0.07, 0.07])


@pytest.mark.parametrize(("name", "part"), [("swav", "prototypes"), ("dino", "head.last")])
def test_the_last_layer_is_frozen_at_first(digits, name, part):
    method = made(name, digits, method=METHODS[name] | {"freeze": 2})
    for epoch, frozen in ((1, True), (2, False)):
        method.zero_grad()
        method(batch_of(digits, epoch=epoch))["loss"].backward()
        assert (method.get_submodule(part).weight.grad.abs().max() == 0) == frozen
        assert next(method.encoder.parameters()).grad.abs().max() > 0


@pytest.mark.parametrize("name", METHODS)
def test_any_term_stands_beside_it(digits, name):
    terms = [{"term": "qare", "weight": 0.5}, {"term": "gap", "weight": 2.0}]
    objective = {"loss": "built-in", "weight": 3.0, "terms": terms}
    method, batch = made(name, digits, objective=objective), batch_of(digits)
    found = method(batch)
    total = 3 * found["own"] + found["regularizer"]
    torch.testing.assert_close(found["loss"], total)
    count = METHODS[name].get("views", 2)
    if name == "many-patches":
        z = normalize(method.head(method.encoder(batch.view(method.views, count=4)))).chunk(4)[:2]
    elif hasattr(method, "crops"):
        z = large_and_small(method, method.encoder, method.head, batch)[0][:count]
    else:
        z = two_views(method, batch)[0]
    pairs = [(a, b) for i, a in enumerate(z) for b in z[i + 1 :]]
    expected = sum(0.5 * sw.QARe()(a, b) + 2 * sw.register.term["gap"].make()(a, b) for a, b in pairs) / len(pairs)
    torch.testing.assert_close(found["regularizer"], expected)
    on_features = {"loss": "built-in", "terms": [{"term": "qare", "on": "features"}]}
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            made(name, digits, objective=on_features)(batch)["regularizer"], found["regularizer"]
        )


@pytest.mark.parametrize("name", ["byol", "mocov3", "dino"])
def test_the_copy_follows_ever_more_slowly(digits, name):
    method = made(name, digits)
    total, momentum = 4, METHODS[name]["momentum"]
    parts = [(method.target_encoder, method.encoder), (method.target_head, method.head)]
    for step in range(1, total + 1):
        before = [[x.clone() for x in slow.parameters()] for slow, _ in parts]
        with torch.no_grad():
            method.after_step(torch.tensor(step), total)
        m = 1 - (1 - momentum) * (1 + math.cos(math.pi * (step - 1) / total)) / 2
        for (slow, fast), old in zip(parts, before, strict=True):
            for a, b, c in zip(slow.parameters(), fast.parameters(), old, strict=True):
                torch.testing.assert_close(a, m * c + (1 - m) * b)
                assert not a.requires_grad
    assert not any(name.startswith("target") for name, p in method.named_parameters() if p.requires_grad)


# The last epoch's loss. At a rate of 1e-9 it is 2.0, 0.03, 17, 2.8, 4.7, 4.6.
LEARNED = {"byol": 1.4, "simsiam": -0.2, "many-patches": 0.0, "mocov3": 2.4, "swav": 3.0, "dino": 3.0}


@pytest.mark.parametrize("name", LEARNED)
def test_it_learns_digits_without_collapse(digits, name):
    few = replace(digits, images=digits.images[:512], labels=digits.labels[:512])
    more = {"encoder": "conv4", "batch": 64, "epochs": 3, "precision": "float32"}
    more |= {"views": {"preset": "supervised", "padding": 1, "flip": 0.0}, "optimizer": {"name": "adam", "lr": 3e-3}}
    engine = Engine(recipe_of(name, **more), few, seed=1, device=CPU)
    for epoch in range(3):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
    assert engine.means()["loss"] < LEARNED[name]
    x = normalize(features(engine.method.encoder, few))
    nearest = (x @ x.T).fill_diagonal_(-1).argmax(1)
    assert (few.labels[nearest] == few.labels).float().mean() > 0.6  # of one point, or at random, 0.1


@torch.no_grad()
def features(encoder, data):
    views = sw.views.preset("none", mean=data.mean, std=data.std)
    encoder.eval()
    x = encoder(views(data.images, samples=torch.arange(len(data)), seed=0, epoch=0))
    return x - x.mean(0)


def test_what_makes_no_sense_is_refused(digits):
    for name, options, message in (
        ("byol", {"momentum": 1.5}, "expected momentum from 0 to 1, got 1.5"),
        ("dino", {"momentum": -1}, "expected momentum from 0 to 1, got -1"),
        ("byol", {"views": 1}, "expected at least two views of each image, got 1"),
        ("simsiam", {"views": 1}, "expected at least two views of each image, got 1"),
        ("many-patches", {"patches": 1}, "expected at least two patches of each image, got 1"),
        ("many-patches", {"distortion": 0}, "expected distortion to be a finite number above 0, got 0"),
        ("mocov3", {"temperature": 0}, "expected temperature to be a finite number above 0"),
        ("swav", {"iterations": 0}, "expected iterations to be a finite number of at least 1, got 0"),
        ("swav", {"views": 1}, "expected at least two large views .* got 1 and 0"),
        ("dino", {"small": -1}, "got 2 and -1"),
        ("dino", {"small": 1, "small_side": 1.5}, "expected small_side above 0 and at most 1.* got 1.5"),
        ("dino", {"target_temperature": 0}, "expected target_temperature to be a finite number above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            methods.create(recipe_of(name, method=METHODS[name] | options), digits)
    with pytest.raises(ValueError, match="expected images of at least 8 x 8 pixels for conv4, got 6 x 6"):
        methods.create(recipe_of("swav-small", encoder="conv4"), digits)
    with pytest.raises(ValueError, match="got 'built-in', which only a method computes"):
        sw.register.loss["built-in"].make(torch.eye(2), torch.eye(2))


# Peers: their code on the same numbers.


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_cosines_equal_lightlys(package):
    theirs = package("lightly.loss").NegativeCosineSimilarity()
    p, t = numbers(2, 6, 4)
    torch.testing.assert_close(regression(p, t), 2 + 2 * theirs(p, t))


def test_swav_equals_lightlys(package):
    theirs = package("lightly.loss").SwaVLoss()
    scores = [*normalize(numbers(5, 8, 6), dim=2)]
    codes = [sinkhorn_codes(x, Processes(), epsilon=0.05, iterations=3) for x in scores[:2]]
    mine = swapped_cross_entropy(codes, [(x / 0.1).log_softmax(1) for x in scores])
    torch.testing.assert_close(mine, theirs(scores[:2], scores[2:])[0])


def test_dino_equals_lightlys(package, digits):
    theirs = package("lightly.loss").DINOLoss(20).double()
    scores = [*normalize(numbers(5, 8, 20), dim=2)]
    temperature = 1 / 32  # lightly holds it in float32
    targets = [(x / temperature).softmax(1) for x in scores[:2]]
    mine = swapped_cross_entropy(targets, [(x / 0.1).log_softmax(1) for x in scores])
    torch.testing.assert_close(mine, theirs(scores[:2], scores, teacher_temp=temperature), rtol=1e-14, atol=0)


def test_many_patches_equals_lightlys(package):
    """But for the sign of the coding rate, which lightly 1.6 adds where the paper and the authors' code subtract it."""
    module = package("lightly.loss.emp_ssl_loss")
    z = normalize(numbers(4, 9, 6), dim=2)
    torch.testing.assert_close(coding_rates(z, distortion=0.2).mean(), module.tcr_loss(z, eps=0.2).abs())
    cosine = torch.cosine_similarity(z, z.mean(0, keepdim=True), dim=2).mean()
    torch.testing.assert_close(-cosine, module.invariance_loss(z))
