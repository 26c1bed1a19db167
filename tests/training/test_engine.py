"""The engine against a plain loop written here; the same bits for the same seed; every method."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn

import setwise.register as register
from setwise import encoders, methods
from setwise.data import ImageSet, MatchedSet, matched_halves
from setwise.losses.presets import presets
from setwise.methods.contrastive import Contrastive
from setwise.methods.matching import draw_shots
from setwise.paper.recipes import recipe as named
from setwise.recipe import Recipe
from setwise.training import engine as engines
from setwise.training.engine import Engine, _check_share
from setwise.training.errors import TrainingError
from setwise.training.schedule import epoch_order
from setwise.views import preset

CPU, GPU = torch.device("cpu"), torch.device("cuda")
NAMES = ("simclr-qare", "sparseclr-qare", "supervised", "rotation", "deepcluster", "deepinfomax")
OWN_LOSS = {  # with a term, and a moving mean of the weights
    "byol": {"name": "byol", "momentum": 0.9},
    "simsiam": {"name": "simsiam"},
    "many-patches": {"name": "many-patches", "patches": 3},
    "mocov3": {"name": "mocov3", "momentum": 0.9},
    "swav": {"name": "swav", "prototypes": 20, "small": 1, "small_side": 1.0},
    "dino": {"name": "dino", "prototypes": 20, "momentum": 0.9, "small": 1, "small_side": 1.0},
    "neighbours": {"name": "neighbours", "start": 0.4},
}
QARE = {"loss": "built-in", "terms": [{"term": "qare", "weight": 0.5}]}


def few_epochs(name):
    if name in OWN_LOSS:
        objective = QARE | ({"loss": "info-nce"} if name == "neighbours" else {})
        return Recipe.read({"method": OWN_LOSS[name], "objective": objective, "ema": 0.9, "epochs": 2, "batch": 60})
    return replace(named(f"released/digits-conv4-{name}"), epochs=2, batch=60)


def trained(recipe, data, steps=None, *, seed=1, epochs=1, device=CPU, capture=True):
    engine = Engine(recipe, data, seed=seed, device=device, capture=capture)
    for epoch in range(epochs):
        engine.begin(epoch)
        for _ in range(engine.steps if steps is None else steps):
            engine.step()
    return engine


def weights(engine):
    return torch.cat([x.flatten().double() for x in engine.method.state_dict().values()])


def test_two_epochs_and_a_half_equal_a_plain_loop(digits, recipe):
    recipe = recipe.changed({"precision": "float64", "weight_decay": 0.1})
    engine = trained(recipe, digits, epochs=2)
    engine.begin(2)
    for _ in range(2):
        engine.step()

    torch.manual_seed(1)
    encoder = encoders.create("conv4", channels=1)
    model = nn.Sequential(encoder, encoders.projection_head()).double()
    loss = presets("paper/simclr-qare", beta=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1)
    views = preset("self-supervised", mean=digits.mean, std=digits.std)
    for epoch in range(3):
        losses = []
        for samples in epoch_order(200, seed=1, epoch=epoch).split(60)[: 2 if epoch == 2 else 4]:
            x = views.pair(digits.images[samples], samples=samples, seed=1, epoch=epoch).double()
            z_a, z_b = model(x.flatten(0, 1)).chunk(2)
            value = loss(z_a, z_b)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item() * len(samples))
    assert [len(s) for s in epoch_order(200, seed=1, epoch=0).split(60)] == engine.sizes == [60, 60, 60, 20]
    assert engine.means()["loss"] == pytest.approx(sum(losses) / 120, rel=1e-12), "so far"
    for name, x in encoder.state_dict().items():
        torch.testing.assert_close(engine.method.encoder.state_dict()[name], x, rtol=1e-9, atol=1e-10)


def test_these_are_all_methods():
    """But for one that is not trained, and those of two sides, which have files of their own."""
    tried = {few_epochs(name).method.name for name in (*NAMES, *OWN_LOSS)}
    assert tried | {"random", "matching", "pairs"} == set(register.method)


@pytest.mark.parametrize("name", [*NAMES, *OWN_LOSS])
def test_every_method_trains_and_repeats_itself_bit_for_bit(digits, name):
    recipe = few_epochs(name).changed({"lr": 3e-3})
    before = Engine(recipe, digits, seed=1, device=CPU)
    first, second = (trained(recipe, digits, epochs=2) for _ in range(2))
    assert torch.equal(weights(first), weights(second))
    assert not torch.equal(weights(first), weights(trained(recipe, digits, epochs=2, seed=2)))
    encoders_of = [dict(e.method.encoder.named_parameters()) for e in (before, first)]
    assert all(not torch.equal(encoders_of[0][name], encoders_of[1][name]) for name in encoders_of[0])
    assert "loss" in first.means()


def test_a_method_is_made_of_the_recipes_numbers(digits):
    base = {"head": {"hidden": 48, "out": 24}, "views": {"preset": "supervised", "padding": 3}}
    terms = [{"term": "qare", "weight": 0.7}]
    for stem, side in (("cifar", 3), ("imagenet", 7)):
        encoder = {"name": "resnet18", "stem": stem, "weights": "xavier"}
        recipe = Recipe.read(base | {"encoder": encoder, "objective": {"loss": "info-nce", "terms": terms}})
        simclr = methods.create(recipe, digits)
        first = simclr.encoder.stem[0]
        assert (first.in_channels, first.kernel_size) == (1, (side, side))
        bound = (6 / (65 * side**2)) ** 0.5  # Glorot and Bengio's; a normal distribution goes beyond
        assert first.weight.abs().max() <= bound
    assert (simclr.head[0].out_features, simclr.head[-1].out_features, simclr.loss.beta) == (48, 24, 0.7)
    assert simclr.views == replace(preset("supervised", mean=digits.mean, std=digits.std), padding=3)
    clustered = methods.create(Recipe.read(base | {"method": "deepcluster"}), digits)
    assert (clustered.classifier[0].out_features, len(clustered.weights), len(clustered.clusters)) == (48, 100, 200)
    for adversarial in (True, False):
        recipe = Recipe.read(base | {"method": {"name": "deepinfomax", "adversarial": adversarial}})
        assert methods.create(recipe, digits).adversarial is adversarial
    for method in ("supervised", "random"):
        recipe = Recipe.read(base | {"method": method, "epochs": 0})
        assert methods.create(recipe, digits).classifier.out_features == 10
    tree = base | {"method": "matching", "encoder": "resnet8", "objective": {"loss": "triplet", "terms": terms}}
    matching = methods.create(Recipe.read(tree), matched_halves(digits))
    assert (matching.project.out_features, matching.loss.beta) == (24, 0.7)


def test_a_batch_of_identities_is_the_epochs_shots_of_them(digits):
    recipe = replace(named("paper/digits-matching-infonce"), epochs=9, batch=4)
    shots = torch.arange(80).view(2, 10, 4)
    data = MatchedSet("toy", "train", digits.images, *shots, tuple("abcdefghij"), digits.mean, digits.std)
    engine, samples = Engine(recipe, data, seed=3, device=CPU), torch.tensor([7, 2, 5, 0])
    engine.begin(8)
    places, keys = draw_shots(data, samples, seed=torch.tensor(3), epoch=torch.tensor(8))
    batch = engine.batch(samples)
    assert torch.equal(batch.images, digits.images[places])
    assert (batch.samples.tolist(), batch.seed, batch.epoch) == (keys.tolist(), 3, 8)


def test_preparing_leaves_no_trace(digits, recipe):
    """Making the optimiser's state takes a step, which must be undone."""
    for optimizer in ({"name": "adam"}, {"name": "adamw"}, {"name": "sgd"}, {"name": "sgd", "momentum": 0.0}):
        recipe = Recipe.read(recipe.tree() | {"optimizer": optimizer | {"weight_decay": 0.1}})
        torch.manual_seed(3)
        generator = torch.get_rng_state()
        engine = Engine(recipe, digits, seed=5, device=CPU)
        assert torch.equal(torch.get_rng_state(), generator), "nothing was drawn"
        torch.manual_seed(5)
        fresh = methods.create(recipe, digits)
        for name, x in fresh.state_dict().items():
            assert torch.equal(engine.method.state_dict()[name], x)
        state = {n: x for n, x in engine.tensors().items() if n.startswith("optimizer.")}
        assert bool(state) is ("momentum" not in optimizer)
        assert all((x == 0).all() for x in state.values())


