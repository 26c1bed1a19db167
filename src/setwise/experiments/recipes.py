"""Named recipes: every hyper-parameter of the paper's experiments, and modern ones beside them.

    paper/DATA-ENCODER-METHOD       as the paper's text says: its losses, temperature 0.05, Xavier weights
    released/DATA-ENCODER-METHOD    as its released code computes, with that code's initial weights
    modern/cifar10-resnet18-...     what today's libraries train on CIFAR-10, with and without the set-level term
    paper/DATA-matching-LOSS        instance matching (Table 1), plain and -qare; setwise/...-gap and -control are ours

DATA: digits (ours), cifar10, cifar100, tiny-imagenet. ENCODER: conv4, resnet8, resnet32, resnet56. METHOD: simclr,
simclr-qare, sparseclr, sparseclr-qare, supervised, random, rotation, deepcluster, deepinfomax. Matching: DATA is
cuhk03, or cifar10 or digits, whose images are cut into halves; LOSS is triplet, infonce, nt-logistic or sparseclr.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

from setwise.recipe import Recipe

DATA = ("digits", "cifar10", "cifar100", "tiny-imagenet")
ENCODERS = ("conv4", "resnet8", "resnet32", "resnet56")
FORMS = ("paper", "released")
# Table 4. For what it does not list (digits, other depths): the middle of the range 0.75 to 1.25 that the paper
# calls safe.
BETA = {
    ("conv4", "simclr"): {"cifar10": 0.5, "cifar100": 0.375, "tiny-imagenet": 0.875},
    ("resnet32", "simclr"): {"cifar10": 1.125, "cifar100": 1.125, "tiny-imagenet": 1.125},
    ("conv4", "sparseclr"): {"cifar10": 0.125, "cifar100": 1.25, "tiny-imagenet": 0.5},
    ("resnet32", "sparseclr"): {"cifar10": 1.0, "cifar100": 0.875, "tiny-imagenet": 1.25},
}
OTHER_BETA = 1.0
PADDING = {"tiny-imagenet": 8, "digits": 1}  # an eighth of the image, as 4 is of CIFAR's 32 pixels

_BASELINES = {
    "supervised": {"views": "supervised", "optimizer": "sgd", "lr": 0.1, "schedule": "steps"},
    "random": {"views": "none", "epochs": 0},
    "rotation": {"views": "supervised"},
    "deepcluster": {"views": "supervised"},
    "deepinfomax": {"views": "flip", "lr": 1e-4, "drop_last": True},
}
_CONTRASTIVE = ("simclr", "simclr-qare", "sparseclr", "sparseclr-qare")
# ResNet-18 as lightly's and solo-learn's CIFAR-10 examples train it: SGD 0.06 per 256 images, cosine, a head of
# 512 -> 512 -> 128, temperature 0.5 among the 2N - 1 others.
_MODERN = Recipe(
    data="cifar10",
    method="simclr",
    encoder="resnet18",
    stem="cifar",
    loss="modern/simclr",
    hidden=512,
    embedding=128,
    views="modern",
    epochs=1000,
    batch=512,
    drop_last=True,
    optimizer="sgd",
    lr=0.12,
    weight_decay=5e-4,
    schedule="cosine",
    warmup=10,
)

# The matching recipe, ours where the paper is silent (see the notes on the paper): ResNet-18 from scratch, 64
# dimensions, unit vectors, Euclidean distances. As many halves as CUHK-03 has identities.
_MATCHING = Recipe(
    data="cuhk03",
    method="matching",
    encoder="resnet18",
    stem="imagenet",
    loss="paper/matching-infonce",
    views="matching",
    epochs=50,
    drop_last=True,
    lr=0.01,
    schedule="cosine",
)
_MATCHING_DATA = {
    "cuhk03": _MATCHING,
    "cifar10": replace(_MATCHING, data="cifar10", stem="cifar", instances=1467),
    "digits": replace(_MATCHING, data="digits", encoder="resnet8", padding=PADDING["digits"]),  # a small one, for a CPU
}
MATCHING_DATA = tuple(_MATCHING_DATA)
MATCHING_LOSSES = ("triplet", "infonce", "nt-logistic", "sparseclr")
# Weights of the terms that are not the paper's: those that a validation split chose beside InfoNCE with 1,467 halves
# of CIFAR-10 images, ten seeds (results/runs). Other losses and data want others.
MATCHING_WEIGHTS = {"gap": 10.0, "control": 1.0}


def _paper(form: str, data: str, encoder: str, method: str) -> Recipe:
    base = Recipe(
        data=data,
        encoder=encoder,  # type: ignore[arg-type]
        initial="xavier" if form == "paper" else "released",
        loss=f"{form}/{method}" if method in _CONTRASTIVE else None,
        beta=BETA.get((encoder, method.removesuffix("-qare")), {}).get(data, OTHER_BETA) if "qare" in method else None,
        method=method.removesuffix("-qare"),  # type: ignore[arg-type]
        padding=PADDING.get(data, 4),
        adversarial=form == "paper",
        epochs=0 if method == "random" else 200,
    )
    return replace(base, **_BASELINES.get(method, {}))  # type: ignore[arg-type]


RECIPES: dict[str, Recipe] = {
    f"{form}/{data}-{encoder}-{method}": _paper(form, data, encoder, method)
    for form in FORMS
    for data in DATA
    for encoder in ENCODERS
    for method in (*_CONTRASTIVE, *_BASELINES)
} | {
    "modern/cifar10-resnet18-simclr": _MODERN,
    "modern/cifar10-resnet18-simclr-qare": replace(_MODERN, loss="modern/simclr-qare", beta=OTHER_BETA),
    "modern/cifar10-resnet18-simclr-gap": replace(_MODERN, loss="modern/simclr-gap", beta=OTHER_BETA),
}
for _data, _recipe in _MATCHING_DATA.items():
    for _loss in MATCHING_LOSSES:
        for _end in ("", "-qare"):
            _name = f"matching-{_loss}{_end}"
            RECIPES[f"paper/{_data}-{_name}"] = replace(_recipe, loss=f"paper/{_name}")
        for _end, _weight in MATCHING_WEIGHTS.items():
            _name = f"matching-{_loss}-{_end}"
            RECIPES[f"setwise/{_data}-{_name}"] = replace(_recipe, loss=f"setwise/{_name}", beta=_weight)


def recipe(name: str) -> Recipe:
    """The recipe of that name; an unknown one is answered with the nearest that are known."""
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=3, cutoff=0.3)
        raise ValueError(
            f"expected the name of a recipe, got {name!r}; did you mean {', '.join(near) if near else 'paper/...'}? "
            "`setwise recipes` lists all of them"
        )
    return RECIPES[name]
