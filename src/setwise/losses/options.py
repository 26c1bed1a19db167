"""The options of the losses: which values there are, which contradict each other, and where both are checked.

Options are checked once, where they are set: when a module is made, or when a public function is called. Tensors are
checked once per call, at the public door. What lies behind the door checks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Literal, NamedTuple, ParamSpec, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from setwise.checks import (
    DTYPES,
    LARGEST,
    check_count,
    check_embeddings,
    check_labels,
    check_number,
    check_option,
    check_overflow,
    is_number,
    see,
)
from setwise.similarity import is_distance

P = ParamSpec("P")
Temperature = float | Tensor  # a tensor [] may be learned
Reduction = Literal["mean", "sum"]
Truth = Literal["same", "hard", "one-to-one", "quadratic"]
POSITIVE = ("distortion", "sharpness", "epsilon")
NOT_NEGATIVE = ("redundancy", "invariance", "variance", "covariance", "target")


class Sets(NamedTuple):
    """What is known where only sets belong together: the id of every row's set, int64 [N] and [M].

    Equal ids of both sides belong together. A plain pair ``(sets_a, sets_b)`` is the same with the other fields left
    out. ``truth``: the maximum over what the sets allow. "same" is the loss's own. "hard" takes the best partner of
    each row. "one-to-one" takes the best assignment inside every pair of sets. "quadratic" takes one that also keeps
    the structure of the sets, which weighs ``structure`` there.
    ``price``: a row may stay alone, at a score of -price. ``softness``, from 0 to 1: "hard" and "one-to-one" then give
    a row a share of several partners, smoothed at softness times the temperature. See ``setwise.losses.sets``.

    Examples:
        >>> sets = sw.Sets(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), truth="hard")
        >>> sw.InfoNCE(0.5)(torch.eye(3), torch.eye(3), sets=sets)
        tensor(0.9062)
    """

    a: Tensor
    b: Tensor
    truth: Truth = "same"
    price: float | None = None
    structure: float = 1.0
    softness: float | Tensor = 0.0  # a tensor [] may change within a CUDA graph

    @property
    def soft(self) -> bool:
        """Whether a row may have several partners, each to a share."""
        return isinstance(self.softness, Tensor) or self.softness > 0


KnownSets = Sets | tuple[Tensor, Tensor]


def public(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The public door of a loss of embeddings: check options and tensors, call ``function``, check for an overflow.

    Modules check their options when they are made, and call ``__wrapped__``: the function itself.
    """
    allowed, defaults = words_of(function), function.__kwdefaults__ or {}
    taken = signature(function).parameters
    tensors = [name for name, one in taken.items() if one.kind is Parameter.POSITIONAL_OR_KEYWORD][2:]

    @wraps(function)
    def checked(z_a: Tensor, z_b: Tensor, *more: Any, **options: Any) -> Tensor:
        every = {**defaults, **options}
        check_options(every, allowed)
        given = {**options, **dict(zip(tensors, more, strict=False))}
        extra, labels, sets = given.get("extra_negatives"), given.get("labels"), given.get("sets")
        check_embeddings(z_a, z_b, extra, in_sets=sets is not None)
        if extra is not None or labels is not None:
            check_extras(z_a, extra, labels, every)
        if sets is not None:
            check_sets(sets, z_a, z_b, extra, labels, every)
        check_temperature(every, z_a)
        return check_overflow(function(z_a, z_b, *more, **options), "a loss")  # type: ignore[arg-type]

    checked.allowed = allowed  # type: ignore[attr-defined] # for the modules
    checked.takes_labels = "labels" in taken  # type: ignore[attr-defined] # for them too
    checked.takes_sets = "sets" in taken  # type: ignore[attr-defined]
    return cast(Callable[P, Tensor], checked)


def words_of(function: Callable[..., object]) -> dict[str, tuple[str, ...]]:
    """The options of ``function`` that are one of a few words, and these words: what its annotations say."""
    hints = get_type_hints(function)
    return {name: get_args(kind) for name, kind in hints.items() if get_origin(kind) is Literal}