@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [
        ("adam", {"weight_decay": 0.3}, lambda w: torch.optim.Adam(w, 0.05, weight_decay=0.3)),
        ("adamw", {}, lambda w: torch.optim.AdamW(w, 0.05, weight_decay=0.05)),
        ("adamw", {"weight_decay": 0.3}, lambda w: torch.optim.AdamW(w, 0.05, weight_decay=0.3)),
        ("sgd", {}, lambda w: torch.optim.SGD(w, 0.05, momentum=0.9)),
        ("sgd", {"momentum": 0.5, "weight_decay": 0.3}, lambda w: torch.optim.SGD(w, 0.05, 0.5, weight_decay=0.3)),
    ],
)
def test_optimizers_are_torchs(name, options, theirs):
    mine, other, by_tensor = (nn.Parameter(torch.tensor(0.7, dtype=torch.float64)) for _ in range(3))
    rate = torch.tensor(0.05, dtype=torch.float64)
    makers = (
        (register.optimizer.make(name, options | {"lr": 0.05}, groups=[{"params": [mine]}]), mine),
        (register.optimizer[name].make([{"params": [by_tensor]}], lr=rate, **options), by_tensor),
        (theirs([other]), other),
    )
    for scale in range(1, 6):
        for optimizer, w in makers:
            w.grad = scale * w.detach() ** 3
            optimizer.step()
    assert mine.item() == by_tensor.item() == pytest.approx(other.item(), rel=1e-9)


