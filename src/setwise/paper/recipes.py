"""Named recipes: every hyper-parameter of the paper's experiments, and modern ones beside them.

    paper/DATA-ENCODER-METHOD       as the paper's text says: its losses, temperature 0.05, Xavier weights
    released/DATA-ENCODER-METHOD    as its released code computes, with that code's initial weights
    modern/cifar10-resnet18-...     as today's libraries train on CIFAR-10, with and without a set-level term; byol,
                                    simsiam, fastsiam, mocov3, swav, dino and many-patches on CIFAR-100 too
    paper/DATA-matching-LOSS        instance matching (Table 1), plain and -qare; setwise/...-gap and -control are ours
    pairs/...                       two encoders: texts, feature vectors, images with captions, halves of images; yours
                                    begin with these
    speedrun/...                    the speed record's, `setwise speedrun`

A name is a key and nothing more. Behind it stands a ``Cell``, from which ``recipe`` composes the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from setwise.losses.presets import objective_of
from setwise.recipe import Recipe, Tree

DATA = ("digits", "cifar10", "cifar100", "tiny-imagenet")
ENCODERS = ("conv4", "resnet8", "resnet32", "resnet56")
FORMS = ("paper", "released")
CONTRASTIVE = ("simclr", "sparseclr")
# Table 4. For data and depths that it does not list: the middle of the weights that the paper calls safe, 0.75 to 1.25.
BETA = {
    ("conv4", "simclr"): {"cifar10": 0.5, "cifar100": 0.375, "tiny-imagenet": 0.875},
    ("resnet32", "simclr"): {"cifar10": 1.125, "cifar100": 1.125, "tiny-imagenet": 1.125},
    ("conv4", "sparseclr"): {"cifar10": 0.125, "cifar100": 1.25, "tiny-imagenet": 0.5},
    ("resnet32", "sparseclr"): {"cifar10": 1.0, "cifar100": 0.875, "tiny-imagenet": 1.25},
}
OTHER_BETA = 1.0
PADDING = {"tiny-imagenet": 8, "digits": 1}  # an eighth of the image, as 4 is of CIFAR's 32 pixels
BASELINES: dict[str, Tree] = {
    "supervised": {"views": {"preset": "supervised"}, "optimizer": {"name": "sgd", "lr": 0.1}, "schedule": "steps"},
    "random": {"views": {"preset": "none"}, "epochs": 0},
    "rotation": {"views": {"preset": "supervised"}},
    "deepcluster": {"views": {"preset": "supervised"}},
    "deepinfomax": {"views": {"preset": "flip"}, "optimizer": {"name": "adam", "lr": 1e-4}, "drop_last": True},
}
MATCHING_DATA = ("cuhk03", "cifar10", "digits")
MATCHING_LOSSES = ("triplet", "infonce", "nt-logistic", "sparseclr")
# Weights of our own terms: a validation split chose them for InfoNCE with 1,467 halves of CIFAR-10 images, ten seeds
# (results/runs). Other losses and data need others.
MATCHING_WEIGHTS = {"gap": 10.0, "control": 1.0}


@dataclass(frozen=True)
class Cell:
    """A place in the paper's tables, or in ours."""

    kind: str  # "matching", "classification", "pairs" or "speedrun"
    form: str  # "paper", "released", "modern", "setwise", "pairs" or "speedrun": whose losses
    data: str
    encoder: str
    base: str  # the pairwise loss, or the method
    term: str = ""  # "qare", "gap", "control" or none; of pairs "sets" or none

    @property
    def parts(self) -> tuple[str, str, str]:
        """What its name is made of: data, encoder or "matching", method with term."""
        middle = "matching" if self.kind == "matching" else self.encoder
        return self.data, middle, "-".join(filter(None, (self.base, self.term)))

    @property
    def name(self) -> str:
        """The recipe's name."""
        return f"{self.form}/" + "-".join(filter(None, self.parts))

    def recipe(self) -> Recipe:
        """Its recipe."""
        if self.kind == "matching":
            return _matching(self)
        if self.kind == "pairs":
            return _pairs(self)
        if self.kind == "speedrun":
            return Recipe.read(SPEEDRUN[self.data, self.encoder])
        if self.base in PEERS:
            return _as_peers(self)
        return _modern(self) if self.form == "modern" else _classification(self)


def _loss(cell: Cell) -> str:
    return "-".join(filter(None, (f"{cell.form}/{cell.base}", cell.term)))


