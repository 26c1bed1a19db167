"""What the records of time and memory say, for the marked places that `readme.py` fills."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from paragraphs import bullets, markdown, text
from setwise.report.speedrun import MARKS
from setwise.report.tables import Cell
from speed_page import RECORD

RESULTS = Path(__file__).parent.parent / "results"


def _bench(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"bench-{name}.json").read_text())
    return record


def fast() -> str:
    """The speeds that matter most, in three lines."""
    record, large = _bench("step-h200"), _bench("step-vit-s16-h200")["large"]["vit-s16"]["ways"]
    conv, deep = (record["encoders"][name] for name in ("conv4", "resnet32"))
    rows = [one for one in _bench("large-batches-h200")["rows"] if one["n"] == 65_536]
    ms, memory = ({one["loss"]: one[what] for one in rows} for what in ("ms", "beyond_gradients"))
    ours, theirs = (large[way]["images_per_second"] for way in ("setwise, compiled", "torch + torchvision"))
    runs = [json.loads(path.read_text()) for path in (RESULTS / "speedrun" / RECORD / "test").glob("seed-*.json")]
    parts = [run["speedrun"] for run in runs]
    accuracy, seconds = fmean(100 * one["knn10"] for one in parts), fmean(one["clock"]["seconds"] for one in parts)
    mark = MARKS[0]
    lines = bullets(
        f"CIFAR-10 without labels: {accuracy:.1f} % by ten neighbours after {seconds:.0f} seconds, "
        f"[the speed record](docs/speedrun.md); the public mark is {mark.accuracy:.1f} % after {mark.minutes:.0f} "
        f"minutes of an {mark.gpu}.",
        f"A step of SimCLR + QARe, {conv['batch']} images × 2 views: {conv['setwise_ms']:.2f} ms with Conv-4, "
        f"{deep['setwise_ms']:.2f} ms with ResNet-32; a plain loop takes {conv['torchvision_ms']:.1f} and "
        f"{deep['torchvision_ms']:.1f} ms.",
        f"ViT-S/16 at 224 pixels: {ours:,.0f} images a second; the plain loop {theirs:,.0f}.",
        f"InfoNCE of 65,536 rows: {ms['float16']:.0f} ms and {memory['float16'] / 2**20:.0f} MiB; with the "
        f"whole matrix of scores {ms['stored']:.0f} ms and {memory['stored'] / 2**30:.0f} GiB; by the library inf_cl "
        f"{ms['inf_cl']:.0f} ms.",
    )
    return f"{lines}\n\n(One H200; [more](docs/overview.md#how-fast).)"


def speed() -> str:
    """What a training step takes, also of large networks, and how fast one's own images come to it."""
    record = _bench("step-h200")
    conv, deep, wide = (record["encoders"][name] for name in ("conv4", "resnet32", "resnet18"))
    large = [_bench(f"step-{name}-h200")["large"][name]["ways"] for name in ("vit-s16", "resnet50")]
    ours, theirs = (
        " and ".join(f"{ways[way]['images_per_second']:,.0f}" for ways in large)
        for way in ("setwise, compiled", "torch + torchvision")
    )
    decoding = _bench("decoding-16-cores")
    shares = [100 * _bench(f"feeding-{size}-h200")["share"] for size in (64, 224)]
    start = _bench("start-h200")
    first, again = start["first"]["step"], [one["step"] for one in start["again"]]
    capped, free = (_bench(f"feeding-{name}-h200")["mapped"]["median_ms"] for name in ("capped", "uncapped"))
    return text(
        "On a GPU the whole step, views and loss included, is one captured graph. With QARe,",
        f"{conv['batch']} images × 2 views take {conv['setwise_ms']:.2f} ms with Conv-4 and",
        f"{deep['setwise_ms']:.2f} ms with ResNet-32 on an H200; a plain loop with torchvision's transforms in",
        f"{record['workers']} workers takes {conv['torchvision_ms']:.1f} and {deep['torchvision_ms']:.1f} ms. An",
        f"epoch of ResNet-18 on CIFAR-10, batch {wide['batch']}, takes {wide['epoch_seconds']:.1f} s (records in",
        "`results/`). At 224 pixels ViT-S/16 and ResNet-50, compiled, train on",
        f"{ours} images a second, the plain loop on {theirs}.",
        f"{decoding['workers']} cores decode {decoding['images_per_second']['ours']:,.0f} JPEGs of 200 to 2,000 pixels",
        f"a second, {decoding['ratio']:.1f} times as many as torchvision's ImageFolder.",
        f"Steps from a file of decoded images run at {min(shares):.0f} % of the speed of steps from the GPU's memory;",
        f"with 15 GB of images under a limit of 2 GiB of memory, at {100 * free / capped:.0f} % of that. A folder of",
        f"{start['files']:,} JPEGs of 64 pixels reaches its first step {first:.0f} s after the command,",
        f"and {min(again):.1f} to {max(again):.1f} s when they are decoded already.",
    )