class TwoRates(methods.Supervised):
    """A classifier that learns ten times as fast as the encoder, which alone is decayed; biases stay as they are."""

    def groups(self):
        slow = {"params": list(self.encoder.parameters()), "weight_decay": 0.1}
        return [slow, {"params": [self.classifier.weight], "lr": 0.5, "weight_decay": 0.0}]


@pytest.mark.usefixtures("registries")
def test_groups_with_their_own_rates_and_decays_equal_torch(digits):
    register.method("two-rates", about="A test's.")(TwoRates)
    sgd = {"name": "sgd", "lr": 0.05, "momentum": 0.8, "weight_decay": 0.7}
    tree = {"method": "two-rates", "optimizer": sgd, "schedule": "cosine", "epochs": 2, "batch": 100, "views": "none"}
    recipe = Recipe.read(tree | {"precision": "float64"})
    engine = trained(recipe, digits, epochs=2)
    torch.manual_seed(1)
    model = methods.create(recipe, digits).double()
    bias = model.classifier.bias.clone()
    groups = [
        {"params": list(model.encoder.parameters()), "weight_decay": 0.1},
        {"params": [model.classifier.weight], "weight_decay": 0.0},
    ]
    optimizer, views = torch.optim.SGD(groups, lr=0.05, momentum=0.8), preset("none", mean=digits.mean, std=digits.std)
    for epoch in range(2):
        loss = hits = 0.0
        for turn, samples in enumerate(epoch_order(200, seed=1, epoch=epoch).split(100)):
            rate = 0.5 * (1 + math.cos(math.pi * (2 * epoch + turn) / 4))
            for group, peak in zip(optimizer.param_groups, (0.05, 0.5), strict=True):
                group["lr"] = peak * rate
            optimizer.zero_grad()
            x = views(digits.images[samples], samples=samples, seed=1, epoch=epoch).double()
            logits, labels = model.classifier(model.encoder(x)), digits.labels[samples]
            mean = nn.functional.cross_entropy(logits, labels)
            mean.backward()
            optimizer.step()
            loss += mean.item() / 2
            hits += (logits.argmax(1) == labels).double().mean().item() / 2
    assert engine.means() == pytest.approx({"loss": loss, "accuracy": hits}, rel=1e-6)
    for name, x in model.state_dict().items():
        torch.testing.assert_close(engine.method.state_dict()[name], x, rtol=1e-9, atol=1e-11)
    assert torch.equal(engine.method.classifier.bias, bias)
    other = Engine(recipe, digits, seed=1, device=CPU)
    other.restore(engine.tensors())
    for name, x in engine.tensors().items():
        assert torch.equal(other.tensors()[name], x), name


@pytest.mark.parametrize("name", OWN_LOSS)
def test_methods_with_a_loss_of_their_own_are_restored_with_the_same_bits(digits, name):
    recipe = few_epochs(name)
    whole, half, other = trained(recipe, digits, epochs=2), trained(recipe, digits, 2), trained(recipe, digits, 0)
    other.restore({name: x.clone() for name, x in half.tensors().items()})
    for epoch, first in ((0, 2), (1, 0)):
        other.begin(epoch, first)
        for _ in range(first, 4):
            other.step()
    assert whole.tensors().keys() == other.tensors().keys()
    for name, x in whole.tensors().items():
        assert torch.equal(other.tensors()[name], x), name


