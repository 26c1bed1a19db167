"""Exact forms of the losses by name: what the paper writes, and what its released code computes.

``paper/...`` and ``released/...`` never mix: each name holds every choice of its side.

- paper: rows of S_AB, temperature 0.05, QARe divided by N². Instance matching (``paper/matching-...``) works on
  Euclidean distances, of features the encoder has made unit length, in convex combination with the paper's weights.
- released: every view among the 2N - 1 others, temperature 0.5, -log of the mean probability; with QARe, all cosines
  clamped at 1e-8 from below, before the loss too, and QARe divided by N(N-1). It has no instance matching.
- setwise: beyond the paper. Instance matching with a weighed set-level term beside the paper's pairwise losses: the
  alignment gap (``-gap``) or its eigenvalue-free control (``-control``).
- ablation: released/simclr with one thing changed, or one set-level term beside it, unclamped. ``-features``: QARe of
  the encoder's features before the head, about their mean.
- modern: NT-Xent as today's libraries compute it; with QARe (Algorithm 2), or with the alignment gap, which is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from setwise.checks import check_option, see
from setwise.losses.controls import FrobeniusProduct, StructuralDifference
from setwise.losses.modules import InfoNCE, NTLogistic, NTXent, QARe, SetContrastive, SparseCLR, TripletMargin, _Loss

RELEASED_CLAMP = 1e-8

_PLAIN: dict[str, Callable[[], _Loss]] = {
    "paper/simclr": lambda: InfoNCE(temperature=0.05),
    "paper/sparseclr": lambda: SparseCLR(margin=1.0, candidates="cross"),
    "paper/matching-triplet": lambda: TripletMargin(margin=0.5),
    "paper/matching-infonce": lambda: InfoNCE(temperature=0.05, similarity="euclidean"),
    # The paper has no formula; of six forms this one matches best (results/nt-logistic.json, on digits).
    "paper/matching-nt-logistic": lambda: NTLogistic(temperature=0.05, similarity="euclidean", negatives="sum"),
    "paper/matching-sparseclr": lambda: SparseCLR(margin=1.0, candidates="cross", similarity="euclidean"),
    "released/simclr": lambda: NTXent(temperature=0.5, reduction="log-mean"),
    "released/sparseclr": lambda: SparseCLR(margin=1.0, candidates="all"),
    "modern/simclr": lambda: NTXent(temperature=0.5),
}
# The paper's weights in instance matching (supplement). Self-supervised weights depend on encoder and data
# (Table 4), so there beta has no default.
_MATCHING_BETA = {
    "paper/matching-triplet-qare": 0.4,
    "paper/matching-infonce-qare": 0.5,
    "paper/matching-nt-logistic-qare": 0.2,
    "paper/matching-sparseclr-qare": 0.3,
}


def _beside(
    pairwise: Callable[[], nn.Module], term: Callable[..., nn.Module], **options: str
) -> tuple[nn.Module, nn.Module]:
    return pairwise(), term(similarity="euclidean", **options)


def _released_with(term: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    return _PLAIN["released/simclr"](), term()


_WEIGHED: dict[str, Callable[[], tuple[nn.Module, nn.Module]]] = {
    "paper/simclr-qare": lambda: (_PLAIN["paper/simclr"](), QARe()),
    "paper/sparseclr-qare": lambda: (_PLAIN["paper/sparseclr"](), QARe()),
    "released/simclr-qare": lambda: (
        NTXent(temperature=0.5, reduction="log-mean", clamp=RELEASED_CLAMP),
        _released_qare(),
    ),
    "released/sparseclr-qare": lambda: (
        SparseCLR(margin=1.0, candidates="all", clamp=RELEASED_CLAMP),
        _released_qare(),
    ),
    "modern/simclr-qare": lambda: (_PLAIN["modern/simclr"](), QARe()),
    "modern/simclr-gap": lambda: (_PLAIN["modern/simclr"](), QARe(reference="truth")),
}
# One factor at a time from released/simclr; its weights of QARe are those of N(N-1).
_PLAIN |= {
    "ablation/simclr-cold": lambda: NTXent(temperature=0.05, reduction="log-mean"),
    "ablation/simclr-mean": lambda: NTXent(temperature=0.5, reduction="mean"),
    "ablation/simclr-clamp": lambda: NTXent(temperature=0.5, reduction="log-mean", clamp=RELEASED_CLAMP),
}
_ABLATIONS: dict[str, Callable[[], nn.Module]] = {
    "qare": partial(QARe, normalization="n(n-1)"),
    "noshift": partial(QARe, normalization="n(n-1)", shift=0.0),
    "projection": partial(QARe, normalization="n(n-1)", bound="projection"),
    "gap": partial(QARe, normalization="n(n-1)", reference="truth"),
    "center": partial(QARe, normalization="n(n-1)", center=True),
    "features": partial(QARe, normalization="n(n-1)", center=True),
    "frobenius": FrobeniusProduct,
    "control": StructuralDifference,
}
_WEIGHED |= {f"ablation/simclr-{name}": partial(_released_with, term) for name, term in _ABLATIONS.items()}
for _loss in ("triplet", "infonce", "nt-logistic", "sparseclr"):
    _pairwise = _PLAIN[f"paper/matching-{_loss}"]
    _WEIGHED[f"setwise/matching-{_loss}-gap"] = partial(_beside, _pairwise, QARe, reference="truth")
    _WEIGHED[f"setwise/matching-{_loss}-control"] = partial(_beside, _pairwise, StructuralDifference)
PRESETS = (*_PLAIN, *_WEIGHED, *_MATCHING_BETA)


def _released_qare() -> QARe:
    return QARe(clamp=RELEASED_CLAMP, normalization="n(n-1)", spectrum="dense")


def beta_of(name: str) -> Literal["none", "optional", "needed"]:
    """Whether the preset has a set-level term, and whether its weight must be chosen."""
    return "needed" if name in _WEIGHED else "optional" if name in _MATCHING_BETA else "none"


def presets(name: str, *, beta: float | None = None) -> _Loss | SetContrastive:
    """The loss that ``name`` (one of ``PRESETS``) stands for; ``beta`` weighs QARe in those that have it.

    Examples:
        >>> sw.presets("paper/simclr")
        InfoNCE(temperature=0.05, similarity='cosine', symmetric=False, block_size=None)
        >>> sw.presets("released/simclr-qare", beta=0.5).beta
        0.5
    """
    check_option(name, PRESETS, "the preset's name")
    if name in _PLAIN:
        if beta is not None:
            instead = f"{name}-qare"
            hint = f"see {instead!r}" if instead in PRESETS else "leave it out, sw.SetContrastive adds QARe to any loss"
            raise ValueError(f"expected no beta for {name!r}, which has no QARe, got {beta!r}; {hint}")
        return _PLAIN[name]()
    if name in _MATCHING_BETA:
        weight = _MATCHING_BETA[name] if beta is None else beta
        return SetContrastive.convex(_PLAIN[name.removesuffix("-qare")](), weight)
    if beta is None:
        papers = name.startswith(("paper/", "released/"))
        chosen = "the paper chooses it per encoder and data set (Table 4)" if papers else "the paper has none for this"
        raise ValueError(
            f"expected beta=... for {name!r}, the weight of its set-level term, got None: {chosen}; "
            + see("how-to/choose-beta")
        )
    pairwise, term = _WEIGHED[name]()
    return SetContrastive(pairwise, beta, term, on="features" if name.endswith("-features") else "embeddings")