def _about(cell: Cell) -> str:
    term = {"qare": " with QARe", "gap": " with the alignment gap", "control": " with the structural difference"}
    whose = {"paper": "as the paper's text says", "released": "as the released code computes"}.get(cell.form, "")
    what = "matching by " if cell.kind == "matching" else ""
    words = f"{what}{cell.base}{term.get(cell.term, '')} on {cell.data}, {cell.encoder}"
    return f"{words}, {whose}" if whose else words


def _classification(cell: Cell) -> Recipe:
    """Tables 2 and 3."""
    contrastive = cell.base in CONTRASTIVE
    beta = BETA.get((cell.encoder, cell.base), {}).get(cell.data, OTHER_BETA) if cell.term else None
    tree: Tree = {
        "about": _about(cell),
        "method": {"name": "contrastive" if contrastive else cell.base},
        "data": {"source": cell.data},
        "encoder": {"name": cell.encoder, "weights": "xavier" if cell.form == "paper" else "released"},
        "views": {"preset": "self-supervised"},
    } | BASELINES.get(cell.base, {})
    tree["views"] = tree["views"] | {"padding": PADDING.get(cell.data, 4)}
    if contrastive:
        tree["objective"] = objective_of(_loss(cell), beta).tree()
    if cell.base == "deepinfomax":
        tree["method"]["adversarial"] = cell.form == "paper"
    return Recipe.read(tree)


def _modern(cell: Cell) -> Recipe:
    """ResNet-18 as lightly's and solo-learn's CIFAR-10 examples train it.

    SGD 0.06 per 256 images, cosine, a head of 512 -> 512 -> 128, temperature 0.5 among the 2N - 1 others.
    """
    return Recipe.read(
        {
            "about": _about(cell),
            "data": {"source": cell.data},
            "encoder": {"name": cell.encoder, "stem": "cifar"},
            "head": {"hidden": 512, "out": 128},
            "views": "modern",
            "epochs": 1000,
            "batch": 512,
            "drop_last": True,
            "optimizer": {"name": "sgd", "lr": 0.12, "weight_decay": 5e-4},
            "schedule": {"name": "cosine", "warmup": 10},
            "objective": objective_of(_loss(cell), OTHER_BETA if cell.term else None).tree(),
        }
    )


LARS = {"name": "lars", "trust": 0.02, "clip": True}
WEAK = {"preset": "modern", "saturation": 0.2}
# Methods, and losses of two views without negatives. Their numbers for CIFAR and ResNet-18 are solo-learn's, of 1,000
# epochs with batches of 256, lightly's for FastSiam, and those of EMP-SSL's authors. Of their views, blur and
# solarisation are left out; SwAV has no queue.
PEERS: dict[str, Tree] = {
    "byol": {
        "method": {"name": "byol", "momentum": 0.99, "predictor": 4096},
        "head": {"hidden": 4096, "out": 256},
        "views": WEAK,
        "optimizer": LARS | {"lr": 1.0, "weight_decay": 1e-5},
    },
    "barlow-twins": {
        "head": {"hidden": 2048, "out": 2048, "layers": 3},
        "views": WEAK,
        "optimizer": LARS | {"lr": 0.3, "weight_decay": 1e-4},
        "objective": {"loss": "barlow-twins", "weight": 0.1},
    },
    "vicreg": {
        "head": {"hidden": 2048, "out": 2048, "layers": 3},
        "views": WEAK,
        "optimizer": LARS | {"lr": 0.3, "weight_decay": 1e-4},
        "objective": "vicreg",
    },
    "simsiam": {
        "method": {"name": "simsiam", "predictor": 512},
        "head": {"hidden": 2048, "out": 2048},
        "views": "modern",
        "optimizer": {"name": "sgd", "lr": 0.5, "weight_decay": 1e-5},
    },
    "fastsiam": {
        "method": {"name": "simsiam", "predictor": 512, "views": 4},
        "head": {"hidden": 2048, "out": 2048},
        "views": "modern",
        "optimizer": {"name": "sgd", "lr": 0.06, "weight_decay": 5e-4},
        "schedule": "cosine",
        "batch": 128,
        "epochs": 200,
    },
    "mocov3": {
        "method": {"name": "mocov3", "momentum": 0.99, "predictor": 4096, "temperature": 0.2},
        "head": {"hidden": 4096, "out": 256},
        "views": WEAK,
        "optimizer": LARS | {"lr": 0.3, "weight_decay": 1e-6},
    },
    "swav": {
        "method": {"name": "swav", "prototypes": 3000, "temperature": 0.1, "freeze": 2},
        "head": {"hidden": 2048, "out": 128},
        "views": "self-supervised",
        "optimizer": LARS | {"lr": 0.6, "weight_decay": 1e-6},
    },
    "dino": {
        "method": {"name": "dino", "momentum": 0.9995, "prototypes": 4096, "target_temperature": 0.07, "freeze": 1},
        "head": {"hidden": 2048, "out": 256},
        "views": WEAK,
        "optimizer": LARS | {"lr": 0.3, "weight_decay": 1e-6},
    },
    "many-patches": {
        "method": {"name": "many-patches", "patches": 20, "invariance": 200.0, "distortion": 0.2},
        "head": {"hidden": 4096, "out": 1024},
        "views": "patches",
        "optimizer": LARS | {"lr": 0.3, "trust": 0.005, "weight_decay": 1e-4},
        "schedule": "cosine",
        "batch": 100,
        "epochs": 30,
        "evaluation": {"patches": 128},
    },
}


