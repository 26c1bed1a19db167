"""Ways to make ResNet-18's training step faster on a GPU: milliseconds and TFLOP/s of each.

    python benchmarks/resnet18_step.py [--out FILE.json] [--only compiled] [--seconds 2]

A step is all of SimCLR with QARe: two views of 512 images, encoder, head, loss, gradients, SGD; captured as one graph.
The first way is what `setwise pretrain` does, "encoder compiled" what its --compile does. The others change one thing
each, or several that belong together. A way that fails says why, and the others go on. Where the
command was stopped, the same one goes on: ways that FILE.json has are not measured again, but the first one is, so that
each visit has its own to compare with.

Nothing here is in fp8: torch has fp8 products of matrices (torch._scaled_mm), and no fp8 convolutions. Views are not
compiled: ours are one launch, and plain torch's wait for the device, so that nothing can be captured.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
import torch._inductor.config as inductor

import setwise.register as register
from setwise.bench.step import images
from setwise.bench.timing import milliseconds
from setwise.data import ImageSet
from setwise.encoders import ResNet
from setwise.kernels import conv
from setwise.kernels import views as view_kernels
from setwise.methods import Batch, Contrastive
from setwise.paper.recipes import recipe as named
from setwise.recipe import Recipe
from setwise.runs import choose_device
from setwise.training.capture import captured
from setwise.training.checkpoint import write_text
from setwise.training.engine import untrained
from setwise.training.environment import environment
from setwise.training.operations import training_operations

RECIPE = "modern/cifar10-resnet18-simclr-qare"
COUNT = 8192  # images on the device: time does not depend on what they show
AUTOTUNE = "max-autotune-no-cudagraphs"  # we capture the graph ourselves


@dataclass(frozen=True)
class Way:
    """How a step is carried out."""

    name: str
    batch: int = 512
    size: int | None = None  # of the views, if they are smaller than the images
    compile: str = ""  # "encoder", or "later": blocks behind the first stage, which has our kernels
    mode: str | None = None  # of torch.compile
    kernels: bool = True  # ours for convolution and norm
    view_kernel: bool = True  # ours for views
    channels_last: bool = True
    fused: bool = True  # SGD's one kernel for all weights
    qare: bool = True
    bf16: bool = True
    capture: bool = True
    searched: int | None = None  # algorithms that cuDNN times for a convolution: torch's number is 10, 0 is all
    tuned: bool = False  # the compiler tries sizes of blocks for norms and activations, too


# Those that may be fastest first: a compilation takes up to a minute.
WAYS = (
    Way("as setwise pretrain"),
    Way("encoder compiled", compile="encoder"),
    Way("encoder compiled, all of cuDNN's algorithms", compile="encoder", searched=0),
    Way("encoder compiled, blocks tuned", compile="encoder", tuned=True),
    Way("later stages compiled, block by block", compile="later"),
    Way("encoder compiled, max-autotune", compile="encoder", mode=AUTOTUNE),
    Way("batch 1024", batch=1024),
    Way("batch 1024, encoder compiled", batch=1024, compile="encoder"),
    Way("views of 24 pixels", size=24),
    Way("views of 24 pixels, encoder compiled", size=24, compile="encoder"),
    Way("views of 16 pixels", size=16),
    Way("views of 16 pixels, encoder compiled", size=16, compile="encoder"),
    Way("without QARe", qare=False),
    Way("plain torch's convolutions", kernels=False),
    Way("channels first", channels_last=False),
    Way("SGD not fused", fused=False),
    Way("not captured", capture=False),
    Way("float32", bf16=False),
    Way("plain torch's views, not captured", view_kernel=False, capture=False),
    Way("batch 1024, encoder compiled, max-autotune", batch=1024, compile="encoder", mode=AUTOTUNE),
    Way("channels first, encoder compiled", channels_last=False, compile="encoder"),
    Way("not captured, encoder compiled", capture=False, compile="encoder"),
)


@contextmanager
def kernels_of(way: Way) -> Iterator[None]:
    """Our kernels, less those that the way does without, and the libraries' search for theirs."""
    with ExitStack() as stack:
        if way.searched is not None:
            stack.enter_context(mock.patch.object(torch.backends.cudnn, "benchmark_limit", way.searched))
        if way.tuned:
            stack.enter_context(inductor.patch(coordinate_descent_tuning=True, max_autotune_pointwise=True))
        for module, wanted in ((conv, way.kernels), (view_kernels, way.view_kernel)):
            if not wanted:
                stack.enter_context(mock.patch.object(module, "usable", return_value=False))
        yield


