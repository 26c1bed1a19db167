"""scikit-learn: a pipeline that learns, parameters as sklearn expects them, arrays read by one rule."""

import pickle
import signal
import threading

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.utils import get_tags

from setwise.adapters.scikit_learn import SetwiseEncoder, to_images
from setwise.paper.recipes import recipe
from setwise.training.loop import train

FOUND = load_digits()
X, Y = np.rint(FOUND.images * 255 / 16).astype(np.uint8), FOUND.target
RANDOM = "paper/digits-conv4-random"  # nothing to train


@pytest.fixture(scope="module")
def fitted() -> SetwiseEncoder:
    return SetwiseEncoder(epochs=1, batch=64, seed=3, device="cpu").fit(X[:256])


def test_pipeline_learns():
    pipeline = make_pipeline(SetwiseEncoder(epochs=5, device="cpu"), LogisticRegression(max_iter=2000))
    assert pipeline.fit(X[:600], Y[:600]).score(X[600:900], Y[600:900]) > 0.6  # 0.1 is chance


def test_quiet_and_leaves_nothing_behind(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    seen = []

    def spy(*args, how, **options):
        seen.append(how.quiet)
        return train(*args, how=how, **options)

    monkeypatch.setattr("setwise.adapters.scikit_learn.train", spy)
    SetwiseEncoder(epochs=1, batch=64).fit(X[:64])
    assert seen == [True]  # on a terminal too
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


def test_features_are_the_encoders_of_normalised_images(fitted):
    images = torch.from_numpy(X[:256].astype(np.float64) / 255)
    with torch.no_grad():
        expected = fitted.encoder_(((images - images.mean()) / images.std(correction=0)).float()[:, None])
    found = fitted.transform(X[:256])
    assert found.dtype == np.float32
    assert found.shape == (256, 64)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5)


def test_mean_and_std_per_channel():
    colours = np.random.default_rng(0).integers(0, [[[[50]], [[120]], [[256]]]], (5, 3, 8, 9)).astype(np.uint8)
    fitted = SetwiseEncoder(RANDOM).fit(colours)
    np.testing.assert_allclose(fitted.mean_, (colours / 255).mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(fitted.std_, (colours / 255).std((0, 2, 3)), rtol=1e-12)
    assert fitted.shape_ == (3, 8, 9)


def test_seed_decides_and_labels_do_not(fitted):
    same = clone(fitted).fit(X[:256], Y[:256])
    np.testing.assert_array_equal(same.transform(X[:9]), fitted.transform(X[:9]))
    other = clone(fitted).set_params(seed=4).fit(X[:256])
    assert not np.allclose(other.transform(X[:9]), fitted.transform(X[:9]), atol=1e-2)


def test_parameters_are_sklearns():
    changed = {"recipe": RANDOM, "seed": 5, "epochs": 0, "batch": 32, "encoder": "resnet8", "device": "cpu"}
    estimator = SetwiseEncoder()
    assert set(estimator.get_params()) == set(changed)
    assert estimator.set_params(**changed).get_params() == changed
    again = clone(estimator)
    assert again is not estimator
    assert again.get_params() == changed
    assert not [name for name in vars(again) if name.endswith("_")]
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        estimator.set_params(epoch=3)
    assert get_tags(estimator).input_tags.three_d_array
    ours = recipe(RANDOM)
    assert clone(SetwiseEncoder(ours)).get_params()["recipe"] == ours


def test_given_parameters_replace_the_recipes():
    fitted = SetwiseEncoder(encoder="resnet8", epochs=1, batch=50).fit(X[:50])
    changes = {"encoder": "resnet8", "epochs": 1, "batch": 50, "data.source": "arrays"}
    assert fitted.recipe_ == recipe("paper/digits-conv4-simclr-qare").changed(changes)
    assert len(fitted.history_) == 1
    assert set(fitted.history_[0]) >= {"loss", "pairwise", "regularizer"}


def test_grid_search_over_an_array():
    steps = [("encoder", SetwiseEncoder(epochs=1, device="cpu")), ("classifier", LogisticRegression(max_iter=2000))]
    grid = {"encoder__batch": np.array([64, 128]), "encoder__seed": np.arange(2)}
    search = GridSearchCV(Pipeline(steps), grid, cv=2, error_score="raise").fit(X[:256], Y[:256])
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_.named_steps["encoder"].recipe_.batch in (64, 128)


def test_supervised_uses_labels_of_any_kind():
    estimator = SetwiseEncoder("paper/digits-conv4-supervised", epochs=8, device="cpu")
    names = np.array(["even", "odd"])[Y % 2]
    fitted = estimator.fit(X[:512], names[:512])
    assert fitted.history_[-1]["accuracy"] > 0.75  # 0.5 is chance
    with pytest.raises(ValueError, match=r"expected y of shape \(512,\), labels for method 'supervised'.*got None"):
        estimator.fit(X[:512])
    with pytest.raises(ValueError, match=r"expected y of shape \(512,\).*got \(511,\)"):
        estimator.fit(X[:512], names[:511])


def test_pickled_and_named_output(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X[:5]), fitted.transform(X[:5]))
    assert list(again.get_feature_names_out()[[0, 63]]) == ["setwiseencoder0", "setwiseencoder63"]


