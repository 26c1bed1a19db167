"""A batch in parts against the same batch whole, by plain autograd; what is drawn, counted and kept meanwhile."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import setwise as sw
import setwise.register as register
from setwise import methods
from setwise.data import ImageSet, matched_halves
from setwise.losses.presets import objective_of
from setwise.recipe import Recipe
from setwise.training.accumulation import backward_in_parts, divided
from setwise.training.engine import Engine

CPU, GPU = torch.device("cpu"), torch.device("cuda")
QARE = {"loss": "info-nce", "terms": [{"term": "qare", "weight": 0.5}]}
TREES = {
    "simclr": {"objective": "nt-xent"},
    "qare": {"objective": QARE},
    "features": {"objective": objective_of("ablation/simclr-features", 0.5).tree()},
    "two-terms": {"objective": QARE | {"terms": [*QARE["terms"], {"term": "gap", "weight": 3.0}]}},
    "three-views": {"objective": QARE, "method": {"name": "contrastive", "views": 3}},
    "small-parts": {
        "objective": QARE,
        "method": {"name": "contrastive", "views": 4, "against": "mean"},
        "views": {"preset": "patches", "crop": "part", "size": (5, 5)},
    },
    "neighbours": {"objective": QARE, "method": {"name": "neighbours", "start": 0.0}},
    "learned-temperature": {"objective": "learned-temperature"},
    "matching": {"method": "matching", "objective": objective_of("paper/matching-infonce-qare", 0.5).tree()},
    "supervised": {"method": "supervised"},
    "own-method": {"method": "predicting"},
    "byol": {"method": "byol", "objective": QARE | {"loss": "built-in"}},
    "simsiam": {"method": "simsiam"},
    "many-patches": {"method": {"name": "many-patches", "patches": 3}},
    "swav": {"method": {"name": "swav", "prototypes": 10, "freeze": 0, "small": 1}},
    "dino": {"method": {"name": "dino", "prototypes": 10, "freeze": 0, "small": 1}},
}


class GroupNormed(nn.Module):
    """Convolutions with a GroupNorm, an attention over the pixels, and dropout; no BatchNorm."""

    features = 12

    def __init__(self, channels, dropout):
        super().__init__()
        self.first, self.norm = nn.Conv2d(channels, 12, 3, 2), nn.GroupNorm(3, 12)
        self.attention, self.dropout = nn.MultiheadAttention(12, 2, batch_first=True), nn.Dropout(dropout)

    def forward(self, images):
        x = self.norm(self.first(images)).flatten(2).mT
        return self.dropout(x + self.attention(x, x, x)[0]).mean(1)


class Predicting(methods.Method):
    """One view predicts a frozen network's features of the other, which have no gradient."""

    def __init__(self, parts):
        super().__init__()
        self.encoder, self.views = parts.encoder, parts.views
        self.target = copy.deepcopy(parts.encoder).requires_grad_(False)

    def encode(self, batch):
        return self.encoder(batch.view(self.views)), self.target(batch.view(self.views, first=1))

    def compare(self, encoded, batch):
        z, target = encoded
        return {"loss": (z @ target.T).logsumexp(1).mean() - (z * target).sum(1).mean()}


@pytest.fixture(autouse=True)
def mine(registries):
    @register.encoder("group-normed", about="A test's.")
    def group_normed(channels, *, dropout: float = 0.0):
        return GroupNormed(channels, dropout)

    @register.loss("learned-temperature", about="A test's.")
    def learned():
        return sw.InfoNCE(nn.Parameter(torch.tensor(0.2)))

    register.method("predicting", about="A test's.")(Predicting)


def engine_of(tree, data, *, parts=1, **options):
    base = {"encoder": "group-normed", "precision": "float64", "batch": 20, "epochs": 2, "parts": parts}
    recipe = Recipe.read(base | tree)
    return Engine(recipe, matched_halves(data) if recipe.matched else data, seed=1, device=CPU, **options)


def batch_of(engine, count=20):
    engine.begin(0)
    return engine.batch(torch.arange(count))


