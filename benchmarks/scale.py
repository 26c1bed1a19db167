"""Write the tables of docs/scale.md: what training on many GPUs would cost, from rates that were measured on one.

    python benchmarks/scale.py    # from the records in results/

The page says what was measured, what a data sheet says and what is assumed. What is sent comes from `messages.py`.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from messages import SYMMETRIC, sent
from setwise.losses import structured

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "results", ROOT / "docs" / "scale.md"
LARGE = "bench-large-batches-h200"
# Data sheets, one way: NVLink, and a network adapter for each GPU. NCCL's collectives use all adapters of a machine;
# a ring of messages in the order of the ranks crosses by one of them.
NODE, NVLINK, ADAPTER = 8, 450e9, 50e9
GPU_BYTES = 141e9
HOP = 20e-6  # assumed: the fixed price of a hop, its messages and kernels part of a captured graph
PARAMETERS = {"ResNet-50": 23_508_032, "ViT-S/16": 21_665_664}  # trunks, as torchvision and timm count them
RECORDS = {"ResNet-50": "resnet50", "ViT-S/16": "vit-s16"}
PARTS = {"float16": 1, "float32": 2}  # of a stored row


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


class Work(NamedTuple):
    """A training run: its data, batch and GPUs."""

    name: str
    encoder: str
    loss: str
    items: int
    batch: int
    gpus: int
    e: int
    epochs: tuple[int, ...]
    towers: int = 1

    @property
    def own(self) -> int:
        """Items of a GPU."""
        return self.batch // self.gpus

    @property
    def scores(self) -> int:
        """Scores of a GPU: NT-Xent compares both views of an item with both views of all."""
        return (4 if self.loss == "NT-Xent" else 1) * self.own * self.batch


WORKS = [
    *(Work(f"SimCLR, {encoder}", encoder, "NT-Xent", 1_281_167, 4096, 8, 128, (100,)) for encoder in PARAMETERS),
    *(
        Work("CLIP, ViT-S/16", "ViT-S/16", SYMMETRIC, 400_000_000, batch, 256, 512, (1, 32), 2)
        for batch in (32_768, 1_048_576)
    ),
]


def measured(loss: str) -> list[Any]:
    """Rows of that name, the largest batch last."""
    rows = read(LARGE)["rows"]
    return sorted((row for row in rows if row["loss"] == loss and row["width"] == 512), key=lambda row: row["n"])


def pace(way: str, *, symmetric: bool) -> float:
    """Seconds for a score and a dimension, of the largest batch that was measured.

    Tiles have rows and columns of a symmetric loss in one pass. Stored scores are computed once for each.
    """
    both = measured(f"{way}, symmetric") if symmetric else []
    row = (both or measured(way))[-1]
    passes = 2 if symmetric and way == "stored" else 1
    return passes * row["ms"] / 1e3 / (row["n"] ** 2 * row["width"])


def loss_seconds(work: Work, way: str) -> float:
    """Of a GPU."""
    return work.scores * work.e * pace(way, symmetric=work.loss == SYMMETRIC)


def loss_bytes(work: Work, way: str) -> float:
    """Of a GPU's memory, beyond the gradients of its own rows."""
    if way == "stored":
        row = measured(way)[-1]  # two matrices of scores; a symmetric loss keeps one more
        matrices = row["beyond_gradients"] * work.scores / row["n"] ** 2 * (1.5 if work.loss == SYMMETRIC else 1)
        return matrices + 2 * 4 * work.batch * work.e  # and both sets, which are gathered
    small, *_, large = measured("float16")  # a constant, and so much for each row
    slope = (large["beyond_gradients"] - small["beyond_gradients"]) / (large["n"] - small["n"])
    rows = work.own * (2 if work.loss == "NT-Xent" else 1)
    alone = (small["beyond_gradients"] + slope * (rows - small["n"])) * PARTS[way]
    travelling = 2 * PARTS[way] * work.e + (8 * work.e if work.loss != "NT-Xent" else 0)  # a block, and two of sums
    return alone + rows * travelling


class Encoder(NamedTuple):
    """How one H200 trains an encoder: two views of an image, or an image and a text of like cost."""

    rate: float  # items a second
    parts: int
    memory: float