def test_interrupt_is_a_keyboard_interrupt():
    timer = threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        SetwiseEncoder(epochs=10_000).fit(X[:256])
    timer.join()


def test_layouts_mean_the_same():
    grey = X[:4]
    expected = torch.from_numpy(grey)[:, None]
    for array in (grey, grey[:, None], grey[..., None], expected.double() / 255, list(grey)):
        assert torch.equal(to_images(array), expected)
    colour = np.random.default_rng(0).integers(0, 256, (2, 3, 9, 10), dtype=np.uint8)
    for array in (colour, colour.transpose(0, 2, 3, 1), (colour / 255).astype(np.float32)):
        assert torch.equal(to_images(array), torch.from_numpy(colour))
    assert to_images(np.full((1, 8, 8), 0.3)).unique().tolist() == [76]  # 76.5, rounded to even
    assert to_images(np.full((1, 8, 8), 0.5)).unique().tolist() == [128]  # 127.5


def test_the_array_is_not_touched():
    frozen = X[:3].copy()
    frozen.setflags(write=False)
    to_images(frozen).zero_()
    np.testing.assert_array_equal(frozen, X[:3])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (X.reshape(len(X), 64), r"expected images of shape \(N, H, W\).*got \(1797, 64\); reshape"),
        (np.zeros((5, 2, 8, 8), np.uint8), r"with C = 1 or 3, got \(5, 2, 8, 8\)"),
        (np.zeros((5, 3, 8, 3), np.uint8), r"with C = 1 or 3, got \(5, 3, 8, 3\)"),
        (np.zeros((0, 8, 8), np.uint8), r"expected at least one image.*got \(0, 8, 8\)"),
        (np.zeros((4, 8, 7), np.uint8), r"of 8 × 8 pixels or more, got \(4, 8, 7\)"),
        (FOUND.images, "expected floats from 0 to 1, got 0 to 16; divide"),
        (np.full((4, 8, 8), np.nan), "expected floats from 0 to 1, got nan to nan"),
        (X.astype(np.int64), "expected images of uint8, or floats in .0, 1., got int64"),
        (np.full((4, 8, 8), 7, np.uint8), "expected images that differ somewhere in every channel, got a constant"),
    ],
)
def test_bad_arrays(array, message):
    with pytest.raises(ValueError, match=message):
        SetwiseEncoder(RANDOM).fit(array)


def test_other_bad_input(fitted):
    with pytest.raises(NotFittedError, match="SetwiseEncoder instance is not fitted yet"):
        SetwiseEncoder().transform(X)
    with pytest.raises(ValueError, match=r"expected images of \(C, H, W\) = \(1, 8, 8\) as in fit, got \(3, 8, 8\)"):
        fitted.transform(np.zeros((2, 3, 8, 8), np.uint8))
    with pytest.raises(ValueError, match="expected the name of a recipe, got 'paper/digits'"):
        SetwiseEncoder("paper/digits").fit(X)
    with pytest.raises(ValueError, match="expected a recipe that learns from single images"):
        SetwiseEncoder("paper/digits-matching-infonce").fit(X)
    with pytest.raises(ValueError, match="expected the encoder to be registered, one of .*'resnet8'"):
        SetwiseEncoder(encoder="resnet9").fit(X)
    for name, value in (
        ("seed", None),
        ("seed", 1.5),
        ("seed", np.True_),
        ("epochs", 1.5),
        ("batch", True),
    ):
        with pytest.raises(ValueError, match=f"expected {name} to be a whole number, got {value!r}"):
            SetwiseEncoder(**{name: value}).fit(X)