def test_restoring_in_mid_epoch_goes_on_with_the_same_bits(digits, recipe):
    recipe = recipe.changed({"schedule": "cosine"})
    whole, half, other = trained(recipe, digits, epochs=2), trained(recipe, digits, 2), trained(recipe, digits, 0)
    half.keep()
    kept = {name: x.clone() for name, x in half.method.state_dict().items()}
    other.restore({name: x.clone() for name, x in half.tensors().items()})
    for epoch, first in ((0, 2), (1, 0)):
        other.begin(epoch, first)
        for _ in range(first, 4):
            other.step()
        if epoch == 0:
            assert trained(recipe, digits).means() == other.means()
    assert torch.equal(weights(whole), weights(other))
    assert whole.means() == other.means()
    assert other.kept.keys() == kept.keys()
    assert all(torch.equal(other.kept[name], x) for name, x in kept.items()), "training leaves them as they are"
    start = Engine(recipe, digits, seed=1, device=CPU)
    whole.restore(start.tensors())
    assert torch.equal(weights(whole), weights(start)), "one without sums, from before the first step"


def test_the_mean_of_the_weights_is_plain_at_first_and_then_moves(digits, recipe):
    recipe = recipe.changed({"ema": 0.75, "precision": "float64"})
    engine, plain = (Engine(one, digits, seed=1, device=CPU) for one in (recipe, recipe.changed({"ema": 0})))
    seen = []
    for epoch in range(2):
        for one in (engine, plain):
            one.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
            plain.step()
            seen.append({name: x.clone() for name, x in plain.method.encoder.state_dict().items()})
    for name, x in engine.method.encoder.state_dict().items():
        assert torch.equal(x, seen[-1][name]), "training is the same"
    mean = engine.evaluated_encoder().state_dict()
    assert set(mean) == set(seen[0])
    for name, found in mean.items():
        expected = sum(one[name] for one in seen[:4]) / 4  # 1 / (1 - 0.75)
        for one in seen[4:]:
            expected = 0.75 * expected + 0.25 * one[name]
        torch.testing.assert_close(found, expected if found.is_floating_point() else seen[-1][name])
    assert plain.evaluated_encoder() is plain.method.encoder
    assert {n for n in engine.tensors() if n.startswith("mean.")} == {f"mean.encoder.{name}" for name in mean}


def test_an_epoch_begins_with_the_method_prepared_and_in_training(digits, monkeypatch):
    begun = []
    monkeypatch.setattr(methods.DeepCluster, "begin_epoch", lambda *me, **when: begun.append((*me, when)))
    engine = Engine(few_epochs("deepcluster"), digits, seed=7, device=CPU)
    for place in ((0,), (0, 2), (1,)):
        engine.method.eval()
        engine.begin(*place)
        assert engine.method.training
    assert begun == [(engine.method, digits, {"seed": 7, "epoch": epoch}) for epoch in (0, 1)]


