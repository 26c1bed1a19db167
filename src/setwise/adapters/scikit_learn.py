"""A self-supervised encoder as a scikit-learn transformer: images in, features out."""

from __future__ import annotations

from pathlib import Path
from signal import SIGINT
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from setwise.data import ImageSet
from setwise.evaluation.features import extract
from setwise.paper.recipes import recipe as recipe_of_name
from setwise.recipe import Recipe
from setwise.registry import convert
from setwise.runs import choose_device
from setwise.training.errors import Interrupted
from setwise.training.loop import RunOptions, train

CHANNELS = (1, 3)  # grey and colour; another number would leave open which axis holds the channels
SMALLEST = 8  # pixels a side: Conv-4 halves the image three times
NEEDS_LABELS = {"supervised": "its targets", "deepcluster": "whose number sets that of its clusters"}


class SetwiseEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Train an encoder by a recipe on images, then turn images into its features [N, F], float32.

        make_pipeline(SetwiseEncoder(epochs=5), LogisticRegression()).fit(images, labels)

    Images: arrays [N, H, W], [N, C, H, W] or [N, H, W, C] with C = 1 or 3, uint8, or floats in [0, 1], which become
    ``round(255 · x)``. ``recipe``: the name of one (`setwise recipes` lists them) or a ``Recipe``; ``epochs``,
    ``batch`` and ``encoder`` replace its own where given. The data set in a recipe's name does not matter, since the
    images are yours; mean and std are theirs too. Labels are used by the method "supervised" alone, and by
    "deepcluster" to know their number. The same seed gives the same features, on a CPU bit for bit.

    Fitted: ``encoder_`` (the module, on its device), ``recipe_``, ``mean_``, ``std_``, ``shape_`` (C, H, W), and
    ``history_`` (the loss's terms per epoch).
    """

    def __init__(
        self,
        recipe: str | Recipe = "paper/digits-conv4-simclr-qare",
        *,
        seed: int = 0,
        epochs: int | None = None,
        batch: int | None = None,
        encoder: str | None = None,
        device: str = "auto",
    ) -> None:
        self.recipe, self.seed, self.device = recipe, seed, device
        self.epochs, self.batch, self.encoder = epochs, batch, encoder

    def fit(self, X: Any, y: Any = None) -> SetwiseEncoder:
        """Train on images ``X``; ``y``: labels [N], of any kind, where the method needs them."""
        recipe, device, images = self._recipe(), choose_device(self.device), to_images(X)
        seed = convert(self.seed, int, "seed")  # grids of parameters are numpy's
        classes, labels = _labels(y, len(images), recipe.method.name)
        mean, std = _mean_and_std(images)
        data = ImageSet("arrays", "train", images, labels, classes, mean, std)
        with TemporaryDirectory(prefix="setwise-") as folder:
            try:
                engine, last = train(recipe, data, Path(folder), seed=seed, how=RunOptions(device, quiet=True))
            except Interrupted as error:  # its checkpoint goes with the folder
                raise (KeyboardInterrupt if error.signal == SIGINT else SystemExit(128 + error.signal)) from None
        self.encoder_ = engine.evaluated_encoder().eval()
        self.recipe_, self.history_ = recipe, last.history
        self.mean_, self.std_, self.shape_ = mean, std, tuple(images.shape[1:])
        self._n_features_out = int(self.encoder_.features)  # type: ignore[arg-type]
        return self

    def transform(self, X: Any) -> np.ndarray[Any, Any]:
        """Features [N, F] of images of the size that the encoder was trained on."""
        check_is_fitted(self)
        images = to_images(X)
        if tuple(images.shape[1:]) != self.shape_:
            raise ValueError(
                f"expected images of (C, H, W) = {self.shape_} as in fit, got {tuple(images.shape[1:])}; resize them"
            )
        weight, labels = next(self.encoder_.parameters()), torch.zeros(len(images), dtype=torch.long)
        data = ImageSet("arrays", "test", images, labels, ("",), self.mean_, self.std_)
        precision = "float64" if weight.dtype == torch.float64 else "float32"
        return np.asarray(extract(self.encoder_, data, device=weight.device, precision=precision).cpu())

    def _recipe(self) -> Recipe:
        recipe = self.recipe if isinstance(self.recipe, Recipe) else recipe_of_name(self.recipe)
        if recipe.matched or recipe.pairs:
            other = "match" if recipe.matched else "pretrain"
            raise ValueError(
                f"expected a recipe that learns from single images, got {self.recipe!r}; `setwise {other}` trains those"
            )
        changes = {"epochs": self.epochs, "batch": self.batch, "encoder": self.encoder, "data.source": "arrays"}
        return recipe.changed({name: value for name, value in changes.items() if value is not None})

    def __sklearn_tags__(self) -> Any:
        """Images, not tables."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


def to_images(x: Any) -> Tensor:
    """Images uint8 [N, C, H, W] of an array as ``SetwiseEncoder`` takes it; a ValueError says what is wrong with it."""
    array = np.asarray(x)
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in CHANNELS and array.shape[1] not in CHANNELS:
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1] not in CHANNELS or (np.ndim(x) == 4 and array.shape[3] in CHANNELS):
        raise ValueError(
            f"expected images of shape (N, H, W), (N, C, H, W) or (N, H, W, C) with C = 1 or 3, got {np.shape(x)}; "
            "reshape flattened ones"
        )
    if not len(array) or min(array.shape[2:]) < SMALLEST:
        raise ValueError(f"expected at least one image, of {SMALLEST} × {SMALLEST} pixels or more, got {np.shape(x)}")
    if np.issubdtype(array.dtype, np.floating):
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):  # NaN too
            raise ValueError(f"expected floats from 0 to 1, got {low:g} to {high:g}; divide by the brightest value")
        array = np.rint(array.astype(np.float64) * 255).astype(np.uint8)
    elif array.dtype != np.uint8:
        raise ValueError(f"expected images of uint8, or floats in [0, 1], got {array.dtype}; convert them")
    return torch.from_numpy(np.array(array, order="C"))  # a copy: theirs may be read-only


def _labels(y: Any, n: int, method: str) -> tuple[tuple[str, ...], Tensor]:
    """The names of the classes in ``y``, and the place of each item's; one class for all where no method asks."""
    if method not in NEEDS_LABELS:
        return ("",), torch.zeros(n, dtype=torch.long)
    if y is None or np.shape(y) != (n,):
        got = "None" if y is None else np.shape(y)
        raise ValueError(f"expected y of shape ({n},), labels for method {method!r}, {NEEDS_LABELS[method]}, got {got}")
    classes, places = np.unique(np.asarray(y), return_inverse=True)
    return tuple(map(str, classes)), torch.from_numpy(places.astype(np.int64))


def _mean_and_std(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel, of images in [0, 1]; from counts, so that it is exact and takes no memory."""
    levels = torch.arange(256, dtype=torch.float64) / 255
    shares = [torch.bincount(images[:, c].flatten(), minlength=256).double() for c in range(images.shape[1])]
    means = [float(s @ levels / s.sum()) for s in shares]
    stds = [float((s @ (levels - m).square() / s.sum()).sqrt()) for s, m in zip(shares, means, strict=True)]
    if not min(stds):
        raise ValueError("expected images that differ somewhere in every channel, got a constant one; leave it out")
    return tuple(means), tuple(stds)
