"""What a run is: every number that decides it, except the seed and the machine. A value made of parts, and a TOML file.

    recipe = Recipe.read(tomllib.loads(text))       # text = to_toml(recipe.tree())
    recipe = recipe.changed({"objective.temperature": 0.2, "encoder": "resnet18"})

Some parts are chosen by name: method, views, encoder, loss, terms, optimiser, schedule. Their options are those of the
registered entry. A recipe keeps all of them, so that a new default never changes an old recipe.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal

import setwise.register as register
from setwise.checks import check_number
from setwise.data.formats import kind_of_path
from setwise.losses.objective import BUILT_IN, Choice, Objective, build
from setwise.losses.presets import objective_of
from setwise.registry import Entry, Registry, convert, known, nearest

Tree = dict[str, Any]  # tables within tables, as TOML and JSON have them
PRECISIONS = ("float32", "bfloat16", "float64")


def source_entry(source: str) -> Entry[Any]:
    """The registered source of that name; of a path the one for such files, or for folders of images."""
    return register.data[source if source in register.data else kind_of_path(source)]


@dataclass(frozen=True)
class Data:
    """What a run learns from."""

    source: str = "digits"  # as `setwise data list` shows it, or a path
    validation: int = 0  # for classification: test on so many training images instead of the test split
    # For matching: how many images are halved; for pairs: the first so many; else: how many to train on. All if none.
    instances: int | None = None
    split_seed: int = 0  # which images, or identities, are for training, validation, test
    imbalance: float = 1.0  # how many times as many training images the first class has as the last: long tails
    wrong_partners: float = 0.0  # share of the images whose second view, and later ones, show another image
    options: dict[str, Any] = field(default_factory=dict)  # of a registered source

    @classmethod
    def read(cls, values: object) -> Data:
        """From the source alone, or from a table of these fields and the source's own options."""
        values = {"source": values} if isinstance(values, str) else values
        if not isinstance(values, Mapping):
            raise ValueError(f"expected data to be a table, got {values!r}")
        own = {name: kind for name, kind in typing.get_type_hints(cls).items() if name != "options"}
        rest = {name: value for name, value in values.items() if name not in own}
        source = values.get("source", cls.source)
        entry = source_entry(source)
        options = entry.options
        for name in rest:
            if name not in options:
                raise ValueError(f"expected a field of data{known(name, {**own, **options})}")
        if options:
            rest = entry.fill(rest)
        fields = {name: convert(values[name], kind, name) for name, kind in own.items() if name in values}
        return cls(**fields, options=rest)

    def tree(self) -> Tree:
        """The table that ``read`` takes."""
        table: Tree = asdict(self)
        options: Tree = table.pop("options")
        return table | options


@dataclass(frozen=True)
class Head:
    """The layers between the encoder and the loss."""

    hidden: int = 256  # width of its hidden layer, and of DeepCluster's classifier
    out: int = 64  # dimensions of the embeddings
    layers: int = 2  # linear ones, for methods that have no number of their own; of one alone nothing is hidden


@dataclass(frozen=True)
class Probe:
    """How the linear probe is trained."""

    epochs: int = 100
    batch: int = 128
    lr: float = 1e-3


@dataclass(frozen=True)
class Evaluation:
    """What to measure at the end."""

    probe: Probe = Probe()
    compressed: bool = False  # kNN of features in 8 bits, in 1 bit, and cut short, too
    patches: int = 0  # above 0: of an image, the mean of the features of so many small crops


# Parts that are chosen by name: their registries, and the key of the name in a file.
CHOSEN: dict[str, tuple[Registry[Any], str]] = {
    "method": (register.method, "name"),
    "views": (register.views, "preset"),
    "encoder": (register.encoder, "name"),
    "second_encoder": (register.encoder, "name"),
    "optimizer": (register.optimizer, "name"),
    "schedule": (register.schedule, "name"),
}
# Paths that a person may shorten.
SHORT = {part: f"{part}.{key}" for part, (_, key) in CHOSEN.items()} | {
    "data": "data.source",
    "objective": "objective.loss",
    "loss": "objective.loss",
    "terms": "objective.terms",
}
DEFAULTS: Tree = {
    "method": "contrastive",
    "views": "self-supervised",
    "encoder": "conv4",
    "optimizer": "adam",
    "schedule": "constant",
}
LOSS = "info-nce"  # of methods that take any
COMPARING = {"objective", "terms", "views"}  # what methods take that compare views of an image, any of these
LEAST = {
    **dict.fromkeys(("epochs", "data.validation", "data.split_seed", "evaluation.patches"), 0),
    **dict.fromkeys(("optimizer.momentum", "optimizer.weight_decay", "schedule.warmup"), 0),
    **dict.fromkeys(
        ("batch", "parts", "head.hidden", "head.out", "head.layers", "data.instances", "data.imbalance"), 1
    ),
    "data.wrong_partners": 0,
    **dict.fromkeys(("evaluation.probe.epochs", "evaluation.probe.batch"), 1),
}
POSITIVE = ("optimizer.lr", "evaluation.probe.lr")


