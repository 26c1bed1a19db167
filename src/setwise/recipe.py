"""What a run is: every number that decides it, but the seed and the machine. A value made of parts, and a TOML file.

    recipe = Recipe.read(tomllib.loads(text))       # text = to_toml(recipe.tree())
    recipe = recipe.changed({"objective.temperature": 0.2, "encoder": "resnet18"})

A part that is chosen by name (method, views, encoder, the loss, its terms, optimiser, schedule) has the options of its
registry's entry. All of them are kept: a default that changes one day changes no recipe that was written before.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import reduce
from typing import Any, Literal

import setwise.register as register
from setwise.checks import check_number
from setwise.losses.objective import Choice, Objective, build
from setwise.losses.presets import objective_of
from setwise.registry import Registry, convert, known

Tree = dict[str, Any]  # tables within tables, as TOML and JSON have them
PRECISIONS = ("float32", "bfloat16", "float64")


@dataclass(frozen=True)
class Data:
    """What a run learns from."""

    source: str = "digits"  # as `setwise data list` shows it, or a path
    validation: int = 0  # of classification: training images kept apart and tested on instead of the test split
    instances: int | None = None  # of matching: how many images are halved; all if none
    split_seed: int = 0  # which images, or identities, are for training, validation, test
    options: dict[str, Any] = field(default_factory=dict)  # the source's own

    @classmethod
    def read(cls, values: object) -> Data:
        """From the source alone, or a table: these fields, and the source's own options beside them."""
        values = {"source": values} if isinstance(values, str) else values
        if not isinstance(values, Mapping):
            raise ValueError(f"expected data to be a table, got {values!r}")
        own = {name: kind for name, kind in typing.get_type_hints(cls).items() if name != "options"}
        rest = {name: value for name, value in values.items() if name not in own}
        source = values.get("source", cls.source)
        options = register.data[source].options if source in register.data else {}
        for name in rest:
            if name not in options:
                raise ValueError(f"expected a field of data{known(name, {**own, **options})}")
        if options:
            rest = register.data[source].fill(rest)
        return cls(
            **{name: convert(values[name], kind, name) for name, kind in own.items() if name in values}, options=rest
        )

    def tree(self) -> Tree:
        """The table that ``read`` takes."""
        found: Tree = asdict(self)
        options: Tree = found.pop("options")
        return found | options


@dataclass(frozen=True)
class Head:
    """What stands between the encoder and the loss."""

    hidden: int = 256  # width of its hidden layer, and of DeepCluster's classifier
    out: int = 64  # dimensions that the losses see


@dataclass(frozen=True)
class Probe:
    """How the linear probe is trained."""

    epochs: int = 100
    batch: int = 128
    lr: float = 1e-3


@dataclass(frozen=True)
class Evaluation:
    """What is measured at the end."""

    probe: Probe = Probe()


# Parts that are chosen by name: their registries, and what the name is called in a file.
CHOSEN: dict[str, tuple[Registry[Any], str]] = {
    "method": (register.method, "name"),
    "views": (register.views, "preset"),
    "encoder": (register.encoder, "name"),
    "optimizer": (register.optimizer, "name"),
    "schedule": (register.schedule, "name"),
}