def large_batches() -> str:
    """Time, memory and error of losses of many rows."""
    record = _bench("large-batches-h200")
    errors: dict[tuple[str, int], list[float]] = {}
    for one in record["errors"]:
        errors.setdefault((one["loss"], one["n"]), []).append(one["error"])
    columns = ("rows", "products, or what else", "time", "captured", "memory", "error")
    rows: list[list[Cell]] = []
    for one in record["rows"]:
        captured = f"{one['captured_ms']:.2f} ms" if "captured_ms" in one else None
        seconds = one["ms"] / 1e3
        time = f"{seconds:.2f} s" if seconds >= 1 else f"{one['ms']:.{1 if one['ms'] > 10 else 2}f} ms"
        found_errors = errors.get((one["loss"], one["n"]), [])
        cells = (time, captured, f"{one['beyond_gradients'] / 2**20:,.0f} MiB")
        rows.append([f"{one['n']:,}", one["loss"], *cells, " and ".join(f"{e:.0e}" for e in found_errors) or None])
    return markdown(columns, rows) + f"\n\n{record['environment']['hardware']['name']}."


def evidence_large() -> str:
    """Time and memory of InfoNCE of many rows."""
    rows = {one["loss"]: one for one in _bench("large-batches-h200")["rows"] if one["n"] == 65_536}
    ours, stored = ((rows[way]["ms"], rows[way]["beyond_gradients"]) for way in ("float16", "stored"))
    return text(
        f"65,536 rows take {ours[0]:.0f} ms and {ours[1] / 2**20:.0f} MiB; with the whole matrix of scores",
        f"{stored[0]:.0f} ms and {stored[1] / 2**30:.0f} GiB.",
    )


def set_times() -> str:
    """What a training step takes where only the sets are known, and the loss alone."""
    rows, losses = [], []
    ways = {"same": '`"same"`', "hard": '`"hard"`', "one-to-one": '`"one-to-one"`'}
    ways["one-to-one-soft"] = '`"one-to-one"`, soft'
    for name, record in (("CPU", _bench("sets-cpu")), ("H200", _bench("sets-h200"))):
        for size, times in record["step_seconds"].items():
            ratios = [f"{times[way] / times['pairs']:.2f} ×" for way in ways]
            rows.append([f"{name}, sets of {size}", f"{1e3 * times['pairs']:.1f} ms", *ratios])
        alone = record["seconds"]["32"]
        hard, soft = (alone[way] / alone["pairs"] for way in ("one-to-one", "one-to-one, soft"))
        losses.append(f"{hard:.1f} and {soft:.1f} times ({name}, {1e3 * alone['pairs']:.2f} ms for pairs)")
    about = text(
        f"A training step of {record['items']:,} pairs of sentences, bags of n-grams, assignments included, and how",
        "many times as long it takes where only the sets are known (`python benchmarks/sets.py`):",
    )
    more = text(
        'The loss alone, forward and backward in sets of 32, takes with `"one-to-one"`, hard and soft,',
        f"{' and '.join(losses)}.",
    )
    return f"{about}\n\n{markdown(('', 'pairs', *ways.values()), rows)}\n\n{more}"


def term_times() -> str:
    """What the set-level terms take on a CPU, and what the controls take both ways."""
    record = _bench("terms-cpu")
    times, both = record["times_s"], record["both_ways_s"]
    names = [name for name in times[0] if name != "n"]
    columns = ["forward and backward", *(f"N = {row['n']:,}" for row in times)]
    rows = [[f"`{name}`", *(f"{1e3 * row[name]:.1f} ms" for row in times)] for name in names]
    many = [row for row in both if row["n"] >= 2048]
    most = {
        name: max(row[f"{name}, sums"] / row[f"{name}, matrices"] for row in many)
        for name in ("frobenius", "structural-difference")
    }
    shares = " and ".join(f"{100 * share:.0f} % for `{name}`" for name, share in most.items())
    about = text(
        f"Measured with E = {record['dimensions']}, float32, on one CPU thread of a machine that others used too",
        "(`python benchmarks/terms.py`):",
    )
    sizes = "; ".join(f"N = {row['n']:,}, E = {row['e']}" for row in many)
    sums = text(
        f"Sums over items save time. They take at most this share of the time of N×N matrices: {shares} ({sizes})."
    )
    return f"{about}\n\n{markdown(columns, rows)}\n\n{sums}"