def encoder(work: Work) -> Encoder:
    """In as few parts as fit; memory is a straight line through both batches that were measured."""
    name = RECORDS[work.encoder]
    record = read(f"bench-step-{name}-h200")["large"][name]
    whole, quarters = (record["ways"][f"setwise, compiled{x}"] for x in ("", ", 4 parts"))
    slope = (whole["peak_bytes"] - quarters["peak_bytes"]) / (record["batch"] * 3 / 4)

    def memory(parts: int) -> float:
        return whole["peak_bytes"] + slope * (work.own / parts - record["batch"])

    parts = next(2**k for k in range(20) if memory(2**k) < 0.9 * GPU_BYTES)
    return Encoder((whole if parts == 1 else quarters)["images_per_second"], parts, memory(parts))


def gradient_bytes(work: Work) -> float:
    """What DDP sends: an all_reduce of all gradients in float32."""
    return 2 * (work.gpus - 1) / work.gpus * 4 * work.towers * PARAMETERS[work.encoder]


def link(work: Work, *, ring: bool) -> float:
    """Bytes a second and a GPU."""
    if work.gpus <= NODE:
        return NVLINK
    return ADAPTER if ring else min(NVLINK, NODE * ADAPTER)


def loss_sends(work: Work, way: str) -> float:
    found = sent(work.loss, "gathering" if way == "stored" else "ring", work.own, work.e, work.gpus)
    return found.bytes(PARTS.get(way, 0))


def exchange_seconds(work: Work, way: str) -> float:
    """What all messages of a step would take if nothing were computed meanwhile, the hops' fixed price included."""
    ring = way != "stored"
    seconds = loss_sends(work, way) / link(work, ring=ring) + gradient_bytes(work) / link(work, ring=False)
    return seconds + (2 * (work.gpus - 1) * HOP if ring else 0)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ms(seconds: float) -> str:
    return "< 1 ms" if seconds < 1e-3 else f"{1e3 * seconds:,.0f} ms"


def size(amount: float) -> str:
    if amount >= 1e9:
        return f"{amount / 1e9:,.1f} GB"
    return f"{amount / 1e6:,.{0 if amount >= 1e7 else 1}f} MB"


def rounded(count: float) -> str:
    """Two digits: none of these is known better."""
    digits = 1 - math.floor(math.log10(count))
    return f"{round(count, digits):,.0f}"


def hours(work: Work, epochs: int, way: str, *, hidden: bool) -> float:
    """Of the whole run; ``hidden``: all messages travel while something is computed."""
    seconds = work.own / encoder(work).rate + loss_seconds(work, way)
    return epochs * work.items / work.batch * (seconds + (0 if hidden else exchange_seconds(work, way))) / 3600


def span(work: Work, epochs: int) -> str:
    """Hours if all messages are hidden, and if none is."""
    least, most = (f"{hours(work, epochs, 'float32', hidden=hidden):.1f}" for hidden in (True, False))
    return least if least == most else f"{least} to {most}"


def answer() -> str:
    _, simclr, clip, larger = WORKS
    rate, core = encoder(clip).rate, images_of_a_core()
    sentences = [
        f"100 epochs of SimCLR with {simclr.encoder} on {simclr.items / 1e6:.2f} M images take {span(simclr, 100)}",
        f"hours on {simclr.gpus} H200; 32 epochs of CLIP on {clip.items / 1e6:.0f} M pairs take {span(clip, 32)} hours",
        f"on {clip.gpus} of them with a batch of {clip.batch:,}, and {span(larger, 32)} with {larger.batch:,}.",
        f"The loss is not what breaks first: reading is, since a GPU that trains {rate:,.0f} images a second keeps",
        f"{rate / core:.0f} cores busy with JPEGs, and then the room for activations, which holds",
        f"{rounded(most_items(simclr))} items a GPU.",
        "Of the loss, the ring between machines breaks first: only from",
        f"{rounded(fewest_rows('float32', ADAPTER))} rows a GPU on can it hide its messages, and for the {clip.own}",
        "rows of the smaller CLIP batch gathering is the better way, which setwise takes there.",
    ]
    return textwrap.fill(" ".join(sentences), 128, break_long_words=False, break_on_hyphens=False)


