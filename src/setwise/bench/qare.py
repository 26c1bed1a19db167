"""What QARe adds to a training iteration, beside the paper's dense eigenvalues: the paper's Figure 3."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markdown import Markdown
from torch import Tensor, nn
from torch.nn.functional import normalize

from setwise.bench.timing import milliseconds, peak_bytes, turns
from setwise.encoders import CifarResNet, projection_head
from setwise.losses.combined import SetContrastive
from setwise.losses.functional import qare
from setwise.losses.modules import InfoNCE, QARe
from setwise.paper.figures import cost_table, costs_onto, timing_of
from setwise.report.page import Page
from setwise.terminal import visible
from setwise.training.capture import captured
from setwise.training.environment import environment

DIMENSIONS = 64
BETA = 0.5
CAPTURES = 4
LARGEST_DENSE = 4096  # above, dense eigenvalues take minutes


def dense_qare(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Algorithm 2 as the paper writes it: all eigenvalues of both N×N matrices, with torch's own gradient."""
    eigenvalues = [torch.linalg.eigvalsh(1 + normalize(z) @ normalize(z).mT) for z in (z_a, z_b)]
    return torch.dot(*eigenvalues) / len(z_a) ** 2


def dense_euclidean_qare(z_a: Tensor, z_b: Tensor) -> Tensor:
    """Algorithm 1 as the paper writes it."""
    up, down = (torch.linalg.eigvalsh(torch.cdist(z, z)) for z in (z_a, z_b))
    return -torch.dot(up, down.flip(0)) / len(z_a) ** 2


class Step:
    """One training iteration at batch size N, captured in a CUDA graph where there is a GPU."""

    def __init__(self, loss: nn.Module, n: int, *, encoder: str, device: torch.device) -> None:
        torch.manual_seed(0)
        body: nn.Module = CifarResNet(32) if encoder == "resnet32" else nn.Identity()
        self.model = nn.Sequential(body, projection_head(out=DIMENSIONS)).to(device)
        shape = (2 * n, 3, 32, 32) if encoder == "resnet32" else (2 * n, 64)
        self.inputs = torch.randn(shape, device=device)
        if encoder == "resnet32":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.inputs = self.inputs.contiguous(memory_format=torch.channels_last)
        self.loss, self.n, self.device = loss, n, device
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, capturable=on_gpu, fused=on_gpu)

    def __call__(self) -> None:
        """Forward, loss, backward, update; bf16 in the encoder on a GPU."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            z = self.model(self.inputs)
        self.loss(z[: self.n], z[self.n :]).backward()
        self.optimizer.step()


def embeddings(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Two noisy views of random items, [n, 64], leaves."""
    generator = torch.Generator(device).manual_seed(0)
    z = torch.randn(n, DIMENSIONS, generator=generator, device=device)
    other = z + 0.5 * torch.randn(n, DIMENSIONS, generator=generator, device=device)
    return z.requires_grad_(), other.requires_grad_()


def term(loss: Callable[[Tensor, Tensor], Tensor], n: int, device: torch.device) -> Callable[[], object]:
    """Forward and backward of ``loss`` alone."""
    z_a, z_b = embeddings(n, device)
    return lambda: torch.autograd.grad(loss(z_a, z_b), (z_a, z_b))


def compare(
    plain: Callable[[], object], more: Callable[[], object], device: torch.device, seconds: float
) -> tuple[float, float, float]:
    """Median milliseconds of both, taking turns, and of their differences.

    On a GPU each is captured ``CAPTURES`` times: the place of a graph's memory changes an iteration by half a per cent,
    which at large N is more than QARe adds.
    """
    if device.type == "cuda":
        pairs: list[tuple[Callable[[], object], ...]] = [(captured(plain), captured(more)) for _ in range(CAPTURES)]
    else:
        pairs = [(plain, more)]
    times = turns({f"{i} {which}": pair[which] for i, pair in enumerate(pairs) for which in (0, 1)}, device, seconds)
    without = [x for i in range(len(pairs)) for x in times[f"{i} 0"]]
    having = [x for i in range(len(pairs)) for x in times[f"{i} 1"]]
    differences = [b - a for a, b in zip(without, having, strict=True)]
    return statistics.median(without), statistics.median(having), statistics.median(differences)


