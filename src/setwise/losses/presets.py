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

from typing import Any, Literal, cast

from setwise.checks import check_option, see
from setwise.losses.combined import SetContrastive, check_share
from setwise.losses.modules import _Loss
from setwise.losses.objective import Objective, build

Table = dict[str, Any]  # an objective's, as a recipe's file has it
CLAMP = 1e-8  # of the released code, with QARe

_RELEASED: Table = {"loss": "nt-xent", "temperature": 0.5, "reduction": "log-mean"}
_RELEASED_SPARSE: Table = {"loss": "sparse-clr", "margin": 1.0, "candidates": "all"}
_RELEASED_QARE: Table = {"term": "qare", "clamp": CLAMP, "normalization": "n(n-1)", "spectrum": "dense"}
_NORMALIZED: Table = {"term": "qare", "normalization": "n(n-1)"}
_EUCLIDEAN: Table = {"similarity": "euclidean"}
_PLAIN: dict[str, Table] = {
    "paper/simclr": {"loss": "info-nce", "temperature": 0.05},
    "paper/sparseclr": {"loss": "sparse-clr", "margin": 1.0, "candidates": "cross"},
    "paper/matching-triplet": {"loss": "triplet", "margin": 0.5},
    "paper/matching-infonce": {"loss": "info-nce", "temperature": 0.05} | _EUCLIDEAN,
    # The paper has no formula; of six forms this one matches best (results/nt-logistic.json, on digits).
    "paper/matching-nt-logistic": {"loss": "nt-logistic", "temperature": 0.05, "negatives": "sum"} | _EUCLIDEAN,
    "paper/matching-sparseclr": {"loss": "sparse-clr", "margin": 1.0, "candidates": "cross"} | _EUCLIDEAN,
    "released/simclr": _RELEASED,
    "released/sparseclr": _RELEASED_SPARSE,
    "modern/simclr": {"loss": "nt-xent", "temperature": 0.5},
}
# With a set-level term whose weight must be chosen: self-supervised weights depend on encoder and data (Table 4).
_WEIGHED: dict[str, tuple[Table, Table]] = {
    "paper/simclr-qare": (_PLAIN["paper/simclr"], {"term": "qare"}),
    "paper/sparseclr-qare": (_PLAIN["paper/sparseclr"], {"term": "qare"}),
    "released/simclr-qare": (_RELEASED | {"clamp": CLAMP}, _RELEASED_QARE),
    "released/sparseclr-qare": (_RELEASED_SPARSE | {"clamp": CLAMP}, _RELEASED_QARE),
    "modern/simclr-qare": (_PLAIN["modern/simclr"], {"term": "qare"}),
    "modern/simclr-gap": (_PLAIN["modern/simclr"], {"term": "gap"}),
}
# The paper's weights in instance matching (supplement): (1 - weight) · pairwise + weight · QARe.
_MATCHING_WEIGHTS = {
    "paper/matching-triplet-qare": 0.4,
    "paper/matching-infonce-qare": 0.5,
    "paper/matching-nt-logistic-qare": 0.2,
    "paper/matching-sparseclr-qare": 0.3,
}
# One factor at a time from released/simclr; its weights of QARe are those of N(N-1).
_PLAIN |= {
    "ablation/simclr-cold": _RELEASED | {"temperature": 0.05},
    "ablation/simclr-mean": _RELEASED | {"reduction": "mean"},
    "ablation/simclr-clamp": _RELEASED | {"clamp": CLAMP},
}
_ABLATIONS: dict[str, Table] = {
    "qare": _NORMALIZED,
    "noshift": _NORMALIZED | {"shift": 0.0},
    "projection": _NORMALIZED | {"bound": "projection"},
    "gap": {"term": "gap", "normalization": "n(n-1)"},
    "center": _NORMALIZED | {"center": True},
    "features": _NORMALIZED | {"center": True, "on": "features"},
    "frobenius": {"term": "frobenius"},
    "control": {"term": "structural-difference"},
}
_WEIGHED |= {f"ablation/simclr-{name}": (_RELEASED, term) for name, term in _ABLATIONS.items()}
for _loss in ("triplet", "infonce", "nt-logistic", "sparseclr"):
    _pairwise = _PLAIN[f"paper/matching-{_loss}"]
    _WEIGHED[f"setwise/matching-{_loss}-gap"] = (_pairwise, {"term": "gap"} | _EUCLIDEAN)
    _WEIGHED[f"setwise/matching-{_loss}-control"] = (_pairwise, {"term": "structural-difference"} | _EUCLIDEAN)
PRESETS = (*_PLAIN, *_WEIGHED, *_MATCHING_WEIGHTS)


def beta_of(name: str) -> Literal["none", "optional", "needed"]:
    """Whether the preset has a set-level term, and whether its weight must be chosen."""
    return "needed" if name in _WEIGHED else "optional" if name in _MATCHING_WEIGHTS else "none"


def objective_of(name: str, beta: float | None = None) -> Objective:
    """The objective that ``name`` (one of ``PRESETS``) stands for; ``beta`` weighs the term in those that have one."""
    check_option(name, PRESETS, "the preset's name")
    if name in _PLAIN:
        if beta is not None:
            instead = f"{name}-qare"
            hint = f"see {instead!r}" if instead in PRESETS else "leave it out, sw.SetContrastive adds QARe to any loss"
            raise ValueError(f"expected no beta for {name!r}, which has no QARe, got {beta!r}; {hint}")
        return Objective.read(_PLAIN[name])
    if name in _MATCHING_WEIGHTS:
        weight = _MATCHING_WEIGHTS[name] if beta is None else beta
        check_share(weight)
        plain = _PLAIN[name.removesuffix("-qare")]
        term = {"term": "qare", "weight": weight, "similarity": plain.get("similarity", "euclidean")}
        return Objective.read(plain | {"weight": 1 - weight, "terms": [term]})
    if beta is None:
        papers = name.startswith(("paper/", "released/"))
        chosen = "the paper chooses it per encoder and data set (Table 4)" if papers else "the paper has none for this"
        raise ValueError(
            f"expected beta=... for {name!r}, the weight of its set-level term, got None: {chosen}; "
            + see("how-to/choose-beta")
        )
    pairwise, term = _WEIGHED[name]
    return Objective.read(pairwise | {"terms": [term | {"weight": beta}]})


def presets(name: str, *, beta: float | None = None) -> _Loss | SetContrastive:
    """The loss that ``name`` (one of ``PRESETS``) stands for; ``beta`` weighs QARe in those that have it.

    Examples:
        >>> sw.presets("paper/simclr")
        InfoNCE(temperature=0.05, similarity='cosine', symmetric=False, block_size=None, products='float32')
        >>> sw.presets("released/simclr-qare", beta=0.5).beta
        0.5
    """
    return cast(_Loss | SetContrastive, build(objective_of(name, beta)))