@dataclass(frozen=True)
class Recipe:
    """A run's hyper-parameters. ``Recipe.read({})`` is the paper's self-supervised setting (section 4.2)."""

    method: Choice
    views: Choice
    encoder: Choice
    optimizer: Choice
    schedule: Choice
    objective: Objective | None = None
    second_encoder: Choice | None = None  # of the second side of pairs; if none, another of the first kind
    about: str = ""  # a line for people
    epochs: int = 200
    batch: int = 128  # items; contrastive methods see several views of each
    parts: int = 1  # in which the batch goes through the network, for less memory; BatchNorm sees one part at a time
    drop_last: bool = False  # leave out the last, partial batch of an epoch
    ema: float = 0.0  # above 0: evaluate a moving mean of the encoder's weights, of which a step keeps this share
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"  # of the network; auto: bfloat16 on a GPU
    data: Data = Data()
    head: Head = Head()
    evaluation: Evaluation = Evaluation()

    def __post_init__(self) -> None:
        """Raise on values that are out of range or contradict each other."""
        values, data, method = flat(self.tree()), self.data, self.method.name
        for path in (*LEAST, *POSITIVE):
            if (value := values.get(path)) is not None:
                name = path if path.count(".") > 1 else path.rpartition(".")[2]
                check_number(value, name, least=LEAST.get(path), above=0 if path in POSITIVE else None)
        if data.split_seed >= 2**63:
            raise ValueError(f"expected split_seed from 0 to 2^63 - 1, got {data.split_seed}")
        if (self.matched or self.pairs) and (data.imbalance != 1 or data.wrong_partners):
            raise ValueError(
                f"expected imbalance and wrong_partners for single images only, got {data.imbalance:g} and "
                f"{data.wrong_partners:g} for method {method!r}; leave them out"
            )
        if data.wrong_partners and not COMPARING.intersection(register.method[method].takes):
            raise ValueError(
                f"expected wrong_partners for a method that compares views, got {data.wrong_partners:g} for {method!r}"
                '; leave out --data.wrong-partners; a method of your own that compares them says takes=("views",)'
            )
        if data.wrong_partners > 1:
            raise ValueError(f"expected wrong_partners to be a share from 0 to 1, got {data.wrong_partners:g}")
        if self.second_encoder is not None and not self.pairs:
            raise ValueError(
                f"expected a second encoder for method 'pairs' only, got {self.second_encoder.name!r} for {method!r}; "
                "leave out --second-encoder"
            )
        if data.validation and self.matched:
            raise ValueError(f"expected no validation for matching, which has its own split, got {data.validation}")
        warmup, momentum = values.get("schedule.warmup", 0.0), values.get("optimizer.momentum", 0.0)
        if self.epochs and warmup > self.epochs:
            raise ValueError(f"expected warmup of at most the {self.epochs} epochs, got {warmup:g}; give --warmup too")
        if momentum >= 1:
            raise ValueError(f"expected momentum below 1, beyond which steps only grow, got {momentum:g}")
        usual, mine = usual_loss(method), None if self.objective is None else self.objective.loss.name
        if (usual is None) != (mine is None):
            raise ValueError(
                f"expected {'no' if usual is None else 'an'} objective for method {method!r}, got "
                f"{'none' if mine is None else repr(mine)}; `setwise recipes methods` describes each method"
            )
        if (usual == BUILT_IN) != (mine == BUILT_IN):
            wanted = "its own loss, 'built-in'," if usual == BUILT_IN else "a loss of two views"
            raise ValueError(
                f"expected {wanted} for method {method!r}, got {mine!r}; leave out --objective.loss, or take another "
                "method, as --method contrastive"
            )
        if mine is not None and self.epochs and self.batch < 2:
            raise ValueError(f"expected a batch of at least 2, whose items are contrasted, got {self.batch}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"expected ema from 0, which is none, to below 1, got {self.ema:g}; 0.999 is usual")
        if self.ema and (self.matched or self.pairs):
            raise ValueError(
                f"expected ema 0 for method {method!r}, which chooses or evaluates the weights of an epoch, got "
                f"{self.ema:g}; leave out --ema"
            )
        if self.objective is not None:
            build(self.objective)  # options that contradict each other raise now, not after the data is loaded

    @property
    def matched(self) -> bool:
        """Whether it learns from two views of the same identities, not from single images."""
        return "matched" in register.method[self.method.name].takes

    @property
    def pairs(self) -> bool:
        """Whether it learns from pairs of any kind, each side with an encoder."""
        return "pairs" in register.method[self.method.name].takes

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> Recipe:
        """From a file's tables. Missing fields take their defaults; an unknown one raises, with the nearest name."""
        if not isinstance(tree, Mapping):
            raise ValueError(f"expected a recipe's tables, got {type(tree).__name__}")
        if "initial" in tree:
            tree = upgrade(tree)
        tree = DEFAULTS | dict(tree)
        method = Choice.read(register.method, tree["method"]).name
        if "objective" not in tree and (usual := usual_loss(method)) is not None:
            tree["objective"] = usual
        values: dict[str, Any] = {}
        hints = typing.get_type_hints(cls)
        for name, value in tree.items():
            if name == "second_encoder" and value is None:
                continue
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
        tree: Tree = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name == "second_encoder" and value is None:
                continue  # most recipes have one encoder
            if isinstance(value, Choice):
                value = value.tree(CHOSEN[one.name][1])
            elif isinstance(value, (Objective, Data)):
                value = value.tree()
            elif is_dataclass(value) and not isinstance(value, type):
                value = asdict(value)
            tree[one.name] = value
        return tree

    def changed(self, changes: Mapping[str, object]) -> Recipe:
        """The recipe with other values, by dotted paths: "objective.temperature", "encoder", or the last part alone.

        A new name (``"encoder": "resnet18"``) brings that entry's own options; changes of those come after it.
        A method that takes no objective drops the recipe's; one that takes one has a default where there was none.
        A method with a loss of its own brings it, without terms.
        """
        if not changes:
            return self
        tree = self.tree()
        whole = {SHORT.get(path, path): value for path, value in changes.items()}
        # The method first, then other names, the terms, and the options of all these.
        turns = {path: (path != "method.name", _registry(path) is None, path != "objective.terms") for path in whole}
        for path in sorted(whole, key=lambda path: turns[path]):
            _set(tree, path, whole[path])
        return Recipe.read(tree)


def usual_loss(method: str) -> str | None:
    """The loss of a recipe that names none: a method takes any objective, or terms beside its own loss, or neither."""
    takes = register.method[method].takes
    return LOSS if "objective" in takes else BUILT_IN if "terms" in takes else None


class UnknownField(ValueError):
    """The recipe has no field at ``path``; ``paths`` are those that it has."""

    def __init__(self, path: str, paths: Collection[str]) -> None:
        ends = {one.rpartition(".")[2] for one in paths}
        near = nearest(path, [*paths, *ends]) or "; `setwise recipes NAME` shows all of them"
        super().__init__(f"expected a field of the recipe, got {path!r}{near}")
        self.path, self.paths = path, {*paths, *ends}


# Version 0.1: one flat list of fields, with their defaults.
FLAT: Tree = {
    **{"data": "digits", "validation": 0, "instances": None, "split_seed": 0, "method": "simclr", "encoder": "conv4"},
    **{"stem": "cifar", "initial": "released", "loss": None, "beta": None, "hidden": 256, "embedding": 64},
    **{"views": "self-supervised", "padding": 4, "adversarial": True, "epochs": 200, "batch": 128, "drop_last": False},
    **{"optimizer": "adam", "lr": 1e-3, "momentum": 0.9, "weight_decay": 0.0, "schedule": "constant", "warmup": 0.0},
    **{"precision": "auto", "probe_epochs": 100, "probe_batch": 128, "probe_lr": 1e-3},
}


def upgrade(old: Mapping[str, Any]) -> Tree:
    """The tables of a recipe of version 0.1, which has "initial". Missing fields take that version's defaults."""
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
    values: dict[str, Any] = {}
    for name, value in tree.items():
        if name == "terms":
            value = {term["term"]: {key: x for key, x in term.items() if key != "term"} for term in value}
        if isinstance(value, Mapping):
            values |= flat(value, f"{before}{name}.")
        else:
            values[f"{before}{name}"] = value
    return values


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


def _registry(path: str) -> Registry[Any] | None:
    """The registry that a name at this path comes from: "encoder.name", "views.preset", "objective.loss", ..."""
    part, _, key = path.partition(".")
    if part in CHOSEN and key == CHOSEN[part][1]:
        return CHOSEN[part][0]
    return {"data.source": register.data, "objective.loss": register.loss}.get(path)


def trust(changes: Mapping[str, object]) -> None:
    """Import what a person named as "module:function" in these changes."""
    for path, value in changes.items():
        registry = _registry(SHORT.get(path, path))
        if registry is not None and registry is not register.data and isinstance(value, str):
            registry.trust(value)
        elif SHORT.get(path, path) == "objective.terms" and isinstance(value, (list, tuple)):
            for term in value:
                register.term.trust(term["term"])


def _set(tree: Tree, path: str, value: object) -> None:
    """Change one value of a recipe's tables in place; a name brings all options of its entry, but for ``weights``."""
    part, _, last = path.partition(".")
    if path == "objective.loss" and (value in (None, "none") or isinstance(value, Mapping)):
        tree["objective"] = Objective.read(value).tree() if isinstance(value, Mapping) else None
    elif path == "objective.loss":  # weight and terms stay
        kept = tree["objective"] or {}
        same = {name: kept[name] for name in ("weight", "terms") if name in kept}
        tree["objective"] = Objective.read({"loss": value} | same).tree()
    elif path == "data.source":  # fields of all sources stay, another source's options go
        before = tree["data"]["source"]
        paths = all(source not in register.data for source in (value, before))
        moved = paths and source_entry(str(value)) is source_entry(before)  # a folder elsewhere
        kept = set(tree["data"]) if moved else {one.name for one in fields(Data)}
        same = {name: x for name, x in tree["data"].items() if name in kept}
        tree["data"] = Data.read(same | {"source": value}).tree()
    elif path == "second_encoder.name" and value in (None, "none"):
        tree.pop("second_encoder", None)
    elif (registry := _registry(path)) is not None:
        chosen = Choice.read(registry, {last: value}, last)
        if path == "encoder.name" and "weights" in chosen.options:  # of any network, drawn as the recipe says
            chosen.options["weights"] = tree[part].get("weights", chosen["weights"])
        tree[part] = chosen.tree(last)
        if part == "method":  # another method may take no objective, or need one, or have a loss of its own
            usual, kept = usual_loss(tree[part][last]), tree["objective"]
            if kept is None or usual is None or (usual == BUILT_IN) != (kept["loss"] == BUILT_IN):
                tree["objective"] = None if usual is None else Objective.read(usual).tree()
    elif path == "objective.terms":
        if tree["objective"] is None:
            name = tree["method"]["name"]
            raise ValueError(f"expected a method with an objective for terms, got {name!r}; leave the terms out")
        tree["objective"] = Objective.read(tree["objective"] | {"terms": value}).tree()
    else:
        *tables, last = _whole_path(tree, path).split(".")
        table: Any = tree
        for name in tables:
            table = next(t for t in table if t["term"] == name) if isinstance(table, list) else table[name]
        table[last] = value


def _whole_path(tree: Tree, typed: str) -> str:
    """The path that ``typed``, or its last part alone, stands for."""
    paths = {one.replace("-", "_"): one for one in flat(tree)}  # names of terms have dashes
    path = typed.replace("-", "_")
    if path in paths:
        return paths[path]
    ends = (one for one in paths if one.endswith(f".{path}"))
    matches = sorted(ends, key=lambda one: (one.count("."), not one.startswith("data.")))  # --size is that of the data
    if not matches:
        raise UnknownField(typed, paths)
    if len(matches) > 1 and matches[0].count(".") == matches[1].count(".") and not matches[0].startswith("data."):
        raise ValueError(f"expected one field, got {typed!r}, which is {' or '.join(matches)}; give the whole path")
    return paths[matches[0]]


def to_toml(tree: Mapping[str, Any]) -> str:
    """A recipe's tables as text. None is left out, which means the same."""
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
        if any(isinstance(x, Mapping) for x in value):
            return "[\n" + "".join(f"  {_toml(x)},\n" for x in value) + "]"
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, (str, bool)):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no pairs of surrogates
    return repr(value)