def costs_table() -> str:
    def both(show: Callable[[float], str], of: Callable[[Work, str], float]) -> Callable[[Work], str]:
        def cell(work: Work) -> str:
            whole, half = show(of(work, "float32")), show(of(work, "float16"))
            return whole if whole == half else f"{whole} ({half})"

        return cell

    def items(work: Work) -> str:
        parts = encoder(work).parts
        return f"{work.own:,}" + (f" in {parts} parts" if parts > 1 else "")

    def in_all(way: str, hidden: bool) -> Callable[[Work], str]:
        return lambda work: " and ".join(f"{hours(work, epochs, way, hidden=hidden):.2f}" for epochs in work.epochs)

    lines: dict[str, Callable[[Work], str]] = {
        "batch": lambda work: f"{work.batch:,}",
        "GPUs": lambda work: f"{work.gpus}",
        "items a GPU": items,
        "**time of a step:** encoder": lambda work: ms(work.own / encoder(work).rate),
        "loss, scores stored": lambda work: ms(loss_seconds(work, "stored")),
        "loss, in tiles": both(ms, loss_seconds),
        "**memory of a GPU:** encoder": lambda work: size(encoder(work).memory),
        "loss, scores stored, at least": lambda work: size(loss_bytes(work, "stored")),
        "loss, tiles and ring, at most": both(size, loss_bytes),
        "**sent a step and a GPU:** gathering": lambda work: size(loss_sends(work, "stored")),
        "the ring": both(size, loss_sends),
        "QARe": lambda work: size(sent("QARe", "ring", work.own, work.e, work.gpus).bytes(0)),
        "DDP's gradients": lambda work: size(gradient_bytes(work)),
        "**time to send it:** gathering, DDP": lambda work: ms(exchange_seconds(work, "stored")),
        "the ring, DDP": both(ms, exchange_seconds),
        "epochs": lambda work: " and ".join(map(str, work.epochs)),
        "**hours:** the ring, messages hidden": in_all("float32", True),
        "the ring, not hidden": in_all("float32", False),
        "gathering, not hidden": in_all("stored", False),
    }
    columns = [work.name for work in WORKS]
    return table(["", *columns], [[name, *map(cell, WORKS)] for name, cell in lines.items()])


def images_of_a_core() -> float:
    """JPEGs that a core decodes in a second."""
    record = read("bench-decoding-16-cores")
    return record["images_per_second"]["ours"] / record["workers"]


def fewest_rows(way: str, speed: float) -> float:
    """Rows of a GPU from which on a symmetric InfoNCE computes for longer than its ring's messages travel."""
    n, e, gpus = 2**16, 512, 256
    travels = sent(SYMMETRIC, "ring", n, e, gpus).bytes(PARTS[way]) / speed
    return n * travels / (n * n * gpus * e * pace(way, symmetric=True))


def breaks_table() -> str:
    resnet, vit, clip, _ = WORKS
    core, feeding, pixels = images_of_a_core(), read("bench-feeding-224-h200"), 3 * 224**2
    rates = [encoder(work).rate for work in (resnet, vit)]
    total = {work: work.gpus * rates[1] * pixels / 1e9 for work in (vit, clip)}
    fewest = {
        name: [rounded(fewest_rows(way, speed)) for way in PARTS]
        for name, speed in (("NVLink", NVLINK), ("one adapter", ADAPTER))
    }
    rows = [
        [
            "Decoding JPEGs in every epoch",
            f"{rates[0] / core:.0f} (ResNet-50) and {rates[1] / core:.0f} (ViT-S/16) cores for each GPU; "
            f"{rounded(clip.gpus * rates[1] / core)} for {clip.gpus}",
        ],
        [
            "Images decoded once, in a file",
            f"{vit.items * pixels / 1e9:,.0f} GB and {total[vit]:.1f} GB/s for {vit.gpus} GPUs; "
            f"{clip.items * pixels / 1e12:,.0f} TB and {total[clip]:,.0f} GB/s for {clip.gpus} (one GPU that is fed so "
            f"keeps {100 * feeding['share']:.0f} % of its speed)",
        ],
        [
            "Memory for activations",
            " and ".join(f"{rounded(most_items(work))} items a GPU ({work.encoder})" for work in (resnet, vit))
            + ", then in parts",
        ],
        [
            "Memory for stored scores, symmetric",
            " and ".join(f"a batch of {rounded(most_stored(gpus))} on {gpus} GPUs" for gpus in (NODE, clip.gpus))
            + ", with nothing else in memory",
        ],
        [
            "The ring's messages take longer than its products",
            "; ".join(
                f"below {whole} rows a GPU ({half} with float16) over {name}" for name, (half, whole) in fewest.items()
            ),
        ],
        [
            f"The ring's {2 * (clip.gpus - 1)} hops take longer than the encoder",
            f"below {rounded(2 * (clip.gpus - 1) * HOP * rates[1])} pairs a GPU on {clip.gpus} GPUs at "
            f"{1e6 * HOP:.0f} µs a hop; with {clip.own} pairs, at "
            f"{1e6 * clip.own / rates[1] / (2 * (clip.gpus - 1)):.0f} µs (so with fewer than "
            f"{structured.RING_ROWS:,} rows a GPU, setwise gathers)",
        ],
        [
            "The loss takes longer than the encoder",
            "a batch of {}, or {} with float16, on any number of GPUs".format(
                *(rounded(1 / (pace(way, symmetric=True) * clip.e * rates[1])) for way in ("float32", "float16"))
            ),
        ],
    ]
    return table(["what", "where it breaks"], rows).replace("---:", "---")