def _as_peers(cell: Cell) -> Recipe:
    """ResNet-18 as solo-learn, lightly or the method's authors train it on CIFAR."""
    trained = {"many-patches": "its authors train", "fastsiam": "lightly trains"}.get(cell.base, "solo-learn trains")
    base: Tree = {
        "about": f"{_about(cell)}, as {trained} it",
        "data": {"source": cell.data},
        "encoder": {"name": cell.encoder, "stem": "cifar"},
        "epochs": 1000,
        "batch": 256,
        "drop_last": True,
        "schedule": {"name": "cosine", "warmup": 10},
    }
    return Recipe.read(base | PEERS[cell.base])


def _matching(cell: Cell) -> Recipe:
    """Table 1; where the paper is silent, ours.

    ResNet-18 from scratch, 64 dimensions, unit vectors, Euclidean distances; as many halves as CUHK-03 has identities.
    An epoch of CUHK-03 passes over all shots: of passes over the identities, 50 would be too few.
    """
    name = "-".join(filter(None, (f"{cell.form}/matching-{cell.base}", cell.term)))
    encoder = {"name": cell.encoder}
    if cell.encoder == "resnet18":
        encoder["stem"] = "imagenet" if cell.data == "cuhk03" else "cifar"
    return Recipe.read(
        {
            "about": _about(cell),
            "method": {"name": "matching", "passes_over": "shots" if cell.data == "cuhk03" else "identities"},
            "data": {"source": cell.data, "instances": 1467 if cell.data == "cifar10" else None},
            "encoder": encoder,
            "views": {"preset": "matching", "padding": PADDING["digits"] if cell.data == "digits" else 4},
            "epochs": 50,
            "drop_last": True,
            "optimizer": {"name": "adam", "lr": 0.01},
            "schedule": "cosine",
            "objective": objective_of(name, MATCHING_WEIGHTS.get(cell.term)).tree(),
        }
    )


PAIRS: dict[str, Tree] = {
    # Bitext retrieval: seconds on a GPU, about a minute on a CPU.
    "multi30k": {
        "about": "sentences and their translations find each other: two bags of words and n-grams",
        "method": {"name": "pairs", "head": "none"},
        "epochs": 8,
        "precision": "float32",
        "optimizer": {"name": "adam", "lr": 0.01},
    },
    "feature-pairs": {
        "about": "a linear layer on each side's frozen features",
        "method": {"name": "pairs", "head": "none"},
        "epochs": 50,
        "precision": "float32",
        "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.05},
    },
    "captions": {
        "about": "images and their captions find each other: a ResNet and a bag of words and n-grams",
        "method": {"name": "pairs", "head": "linear"},
        "second_encoder": "bag",
        "head": {"out": 128},
        "epochs": 50,
    },
    # Halves of images, as they are: colours and edges that go on are what they have in common.
    "cifar10-halves": {
        "about": "left halves of photos find their right halves",
        "data": {"source": "halves", "of": "cifar10"},
        "method": {"name": "pairs", "head": "linear"},
        "epochs": 20,
        "optimizer": {"name": "adam", "lr": 3e-3},
    },
    "digits-halves": {
        "about": "left halves of digits find their right halves",
        "data": {"source": "halves", "of": "digits"},
        "method": {"name": "pairs", "head": "linear"},
        "epochs": 20,
        "batch": 64,
        "optimizer": {"name": "adam", "lr": 3e-3},
    },
}
KNOWN_SETS = {  # the size of the sets, and what finds what
    "multi30k": (32, "sentences find their translations"),
    "cifar10-halves": (32, "left halves of photos find their right halves"),
    "digits-halves": (8, "left halves of digits find their right halves"),
}