def step_of(way: Way, recipe: Recipe, data: ImageSet, device: torch.device, backend: str) -> Callable[[], None]:
    """A step of this way, as a call."""
    on_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    method = untrained(recipe, data, seed=1).to(device).train()
    assert isinstance(method, Contrastive)
    if way.channels_last:
        method.to(memory_format=torch.channels_last)
    options: Any = {"dynamic": False, "backend": backend} | ({"mode": way.mode} if way.mode else {})
    rate = torch.full((), 1e-3, device=device)
    groups = method.groups()
    if way.fused:
        optimizer = register.optimizer["sgd"].make(groups, lr=rate, weight_decay=5e-4)
    else:
        optimizer = torch.optim.SGD(groups, lr=1e-3, momentum=0.9, weight_decay=5e-4, foreach=True)
    if way.compile == "encoder":
        method.encoder.compile(**options)
    elif way.compile == "later":
        encoder = cast(ResNet, method.encoder)
        for block in encoder.blocks[len(encoder.blocks) // 4 :]:
            block.compile(**options)
    pixels, number = data.images.to(device), torch.zeros((), dtype=torch.int64, device=device)
    samples = torch.arange(way.batch, device=device)
    dtype = torch.bfloat16 if way.bf16 and on_gpu else torch.float32

    def step() -> None:
        batch = Batch(pixels[samples], samples, samples, number, number, dtype, way.channels_last)
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=way.bf16 and on_gpu):
            features = method.encoder(batch.view(method.views, count=method.crops.count))
            terms = method.compare((torch.unflatten(features, 0, (method.crops.count, -1)).transpose(0, 1),), batch)
        terms["loss"].backward()
        optimizer.step()
        number.add_(1)  # other views in each step

    if not (way.capture and on_gpu):
        return step
    return captured(step)


def recipe_of(way: Way, encoder: str) -> Recipe:
    """What the way trains by."""
    changes: dict[str, Any] = {"batch": way.batch, "epochs": 1, "warmup": 0}
    if encoder != "resnet18":
        changes["encoder"] = encoder
    if way.size is not None:
        changes["views.size"] = (way.size, way.size)
    if not way.qare:
        changes["terms"] = []
    return named(RECIPE).changed(changes)


def measure(
    way: Way,
    data: ImageSet,
    device: torch.device,
    *,
    seconds: float,
    encoder: str = "resnet18",
    backend: str = "inductor",
) -> dict[str, Any]:
    """Milliseconds of a step, and its operations a second; the reason where it fails."""
    recipe = recipe_of(way, encoder)
    row: dict[str, Any] = asdict(way)
    torch._dynamo.reset()
    try:
        with kernels_of(way):
            step = step_of(way, recipe, data, device, backend)
            step()
            row["ms"] = milliseconds(step, device, seconds)
        images_seen = len(data) // way.batch * way.batch
        operations = training_operations(recipe, data) / images_seen * way.batch
        row["tflop_per_second"] = operations / row["ms"] / 1e9
    except Exception as error:  # whatever a compiler may raise
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    finally:
        step = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return row


def shown(row: dict[str, Any]) -> str:
    """A way in a line."""
    if "failed" in row:
        return f"{row['name']:44}  failed: {row['failed']}"
    per_image = 1e3 * row["ms"] / row["batch"]
    return f"{row['name']:44} {row['ms']:8.2f} ms {per_image:7.1f} us an image {row['tflop_per_second']:7.1f} TFLOP/s"


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print, write after each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="ways with these words in their name")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, for each way")
    parser.add_argument("--encoder", default="resnet18", help="another one, to try this on a CPU")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(words)
    device, data = choose_device(given.device), images(COUNT)
    record: dict[str, Any] = {"what": "ResNet-18 steps", "recipe": RECIPE, "visits": [], "ways": []}
    if given.out and given.out.exists():
        record |= json.loads(given.out.read_text())
    known = {row["name"] for row in record["ways"]}
    ways = [way for way in WAYS if given.only in way.name and way.name not in known]
    if known and ways:
        ways.insert(0, WAYS[0])  # again, since the others are compared with it
    record["visits"].append(environment(device))
    for way in ways:
        row = measure(way, data, device, seconds=given.seconds, encoder=given.encoder)
        record["ways"].append(row | {"visit": len(record["visits"])})
        print(shown(record["ways"][-1]), flush=True)
        if given.out:
            write_text(given.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