def gradients(method):
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("parts", [2, 3, 64])
def test_loss_and_gradients_are_those_of_the_whole_batch(digits, name, parts):
    engine = engine_of(TREES[name], digits)
    batch, before = batch_of(engine), copy.deepcopy(engine.method.state_dict())
    terms = engine.method(batch)
    terms["loss"].backward()
    expected = gradients(engine.method)
    engine.method.zero_grad()
    engine.method.load_state_dict(before)  # DINO's center moves
    found = backward_in_parts(engine.method, batch, parts, lambda: torch.autocast("cpu", enabled=False))
    assert found.keys() == terms.keys()
    for term, value in terms.items():
        torch.testing.assert_close(found[term], value, rtol=1e-10, atol=1e-10)
    got = gradients(engine.method)
    assert got.keys() == expected.keys()
    assert any("temperature" in key for key in got) is (name == "learned-temperature")
    for key, gradient in expected.items():
        assert gradient.abs().max() > 0 or key.endswith("bias"), key  # before a norm a bias has none
        torch.testing.assert_close(got[key], gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parts", [2, 3])
def test_an_epoch_in_parts_ends_as_one_without(digits, parts):
    """The last batch is smaller, and its parts differ in length."""
    ends = []
    for count in (1, parts):
        engine = engine_of(
            {"objective": QARE, "batch": 60, "optimizer": {"name": "sgd", "lr": 0.1}}, digits, parts=count
        )
        engine.begin(0)
        for _ in range(engine.steps):
            engine.step()
        ends.append(engine.tensors() | {"means": torch.tensor(list(engine.means().values()))})
    for name, x in ends[0].items():
        torch.testing.assert_close(ends[1][name], x, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


def test_parts_of_a_batch_are_its_items_in_order(digits):
    for tree, sets in (({"method": "supervised"}, 1), (TREES["matching"], 2)):
        batch = batch_of(engine_of(tree, digits), 7)
        parts = divided(batch, 3)
        assert [len(part.labels) for part in parts] == [2, 2, 3]
        for name in ("images", "samples", "labels"):
            whole, pieces = getattr(batch, name), [getattr(part, name) for part in parts]
            times = 1 if name == "labels" else sets
            again = torch.cat([torch.stack(piece.chunk(times)) for piece in pieces], 1).flatten(0, 1)
            assert torch.equal(again, whole)


def test_batchnorm_normalises_each_part_and_counts_each_image_once(digits):
    engine = engine_of({"objective": QARE, "encoder": "conv4"}, digits, parts=4)
    alone = copy.deepcopy(engine.method).train()
    batch = batch_of(engine)
    backward_in_parts(engine.method, batch, 4, lambda: torch.autocast("cpu", enabled=False))
    with torch.no_grad():
        h = torch.cat([alone.encode(part)[0] for part in divided(batch, 4)])
        alone.compare((h,), batch)
    expected, got = alone.state_dict(), engine.method.state_dict()
    assert got["encoder.blocks.1.num_batches_tracked"] == 4
    assert got["head.1.num_batches_tracked"] == 1, "the head sees the whole batch"
    for name, x in expected.items():
        torch.testing.assert_close(got[name], x, rtol=1e-12, atol=1e-12)


class Held:
    """A tensor that a backward pass waits for; all of them are counted."""

    now = most = 0

    def __init__(self, x):
        self.x = x
        Held.now += x.nbytes
        Held.most = max(Held.now, Held.most)

    def __del__(self):
        Held.now -= self.x.nbytes


def test_what_is_kept_for_the_backward_pass_falls_with_the_parts(digits):
    most = {}
    for parts in (1, 2, 8):
        engine = engine_of({"method": "supervised", "batch": 128}, digits, parts=parts)
        engine.begin(0)
        Held.now = Held.most = 0
        with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.x):
            engine.step()
        most[parts] = Held.most
    assert most[2] < 0.6 * most[1]
    assert most[8] < 0.2 * most[1]


@pytest.mark.parametrize("encoder", ["group-normed", "conv4"])
def test_a_run_in_parts_goes_on_with_the_same_bits(digits, encoder):
    tree = {"objective": QARE, "encoder": encoder, "precision": "float32"}
    whole, half, other = (engine_of(tree, digits, parts=3) for _ in range(3))
    for engine, steps in ((whole, 10), (half, 4)):
        engine.begin(0)
        for _ in range(steps):
            engine.step()
    other.restore({name: x.clone() for name, x in half.tensors().items()})
    other.begin(0, 4)
    for _ in range(6):
        other.step()
    for name, x in whole.tensors().items():
        assert torch.equal(other.tensors()[name], x), name


def test_bfloat16_is_near_float32(digits):
    losses = []
    for precision in ("bfloat16", "float32"):
        engine = engine_of({"objective": QARE, "precision": precision}, digits, parts=3)
        start = {name: p.clone() for name, p in engine.method.named_parameters()}
        engine.begin(0)
        engine.step()
        losses.append(engine.means()["loss"])
        # Weights that one autocast casts without gradients must not serve the pass with gradients.
        assert all(not torch.equal(p, start[name]) for name, p in engine.method.named_parameters())
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


def test_a_network_that_draws_is_refused_by_name(digits):
    engine = engine_of({"encoder": {"name": "group-normed", "dropout": 0.5}}, digits, parts=2)
    engine.begin(0)
    with pytest.raises(
        ValueError, match=r"draws nothing at random.*got encoder.dropout \(Dropout\); set its rate to 0"
    ):
        engine.step()
    engine = engine_of({"encoder": {"name": "group-normed", "dropout": 0.5}}, digits)
    engine.begin(0)
    engine.step()


def test_a_method_with_a_forward_of_its_own_is_refused_by_name(digits):
    class Mine(methods.Contrastive):
        def forward(self, batch):
            return {"loss": super().forward(batch)["loss"] + 1}

    register.method("mine", about="A test's.", takes=("objective",))(Mine)
    for name in ("rotation", "deepcluster", "deepinfomax", "mine"):
        tree = {"method": name, "encoder": "conv4"}
        with pytest.raises(ValueError, match=f"encode.batch. and compare.* got {name!r}.*leave out --parts"):
            engine_of(tree, digits, parts=2)
        engine_of(tree, digits)


def test_encodings_that_are_no_rows_of_items_are_refused(digits):
    class Stacked(methods.Contrastive):
        def encode(self, batch):
            return (self.encoder(batch.view(self.views, count=2)),)

    register.method("stacked", about="A test's.", takes=("objective",))(Stacked)
    engine = engine_of({"method": "stacked"}, digits, parts=2)
    engine.begin(0)
    with pytest.raises(ValueError, match=r"expected encode of Stacked .* each of 10 items, got \[20\] rows"):
        engine.step()


def test_a_recipe_says_in_how_many_parts():
    assert Recipe.read({}).parts == 1
    assert Recipe.read({}).changed({"parts": "4"}).tree()["parts"] == 4
    with pytest.raises(ValueError, match="expected parts to be .* at least 1, got 0"):
        Recipe.read({"parts": 0})


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of torch's compiler
@pytest.mark.parametrize("encoder", ["group-normed", "conv4"])
@pytest.mark.parametrize("compile", [False, True])
def test_parts_on_a_gpu_captured_and_compiled(encoder, compile):
    """Captured steps in parts, compiled or not, against steps one by one; without BatchNorm against the whole batch."""
    pixels = torch.randint(0, 256, (300, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = ImageSet("noise", "train", pixels, torch.arange(300) % 2, ("a", "b"), (0.5,) * 3, (0.25,) * 3)
    tree = {"objective": QARE, "encoder": encoder, "batch": 128, "epochs": 2, "precision": "float32"}
    recipe = Recipe.read(tree | {"optimizer": {"name": "sgd", "lr": 0.01}})
    found = []
    for parts, capture in ((4, True), (4, False), *([(1, True)] if encoder == "group-normed" else [])):
        compiled = compile and parts == 4 and capture
        engine = Engine(replace(recipe, parts=parts), data, seed=1, device=GPU, capture=capture, compile=compiled)
        for epoch in range(2):
            engine.begin(epoch)
            for _ in range(engine.steps):
                engine.step()
        weights = torch.cat([p.detach().flatten() for p in engine.method.parameters()])
        found.append((weights, engine.means()["loss"]))
    for weights, loss in found[1:]:
        assert loss == pytest.approx(found[0][1], rel=5e-3)
        torch.testing.assert_close(weights, found[0][0], rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
def test_a_network_that_draws_is_refused_on_a_gpu_too(digits):
    recipe = Recipe.read({"encoder": {"name": "group-normed", "dropout": 0.5}, "batch": 20, "parts": 2})
    with pytest.raises(ValueError, match="draws nothing at random"):
        Engine(recipe, digits, seed=1, device=GPU)