def test_restoring_something_else_is_refused_and_changes_nothing(digits, recipe):
    engine = Engine(recipe, digits, seed=1, device=CPU)
    before = weights(engine)
    good = {name: x.clone() + 1 for name, x in engine.tensors().items()}
    head = "model.head.0.bias"
    for other, message in (
        (dict(list(good.items())[1:]), "got no such tensor"),
        (good | {"model.more": torch.zeros(3)}, "expected no such tensor for model.more"),
        (good | {head: torch.zeros(1)}, rf"\(256,\) for {head}, got torch.float32 of shape \(1,\)"),
        (good | {head: good[head].double()}, rf"expected torch.float32 .* for {head}, got torch.float64"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.restore(other)
    assert torch.equal(weights(engine), before)


def test_bad_settings(digits, recipe):
    one = replace(digits, images=digits.images[:1], labels=digits.labels[:1])
    large = replace(recipe, batch=500, drop_last=True)
    for given, data, seed, message in (
        (large, digits, 1, "expected a batch of at most the 200 images of digits, got 500"),
        (recipe, digits, -1, "got -1"),
        (recipe, digits, 2**63, r"expected a seed from 0 to 2\^63 - 1"),
        (recipe, one, 1, "expected at least two images to train on, got 1 in digits"),
        (recipe, replace(digits, images=digits.images[..., :4]), 1, "at least 8 x 8 pixels for conv4, got 8 x 4"),
    ):
        with pytest.raises(ValueError, match=message):
            Engine(given, data, seed=seed, device=CPU)
    assert Engine(replace(large, epochs=0), one, seed=2**63 - 1, device=CPU).means() == {}


def test_a_part_of_a_gpu_is_warned_of(monkeypatch):
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)
    _check_share()
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "30")
    with pytest.warns(RuntimeWarning, match=r"to be unset, got 30: .* `setwise help errors#mps`"):
        _check_share()


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_not_finite_is_an_error(digits, recipe, value):
    engine = trained(recipe, digits)
    engine._totals["loss"].fill_(float(value))
    with pytest.raises(TrainingError, match=f"expected a finite loss, got {value} in epoch 1, by step 4 of 4"):
        engine.means()
    engine.begin(1)
    assert engine.means() == dict.fromkeys(("loss", "pairwise", "regularizer"), 0.0)


@pytest.mark.parametrize("precision", ["auto", "float32", "bfloat16", "float64"])
def test_layers_compute_in_the_recipes_precision(digits, recipe, precision):
    seen = set()
    engine = Engine(replace(recipe, precision=precision), digits, seed=1, device=CPU)
    engine.method.head[0].register_forward_hook(lambda layer, inputs, out: seen.add(out.dtype))
    engine.begin(0)
    engine.step()
    assert seen == {torch.float32 if precision == "auto" else getattr(torch, precision)}
    assert engine.means()["loss"] == pytest.approx(trained(recipe, digits, 1).means()["loss"], rel=0.01)


@pytest.fixture
def captures(monkeypatch):
    """The captures of engines; without a GPU: one runs nothing but its warm-ups, and its replay is the step."""
    captures, plain = [], []

    def captured(run, pool, before, warm_up, stream):
        captures.append((run.args, warm_up))
        for _ in range(warm_up):
            before()
            run()
        return run

    def within(stream):
        plain.append(stream)
        return nullcontext()

    monkeypatch.setattr(engines, "captured", captured)
    monkeypatch.setattr(engines, "new_stream", lambda: "stream")
    monkeypatch.setattr(engines, "within", within)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    return captures, plain


def test_a_smaller_batch_is_captured_when_it_comes_again(digits, recipe, captures):
    captures, plain = captures
    engine = Engine(recipe, digits, seed=1, device=CPU)
    engine._prepare(capture=True, compile=False)
    assert captures == [((60, None, 0.0), 3)]
    for epoch, expected in enumerate((1, 2, 2)):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
        assert len(captures) == expected
    assert (captures[1], plain) == (((20, None, 0.0), 0), ["stream"])
    other = trained(recipe, digits, epochs=3)
    assert torch.equal(weights(engine), weights(other))
    assert engine.means() == other.means()


def test_every_phase_of_a_method_is_captured_as_a_graph_of_its_own(digits, recipe, captures, monkeypatch):
    seen = []

    def phase(self, step, total):
        seen.append((step, total))
        return "late" if 2 * step >= total else "early"

    def forward(self, batch):
        terms = plain(self, batch)
        return {"loss": terms["loss"] * {"early": 1.0, "late": 0.5}[batch.phase]}

    plain = Contrastive.forward
    monkeypatch.setattr(Contrastive, "phase", phase)
    monkeypatch.setattr(Contrastive, "forward", forward)
    recipe = recipe.changed({"epochs": 4})
    made = []
    for capture in (True, False):
        engine = Engine(recipe, digits, seed=1, device=CPU)
        if capture:
            engine._prepare(capture=True, compile=False)
        for epoch in range(4):
            engine.begin(epoch)
            for _ in range(engine.steps):
                engine.step()
        made.append((weights(engine), engine.means()))
    kinds = [args[:2] for args, _ in captures[0]]
    assert kinds == [(60, "early"), (20, "early"), (60, "late"), (20, "late")]
    assert torch.equal(made[0][0], made[1][0])
    assert made[0][1] == made[1][1]
    assert seen[-1] == (4 * engine.steps - 1, 4 * engine.steps)