def _pairs(cell: Cell) -> Recipe:
    """Two encoders, as CLIP has: rows and columns, cosine, a cosine schedule."""
    base = {
        "data": {"source": cell.data},
        "encoder": {"name": cell.encoder},
        "views": "none",
        "batch": 256,
        "schedule": "cosine",
        "objective": {"loss": "info-nce", "temperature": 0.1, "symmetric": True},
    }
    found = Recipe.read(base | PAIRS[cell.data])
    if cell.term == "sets":
        size, what = KNOWN_SETS[cell.data]
        about = f"{what}, though training knows only sets of {size} that belong together"
        found = found.changed({"data.group": size, "about": about})
    return found


# Chosen on validation images, by the short runs in results/speedrun/tried.
SPEEDRUN: dict[tuple[str, str], Tree] = {  # by data and, where that is said, encoder
    ("cifar10", ""): {
        "about": "the speed record on CIFAR-10: more than 90 % by ten neighbours after about a minute of an H200",
        "data": {"source": "cifar10"},
        "encoder": {"name": "quick", "pool": "mean-then-max"},
        "method": {"name": "neighbours", "views": 4, "against": "mean"},
        "head": {"hidden": 2048, "out": 128, "layers": 3},
        "views": "parts",
        "epochs": 80,
        "batch": 512,
        "drop_last": True,
        "optimizer": {"name": "muon", "lr": 7e-3, "filters": True},
        "schedule": {"name": "cosine", "warmup": 5},
        "objective": {"loss": "nt-xent", "temperature": 0.2},
    },
    ("digits", "resnet8"): {
        "about": "the speed record's rules on the embedded digits: seconds on a CPU, to try them",
        "data": {"source": "digits"},
        "encoder": {"name": "resnet8"},
        "views": {"preset": "modern", "area": (0.2, 1.0), "padding": PADDING["digits"], "early": (6,), "until": (0.5,)},
        "epochs": 10,
        "drop_last": True,
        "optimizer": {"name": "adam", "lr": 3e-3},
        "schedule": {"name": "cosine", "warmup": 1},
        "objective": {"loss": "nt-xent", "temperature": 0.5},
    },
}


def _all() -> list[Cell]:
    terms = [(base, term) for base in CONTRASTIVE for term in ("", "qare")] + [(base, "") for base in BASELINES]
    cells = [
        Cell("classification", form, data, encoder, base, term)
        for form in FORMS
        for data in DATA
        for encoder in ENCODERS
        for base, term in terms
    ]
    for data in ("cifar10", "cifar100"):
        cells += [Cell("classification", "modern", data, "resnet18", "simclr", term) for term in ("", "qare", "gap")]
        cells += [Cell("classification", "modern", data, "resnet18", base) for base in PEERS]
    encoders = {"multi30k": "bag", "feature-pairs": "mlp", "captions": "resnet18"}
    encoders |= {"cifar10-halves": "conv4", "digits-halves": "resnet8"}
    cells += [Cell("pairs", "pairs", data, encoder, "infonce") for data, encoder in encoders.items()]
    cells += [Cell("pairs", "pairs", data, encoders[data], "infonce", "sets") for data in KNOWN_SETS]
    cells += [Cell("speedrun", "speedrun", *place, "") for place in SPEEDRUN]
    for data in MATCHING_DATA:
        encoder = "resnet8" if data == "digits" else "resnet18"  # a small one, for a CPU
        for loss in MATCHING_LOSSES:
            cells += [Cell("matching", "paper", data, encoder, loss, term) for term in ("", "qare")]
            cells += [Cell("matching", "setwise", data, encoder, loss, term) for term in MATCHING_WEIGHTS]
    return cells


CELLS: dict[str, Cell] = {cell.name: cell for cell in _all()}


@cache
def recipe(name: str) -> Recipe:
    """The recipe of that name; an unknown name raises ValueError with the nearest known ones."""
    if name not in CELLS:
        near = get_close_matches(name, CELLS, n=3, cutoff=0.3)
        raise ValueError(
            f"expected the name of a recipe, got {name!r}; did you mean {', '.join(near) if near else 'paper/...'}? "
            "`setwise recipes` says how they are named"
        )
    return CELLS[name].recipe()
