"""The examples run, and say something that is so."""

import math
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import setwise as sw
import setwise.records as records
import setwise.register as register
from setwise.cli import main
from setwise.training import checkpoint

EXAMPLES = Path(__file__).parent.parent / "examples"


def output_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_own_loop_learns(capsys):
    out = output_of("own_loop.py", capsys)
    losses = [float(x) for x in re.findall(r"loss (\d+\.\d+)", out)]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert float(re.findall(r"recognise (\d+\.\d+)%", out)[0]) > 80


def test_structure_repairs_what_pairs_get_wrong(capsys):
    out = output_of("matching_sets.py", capsys)
    right = [float(x) for x in re.findall(r"(\d+\.\d+)% right", out)]
    assert right[0] < 70  # pairs alone
    assert max(right[2:]) > 95


def test_halves_of_digits_find_each_other(capsys):
    out = output_of("digit_halves.py", capsys)
    matched = [float(x) for x in re.findall(r"(\d+\.\d+)% of \d+ halves matched", out)]
    chance = float(re.findall(r"Chance is (\d+\.\d+)%", out)[0])
    assert len(matched) == 3
    assert min(matched) > 8 * chance


def test_sentences_of_shuffled_documents_are_aligned(capsys):
    out = output_of("shuffled_documents.py", capsys)
    before, after = (float(x) for x in re.findall(r"(\d+\.\d+)% of 240", out))
    assert before < 25  # chance is 1 of 12
    assert after > 95
    lines = [line.partition("  (")[0].split("  =  ") for line in out.splitlines() if "=" in line]
    assert len(lines) == 3
    pairs = [
        pair
        for english, other in lines
        for pair in zip(english.split(), [other.split()[i] for i in (1, 2, 0, 3, 5, 4)], strict=True)
    ]
    assert len(set(pairs)) == len(dict(pairs)) == len({word for _, word in pairs}), "a word has one translation"


# What follows adds to the library from outside: each file is given with --use, as a person would.


@pytest.fixture
def pretrain(registries) -> Callable[..., tuple[dict[str, Any], dict[str, torch.Tensor]]]:
    """Train on digits with an example's file; the record, and the tensors of the checkpoint."""

    def run(out: Path, example: str, *words: object) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        quick = ["--use", str(EXAMPLES / example), "--device", "cpu", "--quiet", "--probe.epochs", "1"]
        main(["pretrain", *quick, "--out", str(out), *map(str, words)])
        return records.read(out), checkpoint.load(out).tensors

    return run


def losses(record: dict[str, Any], name: str = "loss") -> list[float]:
    return record["epochs"][name]


def test_byol_moves_its_target_by_a_cosine(tmp_path, pretrain):
    # One step of one leaves the target where it began; the first of two, with momentum 0, moves it half the way.
    words = ("--method", "my-byol", "--method.momentum", 0, "--batch", 1297, "--epochs")
    one, two = (pretrain(tmp_path / str(n), "byol.py", *words, n)[1] for n in (1, 2))
    for part, place in (("encoder", "0"), ("head", "1")):
        names = [name for name in one if name.startswith(f"model.{part}.") and name.endswith(("weight", "bias"))]
        assert len(names) > 3
        for name in names:
            target = name.replace(part, f"target.{place}")
            assert not torch.equal(one[name], one[target])
            torch.testing.assert_close(two[target], (one[name] + one[target]) / 2)


def test_byol_learns_without_collapse(tmp_path, pretrain):
    record, _ = pretrain(tmp_path, "byol.py", "--method", "my-byol", "--epochs", 6)
    assert losses(record)[-1] < 0.9 * losses(record)[0]
    assert record["final"]["knn20_accuracy"] > 0.5  # chance is 0.1; 100 epochs reach 0.91