def check_options(options: Mapping[str, Any], allowed: Mapping[str, tuple[str, ...]]) -> None:
    """Raise on options of a loss that are unknown or contradict each other."""
    for name, words in allowed.items():
        check_option(options[name], words, name)
    for name in ("block_size", "k"):
        check_count(options.get(name), name)
    for name in ("shift", "clamp"):
        if options.get(name) is not None:
            check_number(options[name], name)
    for name in ("margin", *NOT_NEGATIVE):
        check_number(options.get(name, 0.0), name, least=0)
    for name in POSITIVE:
        check_number(options.get(name, 1.0), name, above=0)
    if "spectrum" in options:
        _check_spectrum(options)
    elif options.get("clamp") is not None and options["clamp"] >= 0 and is_distance(options["similarity"]):
        raise ValueError(
            f"expected clamp below 0 with similarity {options['similarity']!r}, whose scores are minus distances, got "
            f"{options['clamp']!r}: all scores would be equal and nothing learnt; clamp=-d bounds distances by d"
        )
    temperature = options.get("temperature", 1.0)
    if not isinstance(temperature, Tensor):
        check_number(temperature, "temperature", above=0)
        _check_units(temperature, options)
    elif temperature.ndim or temperature.dtype not in DTYPES:
        raise ValueError(
            f"expected temperature to be a number or a floating-point tensor of shape (), got {temperature.dtype} "
            f"of shape {tuple(temperature.shape)}; temperature.float().reshape(()) makes one of a single number"
        )
    if "mining" in options:
        _check_cell(options["mining"], options["smoothing"], temperature)


def check_extras(z_a: Tensor, extra: Tensor | None, labels: Tensor | None, options: Mapping[str, Any]) -> None:
    """Raise on extra negatives or labels that are not what a loss with these options can take."""
    if extra is not None and extra.ndim == 3 and options.get("mining") == "one-to-one":
        raise ValueError(
            'expected extra_negatives of shape (M, E) with mining="one-to-one", got those of each row, '
            f"{tuple(extra.shape)}: an assignment is of columns that all rows share"
        )
    if labels is None:
        return
    check_labels(labels, z_a)
    if options.get("reduction") == "log-mean":
        raise ValueError(
            'expected reduction="mean" with labels, got "log-mean", which is of the probability of one partner'
        )


def check_sets(
    sets: KnownSets, z_a: Tensor, z_b: Tensor, extra: Tensor | None, labels: Tensor | None, options: Mapping[str, Any]
) -> None:
    """Raise unless ``sets`` are those of the rows of ``z_a`` and ``z_b``, and a loss with these options takes them."""
    if not isinstance(sets, (tuple, list)) or len(sets) not in (2, len(Sets._fields)):
        raise ValueError(
            f"expected sets to be a pair (sets_a, sets_b) of tensors, or sw.Sets(...), got {type(sets).__name__}"
            f"{f' of {len(sets)}' if isinstance(sets, (tuple, list)) else ''}; give the ids of both sides, "
            + see("how-to/sets")
        )
    known = Sets(*sets)
    for ids, name, z, side in ((known.a, "sets_a", z_a, "z_a"), (known.b, "sets_b", z_b, "z_b")):
        if not isinstance(ids, Tensor):
            raise ValueError(
                f"expected {name} to be a torch.Tensor, got {type(ids).__name__}; torch.as_tensor makes one"
            )
        if ids.dtype != torch.int64:
            raise ValueError(f"expected {name} of dtype torch.int64, got {ids.dtype}; number the sets, .long()")
        if ids.shape != z.shape[:1]:
            raise ValueError(
                f"expected {name} of shape ({len(z)},), the set of each row of {side}, got {tuple(ids.shape)}"
            )
        if ids.device != z.device:
            raise ValueError(f"expected {name} on device {z.device} like {side}, got {ids.device}; move it with .to")
    check_option(known.truth, get_args(Truth), "truth")
    if known.price is not None:
        check_number(known.price, "price")
    check_number(known.structure, "structure")
    _check_softness(known, options.get("mining"))
    if labels is not None:
        raise ValueError("expected labels or sets, got both; give what is known: all partners, or only the sets")
    if options.get("reduction") == "log-mean":
        raise ValueError('expected reduction="mean" with sets, got "log-mean", which is of one known partner')
    both = options.get("symmetric") or ("symmetric" not in options and options.get("candidates") != "cross")
    if extra is not None and extra.ndim == 3 and both:
        raise ValueError(
            "expected extra_negatives of shape (K, E) where both sides choose among sets, got those of each row of "
            f"z_a, {tuple(extra.shape)}; no row of z_b is known to be the same item"
        )
    if options.get("mining") == "one-to-one":
        _check_assignment(known, z_a, z_b, options["smoothing"])


