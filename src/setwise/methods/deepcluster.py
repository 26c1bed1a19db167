"""DeepCluster (Caron et al. 2018): clusters of the features are the labels that the features are then trained on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import setwise.register as register
from setwise.checks import check_matrix
from setwise.data import ImageSet
from setwise.encoders import evaluating, projection_head
from setwise.losses.parallel import Processes
from setwise.methods.kmeans import kmeans
from setwise.methods.method import Batch, Method, Parts
from setwise.views import preset

CLUSTERS_PER_CLASS = 10
WHOLE = 64  # features that are whitened in all their dimensions; of wider ones half the dimensions are kept
NOISE = 1e-12  # of the features' mean square: less variance is rounding, which in float32 is some 1e-14
LAST_LAYER_STD = 0.01  # of its fresh weights
IMAGES = 512  # at a time: ResNet-18's first feature maps of 64 x 64 pixels are 0.5 GB then
ROWS = 2**14  # of features that are float64 at a time: 64 MiB at 512 dimensions
STREAM = 1  # keeps these draws apart from others of the same seed and epoch


@torch.no_grad()
def whitened(features: Tensor, dimensions: int) -> Tensor:
    """The ``dimensions`` principal components [N, D] of the features [N, F], each with variance 1, then of length 1.

    Computed in float64, returned in the features' dtype, float32 at least. A direction without variance, up to
    rounding, has no scale that could be made 1: its component is 0. So is a row without any other component.
    """
    check_matrix(features, "features")
    mean = features.mean(0, dtype=torch.float64)
    covariance = mean.new_zeros(len(mean), len(mean))
    for rows in torch.split(features, ROWS):
        centred = rows - mean
        covariance.addmm_(centred.T, centred)
    covariance /= max(1, len(features) - 1)
    variances, directions = torch.linalg.eigh(covariance)  # ascending
    variances, directions = variances.flip(0)[:dimensions], directions.flip(1)[:, :dimensions]
    # Against the mean square, not the largest variance: of features that are all alike, both are rounding.
    kept = variances > NOISE * (covariance.trace() + mean.square().sum())
    directions = directions * torch.where(kept, torch.where(kept, variances, 1).rsqrt(), 0)
    parts = []
    for rows in torch.split(features, ROWS):
        x = (rows - mean) @ directions
        length = x.norm(dim=1, keepdim=True)
        parts.append((x / torch.where(length > 0, length, 1)).to(torch.promote_types(features.dtype, torch.float32)))
    return torch.cat(parts)


@register.method("deepcluster", about="Clusters of the features are the labels, anew in each epoch.")
class DeepCluster(Method):
    """Cross-entropy of each image's cluster, weighted by 1 - the share of all images that are in it.

    Before every epoch the training set, as it is, is clustered anew (k-means of whitened features) and the last layer
    starts afresh, since the clusters' numbers mean nothing from one epoch to the next. As in the released code, Adam's
    moments of that layer go on. Over many processes all take the first one's clusters, since theirs may differ by
    rounding, and the weighted mean is over the whole batch.
    """

    processes: Processes | None = None  # of many, if there are

    clusters: Tensor  # [N] int64: buffers, so that a run that is resumed within an epoch has the epoch's
    weights: Tensor  # [K]

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        count = CLUSTERS_PER_CLASS * parts.classes
        self.encoder, self.views = parts.encoder, parts.views
        self.classifier = projection_head(parts.features, parts.recipe.head.hidden, count)
        self.register_buffer("clusters", torch.zeros(parts.samples, dtype=torch.int64))
        self.register_buffer("weights", torch.ones(count))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the share of the batch that is put into its cluster."""
        logits = self.classifier(self.encoder(batch.view(self.views)))
        labels = self.clusters[batch.samples]
        hits = (logits.argmax(1) == labels).float().mean()
        loss = cross_entropy(logits, labels, self.weights)
        if self.processes is not None:
            weight = self.weights[labels].sum()
            loss = loss * weight * self.processes.size / self.processes.total(weight)
        return {"loss": loss, "accuracy": hits}

    def share(self, processes: Processes) -> None:
        """Clusters are the first process's, and each process's mean counts by its share of all weights."""
        self.processes = processes

    @torch.no_grad()
    def begin_epoch(self, data: ImageSet, *, seed: int, epoch: int) -> None:
        """Cluster the training set; all that changes changes in place, where captured steps and optimisers look."""
        if len(data) != len(self.clusters):
            raise ValueError(f"expected the {len(self.clusters)} images that this method is for, got {len(data)}")
        words = np.random.SeedSequence(seed, spawn_key=(STREAM, epoch)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(words[0]))
        features = self._features(data)
        width, count = features.shape[1], len(self.weights)
        points = whitened(features, width if width <= WHOLE else width // 2)
        labels = kmeans(points, count, generator=generator).labels
        if self.processes is not None:
            labels = self.processes.gather(labels)[: len(labels)]
        sizes = torch.bincount(labels, minlength=count).to(self.weights)
        # Weights matter by their ratios only: one cluster of everything needs any weight but the formula's, 0.
        self.weights.copy_(torch.where(sizes == len(labels), 1.0, 1 - sizes / len(labels)))
        self.clusters.copy_(labels)
        last = self.classifier[-1]
        assert isinstance(last, nn.Linear)
        last.weight.copy_(LAST_LAYER_STD * torch.randn(last.weight.shape, generator=generator, device="cpu"))
        last.bias.zero_()

    def _features(self, data: ImageSet) -> Tensor:
        """Features [N, F] of the images as they are, normalised as the views are; in the encoder's own precision."""
        weight = next(self.encoder.parameters())
        dtype, device = weight.dtype, weight.device
        plain = preset("none", mean=self.views.mean, std=self.views.std)
        samples = torch.zeros(IMAGES, dtype=torch.int64, device=device)  # nothing is drawn
        with evaluating(self.encoder):
            chunks = (x.to(device) for x in data.chunks(IMAGES))
            views = (plain(x, samples=samples[: len(x)], seed=0, epoch=0) for x in chunks)
            return torch.cat([self.encoder(x.to(dtype)) for x in views])
