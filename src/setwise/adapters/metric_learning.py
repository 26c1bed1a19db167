"""QARe and the set losses inside pytorch-metric-learning: an embedding regulariser, and a loss of labelled batches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from setwise.checks import check_floating, check_loss, check_option, imported, see
from setwise.losses.modules import QARe

PAGE = see("how-to/other-libraries#pytorch-metric-learning")
losses = imported("pytorch_metric_learning.losses", "pytorch-metric-learning", PAGE)
regularizers = imported("pytorch_metric_learning.regularizers", "pytorch-metric-learning", PAGE)
BaseMetricLossFunction: Any = losses.BaseMetricLossFunction
SelfSupervisedLoss: Any = losses.SelfSupervisedLoss
BaseRegularizer: Any = regularizers.BaseRegularizer

Layout = Literal["halves", "interleaved"]
LAYOUTS = ("halves", "interleaved")
FEWEST_PAIRS = 2  # one pair has no negatives
CALLERS = 24  # frames from a regulariser up to SelfSupervisedLoss: 9 in 2.9, some more with hooks or wrappers


class QAReRegularizer(BaseRegularizer):  # type: ignore[misc]
    """The set-level term of the two views in a batch, for ``embedding_regularizer=`` of any loss.

        loss = SelfSupervisedLoss(NTXentLoss(embedding_regularizer=QAReRegularizer(), embedding_reg_weight=0.5))

    ``term`` is any ``term(z_a, z_b)``, ``QARe()`` by default. ``layout`` says where the views [N, E] are in the batch
    [2N, E]: "halves" is [a_0, ..., a_N, b_0, ..., b_N], as ``SelfSupervisedLoss`` concatenates them; "interleaved" is
    [a_0, b_0, a_1, b_1, ...], which stays right where a wrapper concatenates the batches of many processes.

    A regulariser sees the embeddings alone, and one view of an even number of items looks just like two of half as
    many. So it inspects the loss that calls it: ``SelfSupervisedLoss(symmetric=False)``, which passes one view only, is
    an error. So are labels on the CPU that contradict the layout.
    """

    def __init__(
        self, term: Callable[..., Tensor] | None = None, *, layout: Layout = "halves", reducer: Any = None
    ) -> None:
        check_option(layout, LAYOUTS, "layout")
        if term is not None:
            check_loss(term, "term")
        super().__init__(reducer=reducer)
        self.term = QARe() if term is None else term
        self.layout: Layout = layout

    def compute_loss(self, x: Tensor) -> dict[str, dict[str, Any]]:
        """The term of a batch [2N, E]."""
        check_floating(x, "embeddings")
        # A compiled graph has no callers to look at.
        labels = None if torch.compiler.is_compiling() else self._labels_of_caller()
        if x.ndim != 2 or not len(x) or len(x) % 2:
            raise ValueError(
                f"expected embeddings of shape (2N, E), two views of N items, got {tuple(x.shape)}; "
                "an odd batch cannot hold both views of every item"
            )
        _check_labels(labels, self.layout)
        return _reduced(self.term(*_views(x, self.layout)))

    def _labels_of_caller(self) -> Tensor | None:
        """The labels that the loss was given, if a loss calls; raise if it was given one view."""
        labels, frame = None, sys._getframe(1).f_back
        for _ in range(CALLERS):
            if frame is None:
                break
            caller = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
            if isinstance(caller, SelfSupervisedLoss) and not caller.symmetric:
                raise ValueError(ONE_VIEW)
            if isinstance(caller, BaseMetricLossFunction) and caller.embedding_regularizer is self:
                labels = frame.f_locals.get("labels")
            frame = frame.f_back
        return labels


class SetLoss(BaseMetricLossFunction):  # type: ignore[misc]
    """Any setwise ``loss(z_a, z_b)`` of a labelled batch: items of equal label are each other's views.

        loss = SetLoss(setwise.SetContrastive(setwise.InfoNCE(), beta=0.5))
        loss(embeddings, labels)

    The items of each label are paired in order, the first with the second and so on; an odd one is left out. Fewer than
    two pairs give a loss of 0 with gradient 0. Two pairs of one label are negatives of each other: draw two items per
    label (``MPerClassSampler`` with m=2) to avoid that.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        *,
        reducer: Any = None,
        embedding_regularizer: nn.Module | None = None,
        embedding_reg_weight: float = 1.0,
    ) -> None:
        check_loss(loss, "loss")
        super().__init__(
            reducer=reducer, embedding_regularizer=embedding_regularizer, embedding_reg_weight=embedding_reg_weight
        )
        self.loss = loss

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor | None, indices_tuple: Any, ref_emb: Tensor, ref_labels: Tensor | None
    ) -> dict[str, dict[str, Any]]:
        """The loss of the pairs in a batch [B, E] with labels [B]."""
        if labels is None:
            raise ValueError("expected labels, by which items are paired, got None")
        if indices_tuple is not None or ref_emb is not embeddings or ref_labels is not labels:
            raise ValueError(
                "expected embeddings and labels alone, got indices_tuple or ref_emb; pairs are chosen by label here, "
                "so leave out the miner, and concatenate a second view with its labels"
            )
        first, second = label_pairs(labels)
        if len(first) < FEWEST_PAIRS:
            zero: dict[str, dict[str, Any]] = self.zero_losses()
            return zero
        return _reduced(self.loss(embeddings[first], embeddings[second]))


def label_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Places of pairs of equal label, int64 [P] each: per label the first and second, the third and fourth, ..."""
    order = labels.argsort(stable=True)
    ordered = labels[order]
    rank = torch.arange(len(labels), device=labels.device) - torch.searchsorted(ordered, ordered)  # within its label
    first = ((rank[:-1] % 2 == 0) & (ordered[:-1] == ordered[1:])).nonzero().flatten()
    return order[first], order[first + 1]


def _reduced(value: Tensor) -> dict[str, dict[str, Any]]:
    return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


def _views(x: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    return (x[0::2], x[1::2]) if layout == "interleaved" else (x[: len(x) // 2], x[len(x) // 2 :])


ONE_VIEW = (
    "expected both views in one batch, got SelfSupervisedLoss(symmetric=False), which hands a regulariser the first "
    "view alone; use symmetric=True, or add setwise.QARe()(z_a, z_b) to the loss yourself, " + PAGE
)


def _check_labels(labels: Tensor | None, layout: Layout) -> None:
    """Raise if labels [2N] are there to see and those of a pair differ."""
    if labels is None or labels.device.type != "cpu":
        return
    a, b = _views(labels, layout)
    if not torch.equal(a, b):
        raise ValueError(
            f"expected a batch of two views laid out as {layout!r}, got {int((a != b).sum())} of {len(a)} pairs with "
            "different labels; choose the other layout if it is laid out so, concatenate a view given as ref_emb, or "
            f"use SetLoss, which pairs items by label, {PAGE}"
        )