@dataclass(frozen=True)
class Recipe:
    """A run's hyper-parameters. ``Recipe.read({})`` is the paper's self-supervised setting (section 4.2)."""

    method: Choice
    views: Choice
    encoder: Choice
    optimizer: Choice
    schedule: Choice
    objective: Objective | None = None
    about: str = ""  # a line for people
    epochs: int = 200
    batch: int = 128  # items; contrastive methods see several views of each
    drop_last: bool = False  # leave out the last, partial batch of an epoch
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"  # of the network; auto: bfloat16 on a GPU
    data: Data = Data()
    head: Head = Head()
    evaluation: Evaluation = Evaluation()

    def __post_init__(self) -> None:
        """Raise on what is out of range, or contradicts itself."""
        for name in ("epochs", "batch", "head.hidden", "head.out", "evaluation.probe.epochs", "evaluation.probe.batch"):
            value: Any = reduce(getattr, name.split("."), self)
            if value < (name != "epochs"):
                raise ValueError(
                    f"expected {name} to be a whole number of at least {int(name != 'epochs')}, got {value!r}"
                )
        _check_data(self.data, matched=self.matched)
        _check_rates(self)
        takes = "objective" in register.method[self.method.name].takes
        if takes != (self.objective is not None):
            got = "none" if self.objective is None else f"{self.objective.loss.name!r}"
            raise ValueError(
                f"expected {'an' if takes else 'no'} objective for method {self.method.name!r}, got {got}; "
                "`setwise recipes` says what each method takes"
            )
        if takes and self.epochs and self.batch < 2:
            raise ValueError(f"expected a batch of at least 2, whose items are contrasted, got {self.batch}")
        if self.objective is not None:
            build(self.objective)  # an option that says nothing together with another is told now

    @property
    def matched(self) -> bool:
        """Whether it learns from two views of the same identities, not from single images."""
        return "matched" in register.method[self.method.name].takes

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> Recipe:
        """From a file's tables; what is missing takes its default, what is unknown is named with the nearest."""
        if not isinstance(tree, Mapping):
            raise ValueError(f"expected a recipe's tables, got {type(tree).__name__}")
        if "initial" in tree:
            tree = upgrade(tree)
        tree = DEFAULTS | dict(tree)
        method = Choice.read(register.method, tree["method"]).name
        if "objective" not in tree and "objective" in register.method[method].takes:
            tree["objective"] = LOSS
        values: dict[str, Any] = {}
        hints = typing.get_type_hints(cls)
        for name, value in tree.items():
            if name in CHOSEN:
                values[name] = Choice.read(CHOSEN[name][0], value, CHOSEN[name][1])
            elif name == "objective":
                values[name] = None if value is None else Objective.read(value)
            elif name == "data":
                values[name] = Data.read(value)
            elif name in hints:
                values[name] = _read(hints[name], value, name)
            else:
                raise ValueError(f"expected a field of a recipe{known(name, hints)}")
        return cls(**values)

    def tree(self) -> Tree:
        """The tables that ``read`` takes, with every number."""
        found: Tree = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Choice):
                value = value.tree(CHOSEN[one.name][1])
            elif isinstance(value, (Objective, Data)):
                value = value.tree()
            elif is_dataclass(value) and not isinstance(value, type):
                value = asdict(value)
            found[one.name] = value
        return found

    def changed(self, changes: Mapping[str, object]) -> Recipe:
        """The recipe with other values, by dotted paths: "objective.temperature", "encoder", or the last part alone.

        A name that changes (``"encoder": "resnet18"``) brings that entry's own options; changes of those come after.
        A method that takes no objective drops the recipe's; one that takes one has a default where there was none.
        """
        tree = self.tree()
        for path in sorted(changes, key=_turn):
            _set(tree, path, changes[path])
        return Recipe.read(tree)


def _check_data(data: Data, *, matched: bool) -> None:
    if data.validation < 0 or not 0 <= data.split_seed < 2**63 or (data.instances is not None and data.instances < 1):
        raise ValueError(
            "expected validation of 0 or more, instances of at least 1 or none, split_seed from 0 to 2^63 - 1, got "
            f"{data.validation}, {data.instances}, {data.split_seed}"
        )
    if data.instances is not None and not matched:
        raise ValueError(
            f"expected instances for matching only, got {data.instances}; --validation N keeps training images apart"
        )
    if data.validation and matched:
        raise ValueError(f"expected no validation for matching, which has its own split, got {data.validation}")


def _check_rates(recipe: Recipe) -> None:
    for name, value in (("lr", recipe.optimizer["lr"]), ("evaluation.probe.lr", recipe.evaluation.probe.lr)):
        check_number(value, name, above=0)
    for name in ("momentum", "weight_decay"):
        check_number(recipe.optimizer.options.get(name, 0.0), name, least=0)
    warmup = recipe.schedule.options.get("warmup", 0.0)
    check_number(warmup, "warmup", least=0)
    if recipe.epochs and warmup > recipe.epochs:
        raise ValueError(f"expected warmup of at most the {recipe.epochs} epochs, got {warmup:g}; give --warmup too")
    if recipe.optimizer.options.get("momentum", 0.0) >= 1:
        raise ValueError(
            f"expected momentum below 1, beyond which steps only grow, got {recipe.optimizer['momentum']:g}"
        )


