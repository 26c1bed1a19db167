"""What a run is: every number that decides it, but the seed and the machine. ``experiments.recipes`` names some."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args

from setwise.checks import check_count, check_number, check_option, is_number, plain
from setwise.encoders import NAMES as ENCODERS
from setwise.losses.presets import PRESETS as LOSSES
from setwise.losses.presets import beta_of
from setwise.views.pipeline import PRESETS as VIEWS

MethodName = Literal[
    "simclr", "sparseclr", "supervised", "random", "rotation", "deepcluster", "deepinfomax", "matching"
]
METHODS = get_args(MethodName)
PRECISIONS = ("float32", "bfloat16", "float64")
CONTRASTIVE = ("simclr", "sparseclr")
WITH_LOSS = (*CONTRASTIVE, "matching")


@dataclass(frozen=True)
class Recipe:
    """A run's hyper-parameters. The defaults are the paper's self-supervised setting (section 4.2, supplement)."""

    data: str = "digits"  # as `setwise data list` shows it, or a path
    validation: int = 0  # of classification: training images kept apart and tested on instead of the test split
    instances: int | None = None  # of matching: how many images are halved; all if none
    split_seed: int = 0  # which images, or identities, are for training, validation, test
    method: MethodName = "simclr"
    encoder: Literal["conv4", "resnet8", "resnet32", "resnet56", "resnet18", "resnet34"] = "conv4"
    stem: Literal["cifar", "imagenet"] = "cifar"  # of resnet18 and resnet34
    initial: Literal["released", "xavier"] = "released"  # weights of convolutions; the paper says xavier
    loss: str | None = None  # of setwise.PRESETS, temperature included; for simclr, sparseclr, matching
    beta: float | None = None  # weight of the set-level term, where the loss has one
    hidden: int = 256  # width of the projection head, and of deepcluster's classifier
    embedding: int = 64  # dimensions that the losses see
    views: Literal["self-supervised", "modern", "supervised", "flip", "matching", "none"] = "self-supervised"
    padding: int = 4  # pixels, of the supervised views' crops
    adversarial: bool = True  # deepinfomax's prior: as published; False is the released code's joint descent
    epochs: int = 200
    batch: int = 128  # images; contrastive methods see two views of each
    drop_last: bool = False  # leave out the last, partial batch of an epoch
    optimizer: Literal["adam", "sgd"] = "adam"
    lr: float = 1e-3
    momentum: float = 0.9  # of sgd
    weight_decay: float = 0.0
    schedule: Literal["constant", "steps", "cosine"] = "constant"  # steps: a tenth after 50 % and again after 75 %
    warmup: float = 0.0  # epochs of a linear rise of the learning rate
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"  # of the network; auto: bfloat16 on a GPU
    probe_epochs: int = 100
    probe_batch: int = 128
    probe_lr: float = 1e-3

    def __post_init__(self) -> None:
        """Raise on what is unknown, out of range, or contradicts itself."""
        for field in fields(self):  # numbers may be numpy's, files have Python's only
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
        check_option(self.method, METHODS, "method")
        check_option(self.encoder, ENCODERS, "encoder")
        check_option(self.stem, ("cifar", "imagenet"), "stem")
        check_option(self.initial, ("released", "xavier"), "initial")
        check_option(self.views, tuple(VIEWS), "views")
        check_option(self.optimizer, ("adam", "sgd"), "optimizer")
        check_option(self.schedule, ("constant", "steps", "cosine"), "schedule")
        check_option(self.precision, ("auto", *PRECISIONS), "precision")
        for name in ("hidden", "embedding", "batch", "probe_epochs", "probe_batch", "instances"):
            check_count(getattr(self, name), name)
        if not isinstance(self.epochs, int) or self.epochs < 0:
            raise ValueError(f"expected epochs to be an integer of at least 0, got {self.epochs!r}")
        if not isinstance(self.validation, int) or self.validation < 0:
            raise ValueError(f"expected validation to be a number of images, got {self.validation!r}")
        if not isinstance(self.split_seed, int) or not 0 <= self.split_seed < 2**63:
            raise ValueError(f"expected split_seed from 0 to 2^63 - 1, got {self.split_seed!r}")
        for name in ("lr", "probe_lr"):
            check_number(getattr(self, name), name, above=0)
        if self.epochs and is_number(self.warmup) and self.warmup > self.epochs:
            raise ValueError(
                f"expected warmup of at most the {self.epochs} epochs, got {self.warmup:g}; give --warmup too"
            )
        for name in ("momentum", "weight_decay", "warmup"):
            check_number(getattr(self, name), name, least=0)
        if self.momentum >= 1:
            raise ValueError(f"expected momentum below 1, beyond which steps only grow, got {self.momentum:g}")
        matching = self.method == "matching"
        if self.instances is not None and not matching:
            raise ValueError(
                f"expected instances for matching only, got {self.instances} with method {self.method!r}; "
                "--validation N keeps training images apart"
            )
        if self.validation and matching:
            raise ValueError(f"expected no validation for matching, which has its own split, got {self.validation}")
        if self.method == "random" and self.epochs:
            raise ValueError(f"expected epochs=0 for method 'random', which is never trained, got {self.epochs}")
        if self.method not in WITH_LOSS:
            if self.loss is not None or self.beta is not None:
                raise ValueError(
                    f"expected no loss and no beta for method {self.method!r}, got {self.loss!r} and {self.beta!r}; "
                    "give --loss None --beta None, or a --recipe of that method"
                )
        else:
            if self.loss is None:
                raise ValueError(f"expected loss for method {self.method!r}, one of {', '.join(LOSSES)}, got None")
            check_option(self.loss, LOSSES, "loss")
            if self.loss.partition("/")[2].partition("-")[0] != self.method:
                raise ValueError(
                    f"expected a loss of {self.method} for method {self.method!r}, got {self.loss!r}; give --loss and "
                    "--method that go together, or a --recipe that has both"
                )
            if self.epochs and self.batch < 2:
                raise ValueError(f"expected a batch of at least 2, whose items are contrasted, got {self.batch}")
            rule = beta_of(self.loss)
            if rule != "optional" and (self.beta is None) == (rule == "needed"):
                raise ValueError(
                    f"expected beta with a loss that has a set-level term and only there, got {self.beta!r} with "
                    f"{self.loss!r}; give {'--beta' if self.beta is None else '--beta None'}"
                )

    def as_json(self) -> dict[str, Any]:
        """The fields, for a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: object) -> Recipe:
        """The recipe that ``as_json`` wrote, here or in an older version: a field that is missing has its default.

        A new field's default is therefore what was done before there was a choice. A field of a newer version is
        refused, since the run would silently become another one.
        """
        if not isinstance(values, dict):
            raise ValueError(f"expected a recipe as an object of its fields, got {type(values).__name__}")
        names = [f.name for f in fields(cls)]
        if unknown := [str(name) for name in values if name not in names]:
            near = {found for name in unknown for found in get_close_matches(name, names, n=1)}
            hint = f"near them {'are' if len(near) > 1 else 'is'} {', '.join(sorted(near))}, or " if near else ""
            raise ValueError(
                f"expected the fields of a recipe, got {', '.join(map(repr, unknown))} too; "
                f"{hint}a newer setwise may know them"
            )
        return cls(**values)
