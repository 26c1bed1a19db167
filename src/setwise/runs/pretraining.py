"""A run from its recipe to its record: train, evaluate, write."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import setwise.records as records
from setwise.checks import check_count, see
from setwise.data import ImageSet, PairSet, has_test_split, load
from setwise.data.subsets import few, long_tailed
from setwise.encoders import create as create_by_name
from setwise.evaluation.compression import compressed
from setwise.evaluation.features import extract, frozen
from setwise.evaluation.knn import KS, knn_accuracy
from setwise.evaluation.probe import linear_probe
from setwise.evaluation.retrieval import MOST, view_retrieval
from setwise.methods import Supervised
from setwise.recipe import Recipe
from setwise.records.run import pause_collection
from setwise.runs import structure
from setwise.runs.choices import choices
from setwise.training import checkpoint as checkpoints
from setwise.training.checkpoint import Checkpoint
from setwise.training.feeding import SHARE
from setwise.training.loop import RunOptions, about, check_same_data, train
from setwise.training.progress import print_line

FINE_TUNING_EPOCHS = 30
PLAIN_NEIGHBOURS = 10
HELD_OUT = 0.1  # share of the images that are kept to test on where nobody set any apart
Items = TypeVar("Items", ImageSet, PairSet)
PYTHON = "python:"  # before the name of images from Python, in place of a source


def choose_device(name: str) -> torch.device:
    """The device of that name; "auto" is a GPU where there is one."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except RuntimeError as error:
        raise ValueError(f"expected a device such as auto, cpu or cuda, got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("expected a CUDA device for --device cuda, got none; leave it out to use the CPU")
    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        words = str(error).splitlines()[0]
        raise ValueError(f"expected a device that this torch can use, got {name!r} ({words}); try cpu") from error
    return device


def splits(recipe: Recipe, root: Path | None) -> tuple[ImageSet, ImageSet]:
    """The images to train on, and those to test on."""
    data = recipe.data
    load_split = partial(load, data.source, root, options=data.options, wait=True)
    return with_test(recipe, load_split(split="train"), load_split, alone=not has_test_split(data.source))


def with_test(
    recipe: Recipe, train_set: ImageSet, load_split: Callable[..., ImageSet], *, alone: bool
) -> tuple[ImageSet, ImageSet]:
    """``splits_of``, with pixels that wait in a file read: once, and only those that are left."""
    train_set, test_set = splits_of(recipe, train_set, load_split, alone=alone)
    return train_set.in_memory(), test_set


def splits_of(
    recipe: Recipe, train_set: ImageSet, load_split: Callable[..., ImageSet], *, alone: bool
) -> tuple[ImageSet, ImageSet]:
    """The training split, less what is held out of it and what the recipe leaves out, and the images to test on.

    ``data.validation`` training images, drawn by ``split_seed``, replace the test split: for choosing between recipes.
    Where there is no test split (``alone``), a tenth of the images is drawn in the same way. Of resident pixels that
    wait in a file, those to test on are read, those to train on wait on.
    """
    data = recipe.data
    held_out = alone and not data.validation
    count = held_out_count(train_set) if held_out else data.validation
    if not count:
        return to_train_on(recipe, train_set), load_split(split="test").in_memory()
    kind = "held out" if held_out else "validation"
    rest, kept = hold_out(train_set, count, seed=data.split_seed, kind=kind)
    return to_train_on(recipe, rest), kept.in_memory()


def to_train_on(recipe: Recipe, images: ImageSet) -> ImageSet:
    """The images with the recipe's long tails, and of these as many as it takes, drawn by ``split_seed``."""
    data = recipe.data
    if data.imbalance != 1:
        images = long_tailed(images, data.imbalance, seed=data.split_seed)
    return images if data.instances is None else few(images, data.instances, seed=data.split_seed)


def hold_out(data: Items, count: int, *, seed: int, kind: str) -> tuple[Items, Items]:
    """All items but ``count`` drawn by ``seed``, and those, each in its order.

    Of pairs with labels or sets, whole ones are drawn: as many as have ``count`` pairs or fewer, but at least one.
    """
    if count >= len(data):
        what = "pairs" if isinstance(data, PairSet) else "images"
        if kind != "validation":
            raise ValueError(f"expected at least two {what}, one of them to test on, got {len(data)}; add others")
        raise ValueError(f"expected validation below the {len(data)} {what}, got {count}; give a smaller number")
    generator = torch.Generator().manual_seed(seed)
    together = (data.sets if data.labels is None else data.labels) if isinstance(data, PairSet) else None
    if together is not None:
        _, numbers, pairs = torch.unique(together.cpu(), return_inverse=True, return_counts=True)
        if len(pairs) < 2:
            raise ValueError("expected pairs of at least two labels or sets, to hold some out, got one; add others")
        order = torch.randperm(len(pairs), generator=generator, device="cpu")
        fit = max(1, int((pairs[order].cumsum(0) <= count).sum()))
        held = torch.isin(numbers, order[:fit])
    else:
        held = torch.zeros(len(data), dtype=torch.bool, device="cpu")
        held[torch.randperm(len(data), generator=generator, device="cpu")[:count]] = True
    rest, kept = (which.nonzero().flatten() for which in (~held, held))
    return data.select(rest, split="train"), data.select(kept, split=kind)


def held_out_count(images: ImageSet) -> int:
    """A tenth. Without classes at most as many as are looked at."""
    tenth = max(1, round(HELD_OUT * len(images)))
    return tenth if len(images.classes) > 1 else min(tenth, MOST)


def check_classes(train_set: ImageSet, test_set: ImageSet) -> None:
    """Raise unless both splits have the same classes in the same order: a label is a place in ``classes``."""
    if train_set.classes != test_set.classes:
        raise ValueError(
            f"expected the test split of {train_set.name} to have the classes of its training split, got others "
            "(cuhk03 is split by identity); use `setwise match` for such data, or `setwise pretrain` with "
            "--validation N to test on training images, or with --no-evaluate"
        )


def pretrain(
    recipe: Recipe,
    folder: Path,
    *,
    name: str,
    seed: int,
    how: RunOptions,
    root: Path | None = None,
    evaluate: bool = True,
    images: ImageSet | None = None,
    decide: Callable[[ImageSet], Recipe] | None = None,
) -> dict[str, Any]:
    """Train by a recipe, probe the frozen encoder, write the record into the run's folder; returns the record.

    ``images`` replace the recipe's source. ``decide`` makes another recipe when it sees the images. Without classes
    there is nothing to probe: two views of held-out images look for each other.
    """
    test_set: ImageSet | None = None
    data = recipe.data
    most = int(SHARE * torch.cuda.mem_get_info(how.device)[0]) if how.device.type == "cuda" else None
    load_split = partial(load, data.source, root, options=data.options, pixels=how.pixels, most_bytes=most, wait=True)
    with pause_collection():  # a row for each file is much to look at
        train_set = load_split(split="train") if images is None else images
    count, recipe = (None, recipe) if decide is None else (len(train_set), decide(train_set))
    classes = len(train_set.classes)
    alone = data.source.startswith(PYTHON) or not has_test_split(data.source)
    if classes < 2 and alone and not data.validation and held_out_count(train_set) < 2:
        evaluate = False  # too few images: of one alone nothing can be said
    if evaluate or data.validation:  # else there need not be any to test on
        train_set, test_set = splits_of(recipe, train_set, load_split, alone=alone)
    else:
        train_set = to_train_on(recipe, train_set)
    if how.device.type == "cpu":  # a GPU gets them without a copy here
        train_set = train_set.in_memory()
    if evaluate and test_set is not None:
        check_classes(train_set, test_set)
    if how.processes.first and not how.quiet:
        for line in choices(recipe, train_set, test_set, how.device, count=count):
            print_line(line, sys.stdout)
    title, look = f"{name} seed {seed}", structure.after_epoch
    engine, last = train(recipe, train_set, folder, seed=seed, how=how, title=title, after_epoch=look)
    sizes = {"name": train_set.name, "train": len(train_set)} | ({"test": len(test_set)} if test_set else {})
    record = records.of_run(name, engine, last, sizes)
    if how.processes.first:
        if evaluate and test_set is not None:
            encoder, device = engine.evaluated_encoder(), how.device
            if classes > 1:
                record["final"] = evaluate_encoder(encoder, train_set, test_set, recipe, seed=seed, device=device)
                record["timings"] |= record["final"].pop("timings")
            else:
                began = time.perf_counter()
                with frozen(encoder):
                    record["final"] = {"view_retrieval_accuracy": view_retrieval(encoder, test_set, device=device)}
                record["timings"]["retrieval_seconds"] = time.perf_counter() - began
            if isinstance(engine.method, Supervised) and recipe.epochs:
                record["final"]["classifier_accuracy"] = _classifier_accuracy(engine.method, test_set, device)
        records.write(folder / records.FILE, record)
    return record


def evaluate_encoder(
    encoder: nn.Module, train_set: ImageSet, test_set: ImageSet, recipe: Recipe, *, seed: int, device: torch.device
) -> dict[str, Any]:
    """Linear probe (the last epoch's accuracy) and kNN of a frozen encoder, and their seconds.

    Of 20 and 200 neighbours the nearer ones count more; of 10 each has one vote, as in scikit-learn.
    """
    classes = len(train_set.classes)
    began = time.perf_counter()
    with frozen(encoder):
        patches = recipe.evaluation.patches
        train_x, test_x = (_features(encoder, images, device, patches) for images in (train_set, test_set))
        train_y, test_y = (images.labels.to(train_x.device) for images in (train_set, test_set))
        extracted = time.perf_counter()
        options = asdict(recipe.evaluation.probe)
        probed = linear_probe(train_x, train_y, test_x, test_y, classes=classes, seed=seed, **options)
        done = time.perf_counter()
        given: Any = (train_x, train_y, test_x, test_y)
        neighbours = knn_accuracy(*given, classes=classes)
        if len(train_x) >= PLAIN_NEIGHBOURS:
            neighbours |= knn_accuracy(*given, classes=classes, k=PLAIN_NEIGHBOURS, temperature=None)
        found = {f"knn{k}_accuracy": accuracy for k, accuracy in neighbours.items()}
        if recipe.evaluation.compressed and (k := KS[0]) in neighbours:
            for name, (train_c, test_c) in compressed(train_x, test_x).items():
                near = knn_accuracy(train_c, train_y, test_c, test_y, classes=classes, k=k)
                found[f"knn{k}_{name}_accuracy"] = near[k]
    return {
        "probe_accuracy": probed.accuracy,
        **found,
        "timings": {
            "features_seconds": extracted - began,
            "probe_seconds": done - extracted,
            "knn_seconds": time.perf_counter() - done,
        },
    }


def _create(recipe: Recipe, channels: int) -> nn.Module:
    options = recipe.encoder.options | ({"pretrained": False} if "pretrained" in recipe.encoder.options else {})
    return create_by_name(recipe.encoder.name, channels=channels, **options)  # its weights come from the checkpoint


def encoder_of(found: Checkpoint, path: Path) -> nn.Module:
    """The trained encoder of the checkpoint at ``path``, on the CPU."""
    recipe, state = found.recipe, found.encoder_state()
    expected = f"expected the weights of {recipe.encoder.name} in {path}, got"
    advice = "the file is damaged or was changed, take another copy of it, or train again"
    missing = [name for name in ("shape", "mean", "std", "classes") if name not in found.data]
    if missing:
        raise ValueError(f"{expected} them without the {', '.join(missing)} of their images; {advice}")
    shape = found.data["shape"]
    sizes = isinstance(shape, list) and all(isinstance(n, int) and n > 0 for n in shape)
    if not sizes or len(shape) not in ((1, 3) if recipe.pairs else (3,)):
        raise ValueError(f"{expected} them for images of shape {shape!r}, not [C, H, W]; {advice}")
    # Without memory at first: what a foreign file asks for is compared with what is there before it is allocated.
    with torch.device("meta"):
        wanted = _create(recipe, shape[0]).state_dict()
    if not state:
        raise ValueError(f"{expected} none; {advice}")
    for name in sorted(wanted.keys() | state.keys()):
        want, got = (f"shape {tuple(x[name].shape)}" if name in x else "no such tensor" for x in (wanted, state))
        if want != got:
            raise ValueError(f"{expected} {name} as {got}, not {want}; {advice}")
    encoder = _create(recipe, shape[0])
    if any(x.dtype == torch.float64 for x in state.values()):
        encoder.double()
    encoder.load_state_dict(state)
    return encoder


def probe(
    path: Path,
    *,
    device: torch.device,
    data: str | ImageSet | None = None,
    root: Path | None = None,
    fine_tune: bool = False,
    fine_tune_epochs: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Evaluate a checkpoint anew: linear probe and kNN, and with ``fine_tune`` training of the whole network.

    ``data`` is other data than the run's, which must not have changed. The fine-tuned run stays beside the checkpoint,
    in a folder named after its first weights and its length.
    """
    check_count(fine_tune_epochs, "fine_tune_epochs")
    found = checkpoints.load(path)
    if found.epoch < found.recipe.epochs and not quiet:
        print(f"the run has not ended: epoch {found.epoch} of {found.recipe.epochs}", file=sys.stderr)
    encoder = encoder_of(found, path).to(device)
    if data is None and found.recipe.data.source.startswith(PYTHON):
        raise ValueError(
            "expected the images to probe on for a run on images from Python, which only Python has, got none; "
            "give them: run.probe(data), an ImageSet or a path"
        )
    recipe = found.recipe
    if data is not None or recipe.matched:  # all of them
        recipe = recipe.changed({"data.instances": None, "data.imbalance": 1.0})
    if isinstance(data, ImageSet):
        train_set, test_set = with_test(recipe, data, load, alone=True)
    else:
        recipe = recipe if data is None else recipe.changed({"data.source": data})
        train_set, test_set = splits(recipe, root)
    if not train_set.classes:
        raise ValueError(
            f"expected images with classes to probe on, got none in {train_set.name}; give others by --data (data= in "
            "Python), " + see("how-to/your-data#folder")
        )
    check_classes(train_set, test_set)
    if data is None and not recipe.matched:  # which is trained on two views of others
        advice = "--data says which data to probe on"
        check_same_data(found.data, about(train_set), f"{path} was trained on", advice)
    trained, given = found.data["shape"][0], train_set.images.shape[1]
    if given != trained:
        raise ValueError(
            f"expected images of {trained} channel{'s' * (trained > 1)}, as {path} was trained on, "
            f"got {given} ({train_set.name}); give --data (data= in Python) with such images"
        )
    result = evaluate_encoder(encoder, train_set, test_set, recipe, seed=found.seed, device=device)
    if fine_tune:
        tuning = fine_tuning(recipe, fine_tune_epochs or FINE_TUNING_EPOCHS)
        state = found.encoder_state()
        folder = (path if path.is_dir() else path.parent) / f"fine-tuned-{_digest(state)}-{tuning.epochs}"
        how = RunOptions(device, resume=True, quiet=quiet)
        engine, last = train(tuning, train_set, folder, seed=found.seed, how=how, title="fine-tuning", encoder=state)
        assert isinstance(engine.method, Supervised)
        result["fine_tuned_accuracy"] = _classifier_accuracy(engine.method, test_set, device)
        result["timings"]["fine_tuning_seconds"] = last.seconds
    return result


def fine_tuning(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe of training the whole network on the labels: small steps, since the encoder starts from something."""
    tree = recipe.tree() | {
        "method": "supervised",
        "objective": None,
        "schedule": "cosine",
        "epochs": epochs,
        "ema": 0.0,
    }
    tree["views"] = {"preset": "supervised", "padding": recipe.views["padding"]}
    tree["optimizer"] = {"name": "sgd", "lr": 0.01, "weight_decay": recipe.optimizer.options.get("weight_decay", 0.0)}
    return Recipe.read(tree)


def check_on_images(found: Checkpoint, path: Path) -> None:
    """Raise unless the run's encoder takes images."""
    if len(found.data.get("shape", ())) == 1:  # of ids or vectors
        raise ValueError(
            f"expected a run whose encoder takes images, got {path}, which was trained on pairs of others; "
            "`setwise embed RUN PAIRS --out x.npy` (run.embed_pairs in Python) embeds such pairs"
        )


def export(path: Path, folder: Path, *, onnx: bool = True) -> dict[str, Path]:
    """Write a checkpoint's encoder as safetensors with a config, and as ONNX if possible; returns the files."""
    from setwise.evaluation.export import export as write
    from setwise.evaluation.export import missing_packages

    found = checkpoints.load(path)
    check_on_images(found, path)
    encoder = encoder_of(found, path).float()
    config = {
        "name": found.recipe.encoder.name,
        "options": found.recipe.encoder.options,
        "mean": found.data["mean"],
        "std": found.data["std"],
        "classes": found.data["classes"],
    }
    if onnx and (missing := missing_packages()):
        print(f"setwise: no encoder.onnx: {missing}, and export again", file=sys.stderr)
        onnx = False
    return write(encoder, config, folder, image_shape=tuple(found.data["shape"]), onnx=onnx)


def _digest(state: dict[str, Tensor]) -> str:
    """A few letters that tell these weights from others."""
    from safetensors.torch import save

    return hashlib.sha256(save(state)).hexdigest()[:8]


def _features(encoder: nn.Module, images: ImageSet, device: torch.device, patches: int = 0) -> Tensor:
    """Of the images as they are, or the mean over so many patches of each (EMP-SSL)."""
    precision = "float64" if next(encoder.parameters()).dtype == torch.float64 else "float32"
    if not patches:
        return extract(encoder, images, device=device, precision=precision)
    total = extract(encoder, images, device=device, precision=precision, views="patches")
    for view in range(1, patches):
        total += extract(encoder, images, device=device, precision=precision, views="patches", view=view)
    return total / patches


@torch.no_grad()
def _classifier_accuracy(method: Supervised, test_set: ImageSet, device: torch.device) -> float:
    features = _features(method.encoder, test_set, device)
    weight = method.classifier.weight
    logits = method.classifier(features.to(weight.device, weight.dtype))
    return float((logits.argmax(1).cpu() == test_set.labels.cpu()).float().mean())