def _check_softness(sets: Sets, mining: object) -> None:
    """Raise unless the softness is a share that this truth can have."""
    softness = sets.softness
    if isinstance(softness, Tensor):
        if softness.ndim or not softness.is_floating_point() or softness.device != sets.a.device:
            raise ValueError(
                f"expected softness to be a number or a floating-point tensor of shape () on {sets.a.device}, got "
                f"{softness.dtype} of shape {tuple(softness.shape)} on {softness.device}"
            )
    elif not (is_number(softness) and 0 <= softness <= 1):
        raise ValueError(f"expected softness from 0 to 1, got {softness!r}; 0 gives each row a single partner")
    if sets.soft and (sets.truth not in ("hard", "one-to-one") or mining == "one-to-one"):
        what = f"truth {sets.truth!r}" if mining != "one-to-one" else 'mining="one-to-one"'
        raise ValueError(
            f'expected truth "hard" or "one-to-one" and a loss whose rows choose freely with a softness, got {what}; '
            + see("how-to/sets#truth")
        )


def _check_assignment(sets: Sets, z_a: Tensor, z_b: Tensor, smoothing: str) -> None:
    """Raise where one-to-one assignments of these sets have no form."""
    if sets.truth == "hard":
        raise ValueError(
            'expected truth "same", "one-to-one" or "quadratic" with mining="one-to-one", got "hard": rows that each '
            "take the best partner may take the same"
        )
    if sets.price is None and smoothing != "none" and len(z_a) != len(z_b):
        raise ValueError(
            f"expected as many rows of both sides for one-to-one smoothing {smoothing!r}, got {len(z_a)} and "
            f"{len(z_b)}; give a price for rows that stay alone, " + see("how-to/sets#price")
        )


def check_temperature(options: Mapping[str, Any], z: Tensor) -> None:
    """Raise unless a temperature that is a tensor is on the device of ``z`` and, where that is the CPU, above 0."""
    temperature = options.get("temperature")
    if not isinstance(temperature, Tensor):
        return
    if temperature.device != z.device:
        raise ValueError(
            f"expected temperature on device {z.device} like the embeddings, got {temperature.device}; "
            "move the loss: loss.to(z_a.device)"
        )
    if torch.compiler.is_compiling() or temperature.device.type != "cpu":
        return
    value = temperature.detach().item()
    if not (is_number(value) and value > 0):
        raise ValueError(
            f"expected temperature to stay finite and above 0, got a tensor of {value!r}; "
            "learn its logarithm and pass the exponential, or clamp it after each step"
        )
    _check_units(value, options)


def _check_units(temperature: float, options: Mapping[str, Any]) -> None:
    """Raise unless float32 can hold scores up to 1, the margin and the clamp in units of the temperature."""
    margin, clamp = options.get("margin", 0.0), options.get("clamp") or 0.0
    if max(1, margin, abs(clamp)) > LARGEST * float(temperature):
        raise ValueError(
            f"expected scores, margin and clamp that float32 can hold once they are divided by temperature, got "
            f"temperature {temperature!r}, margin {margin!r}, clamp {clamp!r}; raise the temperature"
        )


def _check_cell(mining: str, smoothing: str, temperature: Temperature) -> None:
    """Raise on a cell of the grid that does not exist, or where a temperature has no effect."""
    if mining == "batch-hard" and smoothing in ("sinkhorn", "sparsemap"):
        same = {"sinkhorn": "entropy", "sparsemap": "sparse"}[smoothing]
        raise ValueError(f'expected smoothing {same!r} with mining="batch-hard", where it is the same as {smoothing!r}')
    if smoothing == "none" and (isinstance(temperature, Tensor) or temperature != 1.0):
        raise ValueError(f'expected temperature 1.0 with smoothing="none", got {temperature}; it would have no effect')


def _check_spectrum(options: Mapping[str, Any]) -> None:
    """Raise on eigenvalues that QARe cannot compute that way."""
    spectrum, k = options["spectrum"], options["k"]
    if (k is None) == (spectrum == "topk"):
        raise ValueError(
            f'expected k (a positive integer) with spectrum="topk" and only there, got {k!r}, {spectrum!r}; '
            + see("how-to/large-batches#eigenvalues")
        )
    if k is not None and options["reference"] == "truth":
        raise ValueError(
            'expected spectrum "auto", "dense" or "lowrank" with reference="truth", got "topk": the eigenvalues that '
            "it leaves out would count as a gap below zero, which learning widens"
        )
    if spectrum == "lowrank" and (options["similarity"] == "euclidean" or options["clamp"] is not None):
        what = "Euclidean distances" if options["clamp"] is None else "clamped similarities"
        raise ValueError(
            f'expected spectrum "auto", "dense" or "topk": {what} have full rank, got "lowrank"; '
            + see("how-to/large-batches#eigenvalues")
        )
