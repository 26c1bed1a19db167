"""What training does to a set: the spectra that QARe acts on, and the negatives that the pairwise loss looks at."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from setwise.assignment.rows import row_maximum
from setwise.data import ImageSet
from setwise.encoders import evaluating
from setwise.losses.combined import SetContrastive
from setwise.losses.modules import InfoNCE, NTXent, SparseCLR
from setwise.methods import Contrastive
from setwise.records.structure import effective_rank
from setwise.similarity import prepare, prepared_scores
from setwise.training.engine import Engine
from setwise.training.schedule import epoch_order

EPOCHS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)  # that are looked at, and the last
DIGITS = 5


def after_epoch(engine: Engine, history: list[dict[str, Any]]) -> dict[str, Any]:
    """For some epochs the structure of a fixed batch, under "structure"; of other methods nothing."""
    epoch = engine.epoch + 1
    method = engine.method
    if not isinstance(method, Contrastive) or (epoch not in EPOCHS and epoch != engine.recipe.epochs):
        return {}
    return {"structure": structure(engine, method)}


@torch.no_grad()
def structure(engine: Engine, method: Contrastive) -> dict[str, Any]:
    """Spectra and the negatives' weights of one fixed batch: two views of the first epoch's first images.

    The networks are in evaluation mode, so the run does not change.
    """
    rows = min(engine.recipe.batch, len(engine.data))
    samples = epoch_order(len(engine.data), seed=engine.seed, epoch=0)[:rows].to(engine.device)
    batch = engine.batch(samples)
    batch = replace(batch, epoch=torch.zeros_like(batch.epoch), dtype=torch.float32)
    with evaluating(method):
        images = batch.view(method.views, count=2).to(next(method.parameters()).dtype)
        h = method.encoder(images)
        z, h = method.head(h).cpu().double(), h.cpu().double()
    z_a, z_b = z.chunk(2)
    found: dict[str, Any] = {"rows": rows, "eigenvalues": [eigenvalues(z_a), eigenvalues(z_b)]}
    # Of the encoder's features, which are what is tested; about their mean, since behind a ReLU that is most of them.
    ranks = [effective_rank(eigenvalues(x - x.mean(0))) for x in h.chunk(2)]
    found["feature_rank"] = round(sum(rank or 0.0 for rank in ranks) / len(ranks), DIGITS)
    if isinstance(method.loss, SetContrastive):
        center = getattr(method.loss.regularizer, "options", {}).get("center", False)
        if center or method.loss.on == "features":  # the set-level term acts on others than those
            sets = (h if method.loss.on == "features" else z).chunk(2)
            found["acted_on"] = [eigenvalues(x - x.mean(0) if center else x) for x in sets]
    weights = negative_weights(method.loss, z_a, z_b)
    if weights is not None:
        looked = weight_statistics(*weights, batch.labels.cpu())
        labelled = not isinstance(engine.data, ImageSet) or engine.data.classes
        found |= looked if labelled else {name: looked[name] for name in ("negatives", "support")}
    return found


def eigenvalues(z: Tensor) -> list[float]:
    """Of the matrix of cosines of the rows of ``z`` [N, E], the largest first; all that can be above 0."""
    x = prepare(z, similarity="cosine")[0]
    values = torch.linalg.eigvalsh(x @ x.mT).flip(0)[: min(x.shape)]
    return [float(f"{value:.{DIGITS}g}") for value in values.clamp_min(0).tolist()]


def negative_weights(loss: nn.Module, z_a: Tensor, z_b: Tensor) -> tuple[Tensor, Tensor] | None:
    """How strongly the loss pushes each anchor from each candidate [R, M]: ∂loss/∂score; and whose they are [R], [M].

    Items are numbered 0 to N - 1; an anchor's own item is its positive, with weight 0 here. None for a loss that does
    not choose among candidates row by row, or both ways.
    """
    pairwise = loss.pairwise if isinstance(loss, SetContrastive) else loss
    if not isinstance(pairwise, (InfoNCE, NTXent, SparseCLR)) or pairwise.options.get("symmetric"):
        return None
    options = pairwise.options
    items = torch.arange(len(z_a))
    both = isinstance(pairwise, NTXent) or options.get("candidates") == "all"
    anchors, candidates = (torch.cat([z_a, z_b]),) * 2 if both else (z_a, z_b)
    mine, theirs = (items.repeat(2),) * 2 if both else (items, items)
    x, y = prepare(anchors, candidates, similarity=options["similarity"])
    theta = prepared_scores(x, y, similarity=options["similarity"])
    flat = torch.zeros_like(theta, dtype=torch.bool)
    if (clamp := options.get("clamp")) is not None:
        flat = theta < clamp
        theta = theta.clamp_min(clamp)
    theta = theta / options["temperature"]
    positive = mine[:, None] == theirs[None]
    if both:
        itself = torch.eye(len(x), dtype=torch.bool)
        theta, positive = theta.masked_fill(itself, -math.inf), positive & ~itself
    theta = theta - positive * (options.get("margin", 0.0) / options["temperature"])
    p = row_maximum(theta, smoothing="sparse" if isinstance(pairwise, SparseCLR) else "entropy").argmax
    share = torch.full((len(p), 1), 1 / len(p), dtype=p.dtype)
    if options.get("reduction") == "log-mean":  # -log of the mean probability of partners
        share = (p * positive).sum(1, keepdim=True)
        share = share / share.sum()
    weights = p * share / options["temperature"]
    return weights.masked_fill(positive | flat, 0.0), torch.stack([mine, theirs])


def weight_statistics(weights: Tensor, items: Tensor, labels: Tensor) -> dict[str, float]:
    """How many negatives have any weight, and what share of the weight lies on images of the anchor's class."""
    mine, theirs = items
    negative = mine[:, None] != theirs[None]
    same = (labels[mine][:, None] == labels[theirs][None]) & negative
    total = float(weights.sum())
    found = {
        "negatives": float(negative.sum(1).double().mean()),
        "support": float((weights > 0).sum(1).double().mean()),
        "same_class": float(same.sum() / negative.sum().clamp_min(1)),
        "same_class_weight": float((weights * same).sum()) / total if total else 0.0,
    }
    return {name: float(f"{value:.{DIGITS}g}") for name, value in found.items()}