def test_byol_over_two_processes_is_one(tmp_path, pretrain):
    words = ["--method", "my-byol", "--epochs", "2", "--batch", "144", "--drop-last", "--precision", "float64"]
    _, alone = pretrain(tmp_path / "one", "byol.py", "--no-evaluate", *words)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    command = [*torchrun, "setwise.cli", "pretrain", "--use", str(EXAMPLES / "byol.py"), *words, "--no-evaluate"]
    done = subprocess.run(
        [*command, "--device", "cpu", "--out", str(tmp_path / "two")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("written to") == 1, "one of them talks"
    both = checkpoint.load(tmp_path / "two").tensors
    assert both.keys() == alone.keys()
    for name, x in alone.items():
        torch.testing.assert_close(both[name], x, rtol=1e-8, atol=1e-8, msg=lambda m, name=name: f"{name}: {m}")


def test_multi_crop_sees_small_views_too(tmp_path, pretrain):
    seen = []

    class Spy(nn.Sequential):
        features = 16

        def forward(self, images):
            seen.append(images)
            return super().forward(images)

    @register.encoder("spy", about="Remembers what it sees.")
    def spy(channels: int) -> nn.Module:
        return Spy(nn.Conv2d(channels, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    words = ("--method", "multi-crop", "--encoder", "spy", "--batch", 100, "--drop-last", "--no-evaluate")
    small = ("--method.small", 3, "--method.size", "5,4")
    record, _ = pretrain(tmp_path / "small", "multi_crop.py", *words, *small, "--term", "none", "--epochs", 2)
    assert {(200, 1, 8, 8), (300, 1, 5, 4)} <= {tuple(images.shape) for images in seen}
    assert losses(record)[1] < losses(record)[0]
    assert losses(record, "large")[0] != losses(record)[0]
    seen.clear()
    alike = ("--method.small", 2, "--method.size", "8,8", "--method.area", "0.08,1")
    pretrain(tmp_path / "alike", "multi_crop.py", *words, *alike, "--epochs", 1)
    assert not torch.equal(seen[0], seen[1]), "views of the same kind, but other ones"


def test_vicreg_is_its_equations(tmp_path, pretrain):
    words = ("--term", "my-variance=25", "--term", "my-covariance=1", "--epochs", 2, "--no-evaluate")
    for loss, weight in (("invariance", 25), ("info-nce", 1)):  # its own, and any other
        own = ("--objective.loss", loss, "--objective.weight", weight)
        record, _ = pretrain(tmp_path / loss, "vicreg.py", *own, *words)
        assert losses(record)[-1] < losses(record)[0]
        pairwise, terms = (numpy.array(losses(record, name)) for name in ("pairwise", "regularizer"))
        assert losses(record) == pytest.approx(weight * pairwise + terms, rel=1e-5)
    z = numpy.random.default_rng(0).normal(size=(2, 50, 6)) * [0.3, 0.6, 0.9, 1.2, 1.5, 2.0]
    sets = [torch.from_numpy(x) for x in z]
    variances, covariances = z.var(1, ddof=1), [numpy.cov(x.T) for x in z]
    expected = {
        "my-variance": numpy.maximum(0, 1 - numpy.sqrt(variances + 1e-4)).mean(),
        "my-covariance": sum((c**2).sum() - (numpy.diag(c) ** 2).sum() for c in covariances) / 6,
    }
    for name, value in expected.items():
        assert register.term[name].make(*sets).item() == pytest.approx(value, rel=1e-12)
        own = register.term[name.removeprefix("my-")].make()  # the package's
        assert own(*sets).item() == pytest.approx(value, rel=1e-12)
    assert register.loss["invariance"].make(*sets).item() == pytest.approx(((z[0] - z[1]) ** 2).mean(), rel=1e-12)


def test_a_vit_of_timm_learns_digits(tmp_path, pretrain):
    try:
        import timm  # noqa: F401
    except Exception as error:  # torchvision, which it needs, fails in its own ways beside a torch without CUDA
        pytest.skip(f"needs timm and torchvision, got {error}")
    words = ("--encoder", "small-vit", "--encoder.depth", 1, "--optimizer", "adamw", "--epochs", 2, "--no-evaluate")
    record, tensors = pretrain(tmp_path, "timm_vit.py", *words)
    assert losses(record)[-1] < losses(record)[0]
    assert tensors["model.encoder.patch_embed.proj.weight"].shape == (64, 1, 2, 2)


def test_lars_from_outside_is_the_librarys(tmp_path, pretrain):
    words = ("--lr", 1, "--term", "none", "--epochs", 2, "--no-evaluate")
    (record, own), (_, ours) = (
        pretrain(tmp_path / name, file, "--optimizer", name, *words)
        for name, file in (("my-lars", "lars.py"), ("lars", "vicreg.py"))
    )
    assert losses(record)[1] < losses(record)[0]
    weights = [name for name in ours if name.startswith("model.")]
    assert all(torch.equal(own[name], ours[name]) for name in weights)
    assert sum(name.startswith("optimizer.") for name in own) == sum(name.startswith("optimizer.") for name in ours)


def test_stripes_run_as_their_labels_say(tmp_path, pretrain):
    words = ("--data", "stripes", "--data.noise", 0.1, "--data.count", 256, "--epochs", 2)
    record, _ = pretrain(tmp_path, "stripes.py", *words)
    assert record["recipe"]["data"]["noise"] == 0.1
    assert record["data"] == {"name": "stripes", "train": 256, "test": 256}
    assert record["final"]["knn20_accuracy"] > 0.4  # chance is 0.25
    again, other = (sw.data.load("stripes", split=split, options={"noise": 0.0}) for split in ("train", "test"))
    assert torch.equal(again.images, sw.data.load("stripes", options={"noise": 0.0}).images)
    assert not torch.equal(again.images, other.images)
    for image, label in zip(again.images[:40, 0].double(), again.labels[:40].tolist(), strict=True):
        power = torch.fft.fft2(image - image.mean(), s=(64, 64)).abs()
        y, x = (int(i) - 64 * (int(i) > 32) for i in divmod(int(power.argmax()), 64))
        off = (math.degrees(math.atan2(y, x)) - 45 * label + 90) % 180 - 90
        assert abs(off) < 12, (label, y, x)


def test_a_logger_of_ones_own(tmp_path, pretrain):
    record, _ = pretrain(tmp_path, "markdown_logger.py", "--logger", "markdown", "--epochs", 2, "--no-evaluate")
    text = (tmp_path / "metrics.md").read_text()
    head, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    assert [float(row[head.index("loss")]) for row in rows] == pytest.approx(losses(record), rel=1e-4)
    (resumed := tmp_path / "resumed").mkdir()
    first, second = checkpoint.load(tmp_path).history
    register.logger.make("markdown", folder=resumed, history=[first]).epoch(second)
    assert (resumed / "metrics.md").read_text() == text


def test_a_table_of_ones_own_in_the_report(tmp_path, pretrain):
    runs = [pretrain(tmp_path / f"runs/{n % 4}", "vicreg.py", "--epochs", n)[0] for n in (1, 4, 2)]
    page = tmp_path / "report"
    main(["report", str(tmp_path / "runs"), "--out", str(page), "--use", str(EXAMPLES / "own_table.py")])
    rows = [list(map(float, line.split(","))) for line in (page / "cost.csv").read_text().splitlines()[1:]]
    found = [(x["timings"]["training_seconds"], x["seed"], 100 * x["final"]["probe_accuracy"]) for x in runs]
    assert rows == [pytest.approx(row) for row in sorted(found)]
    assert "What an accuracy costs" in (page / "index.html").read_text()


def test_the_page_says_how_long_each_is():
    page = (EXAMPLES.parent / "docs" / "how-to" / "your-method.md").read_text()
    lengths = dict(re.findall(r"\| `(\w+\.py)` \| (\d+) \|", page))
    assert len(lengths) == 8
    for name, length in lengths.items():
        assert len((EXAMPLES / name).read_text().splitlines()) == int(length), name