def iteration_row(n: int, *, encoder: str, device: torch.device, seconds: float) -> dict[str, Any]:
    """Measure one batch size: milliseconds and peak bytes of an iteration, plain, with QARe, with dense eigenvalues.

    "added_ms" is the median difference of neighbouring iterations, "loss_added_ms" the same for the loss alone, and
    "dense_term_ms" the time of the dense term alone; None above ``LARGEST_DENSE``.
    """
    plain = Step(InfoNCE(), n, encoder=encoder, device=device)
    ours = Step(SetContrastive(InfoNCE(), BETA), n, encoder=encoder, device=device)
    row: dict[str, Any] = {"n": n}
    row["plain_ms"], row["qare_ms"], row["added_ms"] = compare(plain, ours, device, seconds)
    row["loss_added_ms"] = compare(term(plain.loss, n, device), term(ours.loss, n, device), device, seconds)[2]
    # The library's eigen-solver cannot be captured: the dense term is timed alone, forward and backward.
    dense = n <= LARGEST_DENSE
    row["dense_term_ms"] = milliseconds(term(dense_qare, n, device), device, 0.5) if dense else None
    row["plain_bytes"], row["qare_bytes"] = peak_bytes(plain, device), peak_bytes(ours, device)
    row["dense_bytes"] = None
    if dense:

        class Dense(nn.Module):
            def forward(self, z_a: Tensor, z_b: Tensor) -> Tensor:
                return dense_qare(z_a.float(), z_b.float())

        del ours
        step = Step(SetContrastive(InfoNCE(), BETA, Dense()), n, encoder=encoder, device=device)
        row["dense_bytes"] = peak_bytes(step, device)
    return row


def single_terms(device: torch.device, seconds: float) -> dict[str, Any]:
    """QARe alone, forward and backward: beside dense eigenvalues at N = 2048, and at a million items on a GPU."""
    n = 2048
    ours = {"lowrank": QARe(), "euclidean_top8": QARe(similarity="euclidean", spectrum="topk", k=8)}
    times = {}
    for name, loss in ours.items():
        run = term(loss, n, device)
        times[name] = milliseconds(captured(run) if device.type == "cuda" else run, device, seconds)
    # The library's eigen-solver cannot be captured.
    for name, dense in (("dense", dense_qare), ("euclidean_dense", dense_euclidean_qare)):
        times[name] = milliseconds(term(dense, n, device), device, 0.5)
    if device.type == "cuda":
        times["lowrank, not captured"] = milliseconds(term(ours["lowrank"], n, device), device, seconds)
    z_a, z_b = (z.detach() for z in embeddings(n, device))
    exact = qare(z_a.double(), z_b.double(), similarity="euclidean").item()
    leading = qare(z_a, z_b, similarity="euclidean", spectrum="topk", k=8).item()
    result: dict[str, Any] = {"n": n, "ms": times, "euclidean_top8_relative_error": abs(leading / exact - 1)}
    if device.type == "cuda":
        million = 2**20
        result["million"] = {"n": million, "ms": milliseconds(term(QARe(), million, device), device, 1)}
        z_a, z_b = (z.detach() for z in embeddings(million, device))
        error = abs(qare(z_a, z_b).item() / qare(z_a.double(), z_b.double()).item() - 1)
        result["million"]["relative_error"] = error
    return result


def run(*, sizes: Sequence[int], device: torch.device, encoder: str, out: Path, seconds: float = 2.0) -> dict[str, Any]:
    """Measure, show a table, write ``out``/bench-qare.json and a page with the table and plots beside it."""
    if not sizes or min(sizes) < 1:
        raise ValueError(f"expected batch sizes of at least 1, got {list(sizes)}")
    out.mkdir(parents=True, exist_ok=True)  # before minutes are spent
    if device.type == "cpu":
        torch.set_num_threads(1)
    console = Console(markup=False, emoji=False)
    rows = []
    for n in sizes:
        console.print(f"N = {n} ...", end="\r")
        rows.append(iteration_row(n, encoder=encoder, device=device, seconds=seconds))
    singles = single_terms(device, seconds)
    record = {
        "what": "bench qare",
        **environment(device),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, one thread",
        "torch": torch.__version__,
        "encoder": encoder,
        "dimensions": DIMENSIONS,
        "rows": rows,
        "terms": singles,
    }
    file, page = out / "bench-qare.json", Page("What QARe adds to a training iteration")
    file.write_text(json.dumps(record, indent=1) + "\n")
    timing = timing_of(file.name, record)
    table = cost_table(timing)
    console.print(Markdown(table.markdown()))
    ms = singles["ms"]
    console.print(
        f"QARe alone, forward + backward, N = {singles['n']}: {ms['lowrank']:.3f} ms exact, {ms['dense']:.1f} ms dense "
        f"({ms['dense'] / ms['lowrank']:.0f}x); Euclidean {ms['euclidean_top8']:.2f} ms with 8 leading eigenvalues of "
        f"each end, {ms['euclidean_dense']:.1f} ms dense ({ms['euclidean_dense'] / ms['euclidean_top8']:.0f}x), "
        f"relative error {singles['euclidean_top8_relative_error']:.1e}"
    )
    if "million" in singles:
        million = singles["million"]
        console.print(
            f"exact QARe of {million['n']:,} items: {million['ms']:.2f} ms forward + backward, relative error "
            f"{million['relative_error']:.1e}"
        )
    costs_onto(page, timing)
    table.onto(page)
    page.write(out / "bench-qare.html")
    console.print(visible(f"written to {file} and {out / 'bench-qare.html'}"), soft_wrap=True)
    return record