def given() -> str:
    """What the tables are computed from, beside the formulas."""
    rows, source = [], f"`{LARGE}.json`"
    words = {"float32": "digits of float32", "float16": "float16 products"}
    words |= {f"{way}, symmetric": f"{name}, symmetric" for way, name in words.items()}
    for loss, name in (words | {"stored": "scores stored", "qare": "QARe"}).items():
        for row in measured(loss):
            memory = f", {size(row['beyond_gradients'])}" if "beyond_gradients" in row else ""
            rows.append([f"loss, N = {row['n']:,}, E = {row['width']}, {name}", f"{row['ms']:,.0f} ms{memory}", source])
    for name, record in RECORDS.items():
        ways = read(f"bench-step-{record}-h200")["large"][record]["ways"]
        found = [ways[f"setwise, compiled{x}"] for x in ("", ", 4 parts")]
        rates = " and ".join(f"{one['images_per_second']:,.0f}" for one in found)
        memory = " and ".join(size(one["peak_bytes"]) for one in found)
        value, source = f"{rates} a second, {memory}", f"`bench-step-{record}-h200.json`"
        rows.append([f"{name}, 256 items, whole and in 4 parts", value, source])
    images, feeding = read("bench-decoding-16-cores"), read("bench-feeding-224-h200")
    decoded = f"{images['images_per_second']['ours']:,.0f} a second"
    decoding = f"JPEGs of {images['mean_kilobytes']:.0f} kB, {images['workers']} cores"
    rows += [
        [decoding, decoded, "`bench-decoding-16-cores.json`"],
        ["speed of steps fed from a file", f"{100 * feeding['share']:.0f} %", "`bench-feeding-224-h200.json`"],
        ["NVLink, one way", f"{NVLINK / 1e9:.0f} GB/s", "data sheet"],
        [f"an adapter of each GPU, between machines of {NODE}", f"{ADAPTER / 1e9:.0f} GB/s", "data sheet"],
        ["memory of a GPU", size(GPU_BYTES), "data sheet; the encoder may have nine tenths"],
        ["fixed price of a hop of the ring", f"{1e6 * HOP:.0f} µs", "assumed"],
    ]
    return table(["given", "value", "from"], rows).replace("---:", "---")


def most_items(work: Work) -> float:
    """How many items of a GPU go through the encoder at once."""
    few, many = (encoder(Work("", work.encoder, work.loss, 1, n, 1, work.e, ())).memory for n in (64, 128))
    return 64 + 64 * (0.9 * GPU_BYTES - few) / (many - few)


def most_stored(gpus: int) -> float:
    n = 2**16
    work = Work("", "ViT-S/16", SYMMETRIC, 1, n * gpus, gpus, 512, ())
    return n * gpus * math.sqrt(GPU_BYTES / loss_bytes(work, "stored"))


PLACES = {"answer": answer, "costs": costs_table, "breaks": breaks_table, "given": given}
PLACE = re.compile(r"(<!-- from results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)  # as in docs/readme.py


def fill(words: str) -> str:
    """The page with every marked place filled."""
    return PLACE.sub(lambda place: f"{place[1]}\n{PLACES[place[2]]()}\n\n{place[3]}", words)


if __name__ == "__main__":
    PAGE.write_text(fill(PAGE.read_text()))
