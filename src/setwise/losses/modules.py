"""The losses as modules: options checked once, ``loss(z_a, z_b)`` afterwards. The mathematics is in ``functional``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

import setwise.register as register
from setwise.assignment.rows import Smoothing
from setwise.assignment.smoothing import Mining
from setwise.assignment.spectrum import Bound
from setwise.checks import check_embeddings, check_overflow, plain
from setwise.kernels.scores import Products
from setwise.losses import functional
from setwise.losses.options import (
    KnownSets,
    Reduction,
    Temperature,
    check_extras,
    check_options,
    check_sets,
    check_temperature,
)
from setwise.losses.set_level import Spectrum, qare, qare_beside
from setwise.similarity import Similarity

Views = Tensor | Sequence[Tensor]  # [V, N, E], or V tensors [N, E]


def pairs_of(views: Views) -> list[tuple[Tensor, Tensor]]:
    """Every two of V >= 2 views, the earlier one first."""
    if isinstance(views, Tensor) and views.ndim != 3:
        raise ValueError(
            "expected z_b to be a torch.Tensor, got NoneType; give both views, loss(z_a, z_b), or all of them as a "
            "list or a tensor of shape (V, N, E)"
        )
    if not isinstance(views, (Tensor, list, tuple)) or len(views) < 2:
        got = len(views) if isinstance(views, (Tensor, list, tuple)) else type(views).__name__
        raise ValueError(f"expected at least two views, as a list or a tensor of shape (V, N, E), got {got}; add some")
    return [*combinations(views, 2)]


def mean_over_pairs(loss: Callable[..., Tensor], views: Views, *more: Tensor | None) -> Tensor:
    """The mean of ``loss(z_a, z_b)`` over every two of V >= 2 views."""
    values = [loss(z_a, z_b, *more) for z_a, z_b in pairs_of(views)]
    return values[0] if len(values) == 1 else torch.stack(values).mean()


class _Loss(nn.Module):
    """A function of embeddings with its options fixed; ``repr`` shows them.

    A temperature that is a tensor is a parameter or a buffer of the module. ``parallel.distributed`` sets ``peers``.
    """

    __call__: Callable[..., Tensor]  # to a type checker, for which torch's returns anything
    function: ClassVar[Any]  # of ``functional``; what lies behind its public door is its ``__wrapped__``

    def __init__(self, given: Mapping[str, Any]) -> None:
        """``given``: the options by name, among whatever else; a subclass gives its ``locals()``."""
        super().__init__()
        options = {name: given.get(name) for name in self.function.__wrapped__.__kwdefaults__}
        check_options(options, self.function.allowed)
        temperature = options.get("temperature")
        if isinstance(temperature, Tensor):
            options["temperature"] = None
            if isinstance(temperature, nn.Parameter):
                self.temperature = temperature
            else:
                self.register_buffer("temperature", temperature)
        self._options = {name: plain(value) for name, value in options.items()}

    @property
    def options(self) -> dict[str, Any]:
        """The options as they are now."""
        learned = self._options.get("temperature", 1.0) is None
        return {**self._options, "temperature": self.temperature} if learned else self._options

    @property
    def similarity(self) -> Similarity:
        """The measure the loss compares embeddings by, if it has one."""
        if "similarity" not in self._options:
            raise AttributeError(f"{type(self).__name__} has no similarity")
        name: Similarity = self._options["similarity"]
        return name

    def forward(
        self,
        z_a: Views,
        z_b: Tensor | None = None,
        extra_negatives: Tensor | None = None,
        labels: Tensor | None = None,
        sets: KnownSets | None = None,
    ) -> Tensor:
        """Loss of two views [N, E] of the same items, with extra negatives [M, E] as further candidates.

        Extra negatives [N, K, E] are K of each item's own. ``labels`` [N], for ``InfoNCE``, ``NTXent`` and
        ``SparseCLR``: items with one label are each other's partners, see ``functional``. ``sets``
        (sets_a, sets_b): only the sets of rows are known to belong together, see ``losses.sets``.
        Of more views, ``loss([z_1, z_2, z_3])`` or a tensor [V, N, E]: the mean over every two of them.
        """
        if sets is not None:
            self._check_sets(z_a, z_b, extra_negatives, labels, sets)
        if z_b is None:
            return mean_over_pairs(self, z_a, extra_negatives, labels)
        z_a = cast(Tensor, z_a)
        options = self._options
        if labels is not None and not self.function.takes_labels:
            raise ValueError(
                f"expected no labels for {type(self).__name__}, got some; InfoNCE, NTXent and SparseCLR take them"
            )
        if sets is None:
            check_embeddings(z_a, z_b, extra_negatives)
        if extra_negatives is not None or labels is not None:
            check_extras(z_a, extra_negatives, labels, options)
        if options.get("temperature", 1.0) is None:
            options = self.options
            check_temperature(options, z_a)
        extra = () if extra_negatives is None else (extra_negatives,)
        if labels is not None:
            options = {**options, "labels": labels}
        if sets is not None:
            options = {**options, "sets": sets}
        return check_overflow(self.function.__wrapped__(z_a, z_b, *extra, **options), "a loss")

    def _check_sets(
        self, z_a: Views, z_b: Tensor | None, extra: Tensor | None, labels: Tensor | None, sets: KnownSets
    ) -> None:
        """Raise unless this is a loss that takes these sets of these two sides."""
        if not self.function.takes_sets:
            raise ValueError(
                f"expected no sets for {type(self).__name__}, got some; InfoNCE, NTXent, SparseCLR, TripletMargin and "
                "AssignmentLoss take them"
            )
        if z_b is None:
            raise ValueError("expected two sides with sets, got several views at once; loss(z_a, z_b, sets=...)")
        check_embeddings(cast(Tensor, z_a), z_b, extra, in_sets=True)
        check_sets(sets, cast(Tensor, z_a), z_b, extra, labels, self._options)

    def extra_repr(self) -> str:
        """The options, as they would be written."""
        return ", ".join(f"{name}={_shown(value)}" for name, value in self.options.items() if name != "peers" or value)


def _shown(value: object) -> str:
    """``value`` as it would be written; a parameter on one line."""
    return repr(value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value)


@register.loss(
    "assignment",
    about="Any cell of the grid: row-wise or one-to-one, hard, entropic or sparse. Use it for sets matched one-to-one.",
)
class AssignmentLoss(_Loss):
    """Any cell of the grid {row-wise, one-to-one} × {hard, entropic, sparse}; see ``functional.assignment_loss``.

    Use it where items are matched one-to-one, or to try a cell that has no name of its own.

    Examples:
        >>> loss = sw.AssignmentLoss(mining="one-to-one", smoothing="sinkhorn", temperature=0.5, similarity="cosine")
        >>> loss(torch.eye(4), torch.eye(4))
        tensor(0.3408)
    """

    function = staticmethod(functional.assignment_loss)

    def __init__(
        self,
        *,
        mining: Mining = "batch-hard",
        smoothing: Smoothing = "none",
        margin: float = 0.0,
        temperature: Temperature = 1.0,
        similarity: Similarity = "euclidean",
        reduction: Reduction = "mean",
        symmetric: bool = False,
    ) -> None:
        super().__init__(locals())


@register.loss(
    "info-nce", about="Each row picks its partner by a softmax over the other view's rows. Use it first; CLIP does."
)
class InfoNCE(_Loss):
    """Row-wise entropic assignment loss, Eq. (13) as mean cross-entropy; see ``functional.info_nce``.

    Use it first, above all where the two views are of different kinds, such as images and texts.

    Examples:
        >>> z_a, z_b = torch.eye(4), torch.eye(4)  # yours: embeddings [N, E], row i of both is the same item
        >>> sw.InfoNCE(temperature=0.5)(z_a, z_b)
        tensor(0.3408)
        >>> loss = sw.InfoNCE(torch.nn.Parameter(torch.tensor(0.07)))  # learned: loss.parameters() has it
        >>> _ = loss.temperature.data.clamp_(min=0.01)  # after each step, since nothing else keeps it above 0
    """

    function = staticmethod(functional.info_nce)

    def __init__(
        self,
        temperature: Temperature = 0.05,
        *,
        similarity: Similarity = "cosine",
        symmetric: bool = False,
        block_size: int | None = None,
        products: Products = "float32",
    ) -> None:
        super().__init__(locals())


@register.loss(
    "nt-xent",
    about="SimCLR's: each view picks its partner among all other views of the batch. Use it for small batches.",
)
class NTXent(_Loss):
    """SimCLR's loss, every view among the 2N - 1 others; see ``functional.nt_xent``.

    Use it where both views are augmentations of one image: it has twice the negatives of ``InfoNCE``. With labels it
    is SupCon's loss.

    Examples:
        >>> sw.NTXent(temperature=0.5)(torch.eye(4), torch.eye(4))
        tensor(0.5944)
        >>> sw.NTXent(temperature=0.5)(torch.eye(4), torch.eye(4), labels=torch.tensor([0, 0, 1, 1]))
        tensor(1.9278)
        >>> sw.NTXent(block_size=256)  # for large batches: 256 rows of scores at a time
        NTXent(temperature=0.5, reduction='mean', similarity='cosine', clamp=None, block_size=256, products='float32')
    """

    function = staticmethod(functional.nt_xent)

    def __init__(
        self,
        temperature: Temperature = 0.5,
        *,
        reduction: Literal["mean", "log-mean"] = "mean",
        similarity: Similarity = "cosine",
        clamp: float | None = None,
        block_size: int | None = None,
        products: Products = "float32",
    ) -> None:
        super().__init__(locals())


@register.loss(
    "sparse-clr", about="By sparsemax: far negatives have no weight. Use it where many negatives are easy or false."
)
class SparseCLR(_Loss):
    """Row-wise sparse assignment loss, Eq. (14) with its sign mended; see ``functional.sparse_clr``.

    Use it where most negatives are easy: only those near the anchor have a gradient.

    Examples:
        >>> sw.SparseCLR(margin=1.0)(torch.eye(4), torch.eye(4))
        tensor(0.4286)
    """

    function = staticmethod(functional.sparse_clr)

    def __init__(
        self,
        margin: float = 1.0,
        *,
        candidates: Literal["all", "cross"] = "all",
        similarity: Similarity = "cosine",
        temperature: Temperature = 1.0,
        clamp: float | None = None,
        block_size: int | None = None,
    ) -> None:
        super().__init__(locals())


@register.loss("triplet", about="The hardest negative, by a margin. Use it for few items and clean pairs.")
class TripletMargin(_Loss):
    """Batch-hard margin triplet loss, Eq. (12); see ``functional.triplet_margin``.

    Use it for few items and clean pairs: one wrong pair is the hardest negative of others.

    Examples:
        >>> sw.TripletMargin(margin=2.0)(torch.eye(4), torch.eye(4))  # 2 - √2
        tensor(0.5858)
    """

    function = staticmethod(functional.triplet_margin)

    def __init__(self, margin: float = 0.5, *, similarity: Similarity = "euclidean", symmetric: bool = False) -> None:
        super().__init__(locals())


@register.loss(
    "nt-logistic", about="Every pair classified on its own as true or false. Use it where items have several partners."
)
class NTLogistic(_Loss):
    """Every pair classified on its own as true or false; see ``functional.nt_logistic``.

    Use it where a negative may be a true partner too: candidates do not compete with each other.

    Examples:
        >>> sw.NTLogistic(temperature=0.5, negatives="hardest")(torch.eye(4), torch.eye(4))
        tensor(0.8201)
    """

    function = staticmethod(functional.nt_logistic)

    def __init__(
        self,
        temperature: Temperature = 0.05,
        *,
        similarity: Similarity = "cosine",
        negatives: Literal["mean", "sum", "hardest"] = "mean",
        symmetric: bool = False,
    ) -> None:
        super().__init__(locals())


@register.term(
    "qare",
    about="The paper's regulariser, the spectral bound of the quadratic assignment. Use it to keep items apart.",
)
class QARe(_Loss):
    """Quadratic assignment regularisation, Eq. (7) and (17), to add to any loss; see ``functional.qare``.

    Use it to keep the items of each set apart, or with ``reference="truth"`` to give both sets one structure.

    Examples:
        >>> sw.QARe()(torch.eye(4), torch.eye(4))
        tensor(1.7500)
        >>> distances = sw.QARe(similarity="euclidean", spectrum="topk", k=8)  # for large batches of plain distances
        >>> gap = sw.QARe(reference="truth")  # zero where both sets have the same structure; not the paper's
    """

    function = staticmethod(qare)

    def __init__(
        self,
        *,
        similarity: Similarity = "cosine",
        bound: Bound = "eigenvalue",
        spectrum: Spectrum = "auto",
        k: int | None = None,
        reference: Literal["none", "truth"] = "none",
        normalization: Literal["n2", "n(n-1)", "none"] = "n2",
        shift: float | None = None,
        clamp: float | None = None,
        center: bool = False,
    ) -> None:
        super().__init__(locals())

    def beside(self, z_a: Tensor, z_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value, and both views for another loss of ours; see ``set_level.qare_beside``."""
        check_embeddings(z_a, z_b, None)
        value, z_a, z_b = qare_beside(z_a, z_b, **self._options)
        return check_overflow(value, "a loss"), z_a, z_b


@register.term(
    "gap", about="The alignment gap, zero for sets of equal structure. Use it to align sets; it is not the paper's."
)
def alignment_gap(
    *,
    similarity: Similarity = "cosine",
    bound: Bound = "eigenvalue",
    spectrum: Spectrum = "auto",
    normalization: Literal["n2", "n(n-1)", "none"] = "n2",
    shift: float | None = None,
    center: bool = False,
) -> QARe:
    """QARe with ``reference="truth"``."""
    return QARe(
        similarity=similarity,
        bound=bound,
        spectrum=spectrum,
        reference="truth",
        normalization=normalization,
        shift=shift,
        center=center,
    )
