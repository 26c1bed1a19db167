"""The numbers that the paper prints, in per cent, and its spelling of names.

Mean and standard deviation over three runs. The paper does not say whether the deviation divides by n or n - 1.
"""

from __future__ import annotations

import re

from setwise.records.statistics import MeanStd

RUNS = 3
Numbers = tuple[tuple[float, float], ...]  # (mean, std) of each column

# Table 1: CUHK-03, accuracy of matching. The loss alone, and with QARe.
_TABLE_1: dict[str, Numbers] = {
    "triplet": ((54.85, 0.77), (58.48, 1.67)),
    "sparseclr": ((53.03, 0.43), (54.84, 1.40)),
    "infonce": ((57.87, 1.19), (61.96, 1.38)),
    "nt-logistic": ((40.30, 0.42), (43.48, 1.41)),
}

# Tables 2 and 3: linear probe. Their columns, and their rows by method. SimCLR's row is the same in both.
_COLUMNS = [(encoder, data) for encoder in ("conv4", "resnet32") for data in ("cifar10", "cifar100", "tiny-imagenet")]
_TABLE_2: dict[str, Numbers] = {
    "supervised": ((80.46, 0.39), (49.29, 0.85), (36.47, 0.36), (90.87, 0.41), (65.32, 0.22), (50.09, 0.32)),
    "random": ((32.92, 1.88), (10.79, 0.59), (6.19, 0.13), (27.47, 0.83), (7.65, 0.44), (3.24, 0.43)),
    "deepcluster": ((42.88, 0.21), (21.03, 1.56), (12.60, 1.23), (43.31, 0.62), (20.44, 0.80), (11.64, 0.21)),
    "rotation": ((56.73, 1.71), (27.45, 0.80), (18.40, 0.95), (62.00, 0.79), (29.02, 0.18), (14.73, 0.48)),
    "deepinfomax": ((44.60, 0.27), (22.74, 0.21), (14.19, 0.13), (47.13, 0.45), (24.07, 0.05), (17.51, 0.15)),
    "simclr": ((59.64, 0.93), (30.75, 0.23), (21.15, 0.16), (76.45, 0.10), (40.18, 0.13), (23.44, 0.27)),
    "simclr-qare": ((61.54, 1.17), (31.18, 0.41), (21.33, 0.18), (76.85, 0.39), (41.20, 0.34), (25.05, 0.18)),
}
_TABLE_3: dict[str, Numbers] = {
    "sparseclr": ((59.86, 0.56), (32.04, 0.26), (22.41, 0.39), (70.37, 0.12), (41.05, 0.20), (25.87, 0.59)),
    "sparseclr-qare": ((61.06, 0.39), (33.05, 0.32), (22.45, 0.30), (71.39, 0.30), (42.07, 0.35), (27.03, 0.40)),
}

# By loss and term: "" or "qare".
MATCHING: dict[tuple[str, str], MeanStd] = {
    (loss, term): MeanStd(*number, RUNS)
    for loss, row in _TABLE_1.items()
    for term, number in zip(("", "qare"), row, strict=True)
}
# By encoder, data and method.
CLASSIFICATION: dict[tuple[str, str, str], MeanStd] = {
    (*column, method): MeanStd(*number, RUNS)
    for method, row in (_TABLE_2 | _TABLE_3).items()
    for column, number in zip(_COLUMNS, row, strict=True)
}

WORDS = {
    "triplet": "Triplet",
    "infonce": "InfoNCE",
    "nt-logistic": "NT-Logistic",
    "sparseclr": "SparseCLR",
    "simclr": "SimCLR",
    "supervised": "Supervised",
    "random": "Random weights",
    "deepcluster": "DeepCluster",
    "rotation": "RotationNet",
    "deepinfomax": "Deep InfoMax",
    "digits": "digits",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny-imagenet": "tiny-ImageNet",
    "cuhk03": "CUHK-03",
    "conv4": "Conv-4",
    # What the ablation changes in released/simclr.
    "ablation/simclr-cold": "temperature 0.05",
    "ablation/simclr-mean": "mean instead of log-mean",
    "ablation/simclr-clamp": "clamp, no QARe",
    "released/simclr-qare": "QARe with clamp",
    "ablation/simclr-qare": "QARe without clamp",
    "ablation/simclr-noshift": "QARe without the +1 shift",
    "ablation/simclr-projection": "projection bound",
    "ablation/simclr-gap": "alignment gap",
    "ablation/simclr-center": "QARe about the mean",
    "ablation/simclr-features": "QARe of features about their mean",
    "ablation/simclr-frobenius": "Frobenius control",
    "ablation/simclr-control": "structural difference",
}

# Section 4.3: weights of QARe that "provide consistent improvement".
SAFE_WEIGHTS = (0.75, 1.25)
# Supplement, Figure 3: what QARe adds to a training iteration of InfoNCE, per cent by batch size.
TIME_ADDED = {256: 13.0, 2048: 29.0}
MEMORY_ADDED = {2048: 0.78}


def word(name: str) -> str:
    """The spelling of a name: "InfoNCE", "ResNet-32"."""
    return WORDS.get(name) or re.sub(r"^resnet(\d+)$", r"ResNet-\1", name)