DEFAULTS: Tree = {
    "method": "contrastive",
    "views": "self-supervised",
    "encoder": "conv4",
    "optimizer": "adam",
    "schedule": "constant",
}
LOSS = "info-nce"  # of methods that take one
TERMS = ("terms", "objective.terms")


# Version 0.1: one flat list of fields, with their defaults.
FLAT: Tree = {
    **{"data": "digits", "validation": 0, "instances": None, "split_seed": 0, "method": "simclr", "encoder": "conv4"},
    **{"stem": "cifar", "initial": "released", "loss": None, "beta": None, "hidden": 256, "embedding": 64},
    **{"views": "self-supervised", "padding": 4, "adversarial": True, "epochs": 200, "batch": 128, "drop_last": False},
    **{"optimizer": "adam", "lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0},
    **{"precision": "auto", "probe_epochs": 100, "probe_batch": 128, "probe_lr": 1e-3},
}


def upgrade(old: Mapping[str, Any]) -> Tree:
    """The tables of a recipe of version 0.1, which has "initial"; what it lacks has that version's default."""
    for name in old:
        if name not in FLAT:
            raise ValueError(f"expected a field of a recipe of version 0.1{known(name, FLAT)}")
    old = FLAT | dict(old)
    encoder = {"name": old["encoder"], "weights": old["initial"]}
    if encoder["name"] in ("resnet18", "resnet34"):
        encoder["stem"] = old["stem"]
    method: Tree = {"name": "contrastive" if old["method"] in ("simclr", "sparseclr") else old["method"]}
    if method["name"] == "deepinfomax":
        method["adversarial"] = old["adversarial"]
    optimizer = {"name": old["optimizer"], "lr": old["lr"], "weight_decay": old["weight_decay"]}
    if optimizer["name"] == "sgd":
        optimizer["momentum"] = old["momentum"]
    return {name: old[name] for name in ("epochs", "batch", "drop_last", "precision")} | {
        "method": method,
        "data": {"source": old["data"]} | {name: old[name] for name in ("validation", "instances", "split_seed")},
        "views": {"preset": old["views"], "padding": old["padding"]},
        "encoder": encoder,
        "head": {"hidden": old["hidden"], "out": old["embedding"]},
        "objective": None if old["loss"] is None else objective_of(old["loss"], old["beta"]).tree(),
        "optimizer": optimizer,
        "schedule": {"name": old["schedule"], "warmup": old["warmup"]},
        "evaluation": {"probe": {name: old[f"probe_{name}"] for name in ("epochs", "batch", "lr")}},
    }


def flat(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Every value by its dotted path; terms by their names, as in "objective.terms.qare.weight"."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "terms":
            value = {term["term"]: {key: x for key, x in term.items() if key != "term"} for term in value}
        if isinstance(value, Mapping):
            found |= flat(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def _read(kind: Any, value: object, name: str) -> Any:
    """A plain value, or a table as the dataclass ``kind``."""
    if not is_dataclass(kind):
        return convert(value, kind, name)
    if is_dataclass(value):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {name} to be a table, got {value!r}")
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise ValueError(f"expected a field of {name}{known(key, hints)}")
    return typing.cast(Any, kind)(**{key: _read(hints[key], x, f"{name}.{key}") for key, x in value.items()})


def _names(path: str) -> str | None:
    """The part that a path names anew, if it does: "encoder", "views", "objective.loss", ..."""
    part, _, last = path.partition(".")
    if part in CHOSEN and last in ("", CHOSEN[part][1]):
        return part
    if path in ("data", "data.source"):
        return "data"
    return "objective" if path in ("objective", "objective.loss", "loss") else None


def _turn(path: str) -> int:
    """When a change has its turn: the method, other names, the terms, then what is an option of these."""
    part = _names(path)
    return 0 if part == "method" else 1 if part is not None else 2 if path in TERMS else 3


def trust(changes: Mapping[str, object]) -> None:
    """Import what a person named as "module:function" in these changes."""
    for path, value in changes.items():
        part = _names(path)
        if isinstance(value, str) and part in CHOSEN:
            CHOSEN[part][0].trust(value)
        elif isinstance(value, str) and part == "objective":
            register.loss.trust(value)
        elif path in TERMS and isinstance(value, (list, tuple)):
            for term in value:
                register.term.trust(term["term"])


def _set(tree: Tree, path: str, value: object) -> None:
    """Change one value of a recipe's tables in place."""
    part = _names(path)
    if part == "objective" and (value is None or value == "none" or isinstance(value, Mapping)):
        tree["objective"] = value if isinstance(value, Mapping) else None
    elif part == "objective":
        kept = tree["objective"] or {}
        tree["objective"] = {"loss": value} | {name: kept[name] for name in ("weight", "terms") if name in kept}
    elif part in CHOSEN:
        tree[part] = {CHOSEN[part][1]: value}
        if part == "method" and isinstance(value, str):  # another method may take no objective, or need one
            takes = "objective" in register.method[value].takes
            tree["objective"] = (tree["objective"] or {"loss": LOSS}) if takes else None
    elif path in ("data", "data.source"):  # fields of all sources stay, another one's options go
        kept = {one.name for one in fields(Data)}
        tree["data"] = {name: x for name, x in tree["data"].items() if name in kept} | {"source": value}
    elif path in TERMS:
        if tree["objective"] is None:
            name = tree["method"] if isinstance(tree["method"], str) else tree["method"].get("name")
            raise ValueError(f"expected a method with an objective for {path}, got {name!r}; leave the terms out")
        tree["objective"]["terms"] = value
    else:
        *way, last = _resolved(tree, path).split(".")
        table: Any = tree
        for step in way:
            table = next(t for t in table if t["term"] == step) if isinstance(table, list) else table[step]
        table[last] = value


def _resolved(tree: Tree, path: str) -> str:
    """The whole path that ``path``, or its last part alone, stands for."""
    paths = {one.replace("-", "_"): one for one in flat(Recipe.read(tree).tree())}  # names of terms have dashes
    typed, path = path, path.replace("-", "_")
    if path in paths:
        return paths[path]
    found = sorted((one for one in paths if one.endswith(f".{path}")), key=lambda one: one.count("."))
    if not found:
        ends = {one.rpartition(".")[2]: one for one in paths}
        raise ValueError(f"expected a field of the recipe, got {typed!r}{_nearest(path, paths | ends)}")
    if len(found) > 1 and found[0].count(".") == found[1].count("."):
        raise ValueError(f"expected one field, got {typed!r}, which is {' or '.join(found)}; give the whole path")
    return paths[found[0]]


def _nearest(path: str, paths: Mapping[str, Any]) -> str:
    near = get_close_matches(path, paths, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; `setwise recipes NAME` shows all of them"


def to_toml(tree: Mapping[str, Any]) -> str:
    """A recipe's tables as text; what is None is left out, which means the same."""
    plain = {name: value for name, value in tree.items() if not isinstance(value, Mapping) and value not in (None, "")}
    plain = {name: plain[name] for name in sorted(plain, key=lambda name: name != "about")}
    lines = [f"{name} = {_toml(value)}" for name, value in plain.items()]
    for name, value in tree.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(x)}" for key, x in value.items() if x is not None)]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(x)}" for name, x in value.items() if x is not None) + " }"
    if isinstance(value, (list, tuple)):
        inner = [_toml(x) for x in value]
        return "[" + ", ".join(inner) + "]" if not any(isinstance(x, Mapping) for x in value) else _lines(inner)
    if isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no pairs of surrogates
    return repr(value)


def _lines(inner: list[str]) -> str:
    return "[\n" + "".join(f"  {x},\n" for x in inner) + "]"