GROWING = {"encoder": "resnet8", "epochs": 4, "views.early": (4, 6), "views.until": (0.25, 0.7)}


def test_views_grow_in_the_course_of_training(digits, recipe, captures):
    """16 steps: those before 4 have 4 pixels a side, those before 11.2 have 6, the others the image's 8."""
    recipe, sizes = recipe.changed(GROWING), []
    engine = Engine(recipe, digits, seed=1, device=CPU)
    engine.method.encoder.register_forward_pre_hook(lambda module, inputs: sizes.append(inputs[0].shape[2]))
    for epoch in range(4):
        engine.begin(epoch)
        for _ in range(engine.steps):
            engine.step()
    assert sizes == 4 * [4] + 8 * [6] + 4 * [8]
    other = Engine(recipe, digits, seed=1, device=CPU)
    other._prepare(capture=True, compile=False)
    assert [args for args, _ in captures[0]] == [(60, None, 0.0), (60, None, 0.25), (60, None, 0.7)], "before training"
    for epoch in range(4):
        other.begin(epoch)
        for _ in range(other.steps):
            other.step()
    assert torch.equal(weights(engine), weights(other))
    assert other.preparation_seconds > 0
    fixed = trained(recipe.changed({"views.early": (), "views.until": ()}), digits, epochs=4)
    assert not torch.equal(weights(engine), weights(fixed))


@pytest.mark.gpu
def test_steps_with_views_that_grow_are_captured_and_the_same(digits, recipe):
    recipe = recipe.changed(GROWING)
    ours, plain = (trained(recipe, digits, epochs=4, device=GPU, capture=x) for x in (True, False))
    assert {since for _, _, since in ours._graphs} == {0.0, 0.25, 0.7}
    torch.testing.assert_close(weights(ours), weights(plain), rtol=0.02, atol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*NAMES, *OWN_LOSS])
def test_a_captured_step_equals_one_that_is_not(digits, name):
    recipe = few_epochs(name).changed({"precision": "float32", "optimizer": "adam"})
    found = []
    for capture in (True, False):
        engine = trained(recipe, digits, epochs=2, device=GPU, capture=capture)
        found.append((weights(engine), engine.means()))
    # Adam divides by the size of a gradient: what rounding decides where it is near 0 shows as a step of lr.
    assert (found[0][0] - found[1][0]).abs().mean() < 2e-4
    for name, value in found[0][1].items():
        assert value == pytest.approx(found[1][1][name], rel=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize(("encoder", "side"), [("conv4", 64), ("resnet32", 64), ("resnet18", 64), ("conv4", 28)])
def test_images_of_other_sizes(encoder, side, recipe):
    """tiny-ImageNet's, and one that our own convolutions do not take."""
    pixels = torch.randint(0, 256, (300, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    data = ImageSet(
        "noise", "train", pixels, torch.arange(300) % 200, tuple(map(str, range(200))), (0.5,) * 3, (0.25,) * 3
    )
    recipe = recipe.changed({"encoder": encoder, "epochs": 1, "batch": 128})
    if encoder == "resnet18":
        recipe = recipe.changed({"stem": "cifar"})
    captured, plain = (trained(recipe, data, device=GPU, capture=x).means()["loss"] for x in (True, False))
    assert captured == pytest.approx(plain, rel=0.02)


@pytest.mark.gpu
def test_a_captured_step_has_the_wrong_partners(digits, recipe):
    recipe = recipe.changed({"data.wrong_partners": 0.4, "epochs": 1})
    captured, plain = (trained(recipe, digits, device=GPU, capture=x).means()["loss"] for x in (True, False))
    assert captured == pytest.approx(plain, rel=0.02)
    assert plain != pytest.approx(trained(recipe.changed({"wrong_partners": 0.0}), digits, device=GPU).means()["loss"])


@pytest.mark.gpu
def test_a_captured_run_can_be_restored(digits, recipe):
    whole, other = trained(recipe, digits, 2, device=GPU), Engine(recipe, digits, seed=1, device=GPU)
    other.restore(whole.tensors())
    for engine in (whole, other):
        engine.begin(0, 2)
        engine.step()
        engine.step()
    torch.testing.assert_close(weights(whole), weights(other), rtol=1e-3, atol=1e-3)
    assert whole.means()["loss"] == pytest.approx(other.means()["loss"], rel=1e-3)
