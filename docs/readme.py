"""Fill the marked places of README.md and of the documentation with numbers from results/: `make readme`.

A place begins with the line `<!-- from results: NAME -->` and ends with the line `<!-- end -->`; the function of that
name in PLACES writes what stands between. Verdicts come from the records, so no sentence outside says one.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from known_sets import PICTURE, cost_of_sets, picture_of_sets, what_sets_say
from sets_details import all_tables_of_sets
from sets_runs import markdown
from setwise.paper.ablation import ablation_answer, ablation_table, is_ablation
from setwise.paper.claims import CLAIMS, claims, compared, counted, differences, surviving
from setwise.paper.collected import Group, collect, groups, probed
from setwise.paper.figures import sweep_answer, sweep_table, sweeps
from setwise.paper.numbers import CLASSIFICATION, MATCHING, word
from setwise.paper.paying import Map, map_answer, map_rows, map_table, maps
from setwise.paper.recipes import FORMS, MATCHING_LOSSES
from setwise.paper.reproduce import left_of_map
from setwise.paper.spectra import looks_table
from setwise.paper.tables import changes_table, paper_gain, paper_number
from setwise.paper.tuned import settings, trials_table, tuned_answer, tuned_table
from setwise.records.statistics import PairedDifference, mean_std, paired_difference
from setwise.report.chart import Interval
from setwise.report.page import interval_picture
from setwise.report.tables import NONE, Cell, Table, shown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
FILES = (
    "README.md",
    "docs/findings.md",
    "docs/how-to/choose-beta.md",
    "docs/how-to/large-batches.md",
    "docs/how-to/which-loss.md",
    "docs/index.md",
    "docs/how-to/sets.md",
    "docs/overview.md",
    "docs/sets-measured.md",
    "docs/terms.md",
)
PLACE = re.compile(r"(<!-- from results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 128
BASES = ("simclr", "sparseclr")
USUAL = 3  # seeds
Found = Sequence[Group]


def picked(table: Table | None, *columns: str) -> list[list[str]]:
    """Some columns of a table of the report, in words; empty cells where it lacks one."""
    rows = [dict(zip(table.columns, table.words(row), strict=True)) for row in table.rows] if table else []
    return [[row.get(name, NONE) for name in columns] for row in rows]


def part_of(table: Table | None, *columns: str) -> str:
    """Some columns of a table of the report, all if none are named."""
    columns = columns or tuple(table.columns)
    return markdown(columns, picked(table, *columns))


def text(*sentences: str) -> str:
    """A paragraph."""
    return textwrap.fill(" ".join(filter(None, sentences)), WIDTH, break_long_words=False, break_on_hyphens=False)


def bullets(*lines: str) -> str:
    """A list."""
    return "\n".join(f"- {line}" for line in lines)


def tuned_gains(found: Found) -> str:
    """What QARe adds to SimCLR where both are tuned alike, in each setting that has runs."""
    return " and ".join(
        f"{shown(gain)} points on {setting.title}"
        for setting in settings(collect(RESULTS)[0], found)
        for one in setting.objectives
        if one.term == "qare" and (gain := setting.difference(one))
    )


def short_answer(found: Found) -> str:
    """Whether a set-level term helps, in three lines: as the paper has it, tuned on images, tuned on sentences."""
    better, worse, cases, _ = tally("tuned")
    pays = [map_answer(one) for one in found_maps(found) if one.tested]
    return bullets(
        f"Added to recipes that nobody tuned, QARe helps: **{counted(CLAIMS['helps'].answers(found))}**.",
        f"Where SimCLR and SimCLR + QARe are tuned alike, QARe adds {tuned_gains(found)}.",
        f"On pairs of sentences a term adds up to {shown(tally('untuned')[3])} points of recall@1 where nobody tuned "
        f"the temperature. After tuning it adds in {better} of {cases} cases and takes in {worse}: it mostly buys "
        "[not having to tune](docs/how-to/choose-beta.md#temperature).",
        *(f"[Where does it pay?](docs/findings.md#where-does-it-pay) {words}" for words in pays),
    )


def answer(found: Found) -> str:
    """What QARe adds to every loss in every setting."""
    matching = [group for group in found if group.kind == "matching"]
    parts = [
        text(
            "What QARe adds, in points of accuracy, paired by seed, with 95 % intervals and the number of seeds if",
            f"it is not {USUAL}. Unclear: the interval contains zero. Bold: survives Holm's correction for all",
            "settings. Matching halves of images:",
        ),
        _gains(found, matching, MATCHING_LOSSES),
        "Linear probes, as the paper is written and as its released code computes; in brackets the paper's gain:",
        _gains(found, probed(found), BASES),
    ]
    return "\n\n".join(parts)


def _gains(found: Found, some: Found, bases: Sequence[str]) -> str:
    sure = {one.where for one in surviving(CLAIMS["helps"].answers(found))}
    rows = []
    for group in (group for group in some if not group.changed and compared(group, "qare")):
        cells = dict.fromkeys(bases, "not run")
        for row, gain in compared(group, "qare"):
            words = f"**{shown(gain)}**" if f"{word(row.base)}: {group.setting}" in sure else shown(gain)
            paper = paper_gain(group, row, group.plain(row.base))
            more = (f"{gain.n} seeds" if gain.n != USUAL else "", f"[{paper}]" if paper else "")
            cells[row.base] = ", ".join(filter(None, (words, more[0]))) + f" {more[1]}".rstrip()
        rows.append([group.setting, *cells.values()])
    return markdown(["QARe adds", *(f"to {word(base)}" for base in bases)], rows)


GAINS = ROOT / "docs" / "what-qare-adds.svg"


def helps(found: Found) -> str:
    """In how many settings QARe helps, and a picture of all."""
    claim = CLAIMS["helps"]
    return (
        f"{claim.words}: **{counted(claim.answers(found))}**.\n\n![What QARe adds in each setting](docs/{GAINS.name})"
    )


def gains_picture(found: Found) -> str:
    """What QARe adds in every setting, with the paper's numbers."""
    rows = []
    for group in (
        group for group in found if not group.changed and (group.kind == "matching" or group in probed(found))
    ):
        for row, gain in compared(group, "qare"):
            bounds = None if gain.low is None or gain.high is None else (gain.low, gain.high)
            paper = paper_gain(group, row, group.plain(row.base))
            other = float(paper) if paper else None
            rows.append(Interval(word(row.base), shown(gain), gain.mean, bounds, other, group.setting))
    return interval_picture("What QARe adds, in points. Hollow: the paper", rows)


def fast(found: Found) -> str:
    """The speeds that matter most, in three lines."""
    record, large = _bench("step-h200"), _bench("step-vit-s16-h200")["large"]["vit-s16"]["ways"]
    conv, deep = (record["encoders"][name] for name in ("conv4", "resnet32"))
    rows = [one for one in _bench("large-batches-h200")["rows"] if one["n"] == 65_536]
    ms, memory = ({one["loss"]: one[what] for one in rows} for what in ("ms", "beyond_gradients"))
    ours, theirs = (large[way]["images_per_second"] for way in ("setwise, compiled", "torch + torchvision"))
    lines = bullets(
        f"A step of SimCLR + QARe, {conv['batch']} images × 2 views: {conv['setwise_ms']:.2f} ms with Conv-4, "
        f"{deep['setwise_ms']:.2f} ms with ResNet-32; a plain loop takes {conv['torchvision_ms']:.1f} and "
        f"{deep['torchvision_ms']:.1f} ms.",
        f"ViT-S/16 at 224 pixels: {ours:,.0f} images a second; the plain loop {theirs:,.0f}.",
        f"InfoNCE of 65,536 rows: {ms['float16']:.0f} ms and {memory['float16'] / 2**20:.0f} MiB; with the "
        f"whole matrix of scores {ms['stored']:.0f} ms and {memory['stored'] / 2**30:.0f} GiB; by the library inf_cl "
        f"{ms['inf_cl']:.0f} ms.",
    )
    return f"{lines}\n\n(One H200; [more](docs/overview.md#how-fast).)"


def speed(found: Found) -> str:
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
        f"with 15 GB of images under a limit of 2 GiB of memory, at {100 * free / capped:.0f} % of that.",
    )


def large_batches(found: Found) -> str:
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


def _bench(name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((RESULTS / f"bench-{name}.json").read_text())
    return record


def counts(found: Found) -> str:
    """How many runs there are, of what."""
    runs, every = [run for group in found for run in group.runs], collect(RESULTS)[0]
    tuning = sum(run.trial is not None for run in every)
    by_data = {data: sum(run.data == data for run in runs) for data in dict.fromkeys(run.data for run in runs)}
    other = sum(run.record["precision"] != "bfloat16" for run in runs)
    machines = " and ".join(sorted({run.record["hardware"]["name"] for run in runs}))
    return text(
        f"{len(runs):,} runs on {machines}, {other} of them not in bf16:",
        ", ".join(f"{n} with {word(data)}" for data, n in by_data.items()) + ".",
        f"{tuning:,} more are trials of [tuning](#after-tuning) and their tests." if tuning else "",
    )


def all_claims(found: Found) -> str:
    """The report's first table, and what its words mean."""
    table = claims(found)
    return f"{part_of(table)}\n\n{text(table.note)}"


def one_claim(key: str, found: Found) -> str:
    """A claim, setting by setting."""
    answers = CLAIMS[key].answers(found)
    sure = surviving(answers)
    rows: list[list[Cell]] = [
        [one.where.replace("*", ""), one.ours, one.verdict + (", after Holm too" if one in sure else ""), one.paper]
        for one in answers
    ]
    end = 4 if any(one.paper for one in answers) else 3
    table = markdown(("", "ours", "verdict", "paper")[:end], [row[:end] for row in rows])
    return f"{CLAIMS[key].words}: **{counted(answers)}**.\n\n{table}"


def later(found: Found) -> str:
    """Seeds that were added to settle a difference, alone."""
    sentences = []
    for group in probed(found):
        for row, _ in compared(group, "qare"):
            added = {seed: value for seed, value in row.values("probe_accuracy").items() if seed > 10}
            if gain := paired_difference(added, group.plain(row.base).values("probe_accuracy")):
                words = f"{row.label}, {group.setting}: {gain.n} seeds were added later; alone they give {shown(gain)}."
                sentences.append(words)
    return text(*sentences)


def terms(found: Found) -> str:
    """What each set-level term adds, where others than QARe ran."""
    columns = ("loss", "QARe", "alignment gap", "structural difference")
    rows = [row for row in picked(differences(found), *columns) if set(row[2:]) != {NONE}]
    return markdown(columns, rows)


def term_times(found: Found) -> str:
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


def alone(found: Found) -> str:
    """The losses without any term, beside the paper's."""
    rows = []
    for group in (group for group in probed(found) if not group.changed):
        for row in (group.plain(base) for base in BASES):
            if mean := row.mean("probe_accuracy"):
                rows.append([f"{row.label}: {group.setting}", mean, paper_number(group, row), mean.n])
    return markdown(("", "ours", "paper", "seeds"), rows)


def weight(found: Found) -> str:
    """Accuracy against QARe's weight."""
    columns, parts = ("weight of QARe", "difference to plain", "effective rank"), []
    for sweep in (sweep for group in probed(found) for sweep in sweeps(group)):
        parts += [text(sweep_answer(sweep)), part_of(sweep_table(sweep), *columns)]
    return "\n\n".join(parts)


def ablation(found: Found) -> str:
    """One change at a time."""
    columns, parts = ("change", "weight", "difference to plain", "effective rank"), []
    for group in filter(is_ablation, found):
        parts += [text(ablation_answer(group)), part_of(ablation_table(group), *columns)]
    return "\n\n".join(parts)


def tuned(found: Found) -> str:
    """What set-level terms add once every objective is tuned."""
    parts = []
    for setting in settings(collect(RESULTS)[0], found):
        tests = part_of(tuned_table(setting)) if setting.tested else ""
        parts += [text(tuned_answer(setting)), tests, part_of(trials_table(setting))]
    return "\n\n".join(filter(None, parts)) or "Not run yet: `setwise reproduce tuning` makes the trials."


def found_maps(found: Found) -> list[Map]:
    """The maps of factors of all data sets that have one."""
    runs = collect(RESULTS)[0]
    return maps(runs, settings(runs, found))


def picture_of(one: Map) -> Path:
    """Where the picture of a map is."""
    return ROOT / "docs" / f"where-it-pays-{one.data}.svg"


def drawn(one: Map) -> str:
    """The picture of a map."""
    return interval_picture(
        f"What set-level terms add to tuned SimCLR, in points: {word(one.data)}, Conv-4", map_rows(one)
    )


def paying(found: Found) -> str:
    """Where a set-level term pays: a sentence, a picture and a table."""
    columns, parts = ("factor", "level", "term", "SimCLR, tuned", "difference", "Holm", "again, other seeds"), []
    for one in found_maps(found):
        parts.append(text(map_answer(one), left_of_map(one.data, RESULTS)))
        if one.tested:
            parts.append(f"![Differences with their intervals, factor by factor]({picture_of(one).name})")
        table = map_table(one)
        parts.append(part_of(table, *columns) if table.rows else "")
    return "\n\n".join(filter(None, parts)) or text("Not run yet:", left_of_map("cifar10", RESULTS))


BITEXT_TERMS = ("qare", "gap", "structural-difference")


def recalls_of_pairs() -> dict[tuple[str, int, str], dict[int, float]]:
    """Recall@1 in per cent by seed, of each (stage, number of pairs, term) of benchmarks/multi30k.py's study."""
    recalls: dict[tuple[str, int, str], dict[int, float]] = {}
    for run in json.loads((RESULTS / "multi30k.json").read_text()).values():
        key = run["stage"], run["pairs"], run["term"]
        recalls.setdefault(key, {})[run["seed"]] = 100 * run["final"]["recall1"]
    return recalls


def gains_of_terms(stage: str) -> dict[int, list[PairedDifference]]:
    """What each term adds, by the number of pairs."""
    recalls = recalls_of_pairs()
    sizes = sorted({key[1] for key in recalls})
    found = {
        size: [paired_difference(recalls[stage, size, term], recalls[stage, size, "plain"]) for term in BITEXT_TERMS]
        for size in sizes
    }
    return {size: [gain for gain in gains if gain is not None] for size, gains in found.items()}


def tally(stage: str) -> tuple[int, int, int, PairedDifference]:
    """In how many cases a term adds, in how many it takes, of how many; and the largest gain."""
    gains = [gain for some in gains_of_terms(stage).values() for gain in some]
    better, worse = sum((gain.low or 0) > 0 for gain in gains), sum((gain.high or 0) < 0 for gain in gains)
    return better, worse, len(gains), max(gains, key=lambda gain: gain.mean)


def bitext(found: Found) -> str:
    """What set-level terms add to InfoNCE on pairs of sentences, untuned and tuned."""
    recalls, parts = recalls_of_pairs(), []
    stages = {"untuned": "Temperature 0.05, 20 epochs, nothing tuned", "tuned": "Each tuned in 24 trials"}
    columns = ("pairs", "InfoNCE, recall@1", "+ QARe", "+ alignment gap", "+ structural difference")
    for stage, about in stages.items():
        better, worse, cases, largest = tally(stage)
        words = f"{about}: a term adds in {better} and takes in {worse} of {cases} cases; at most {shown(largest)}."
        rows: list[list[Cell]] = [
            [f"{size:,}", mean_std([*recalls[stage, size, "plain"].values()]), *gains]
            for size, gains in gains_of_terms(stage).items()
        ]
        parts += [text(words), markdown(columns, rows)]
    return "\n\n".join(parts)


def evidence_views(found: Found) -> str:
    """SimCLR with and without QARe, tuned and not."""
    return bullets(
        f"Tuned alike, QARe adds {tuned_gains(found)}.",
        f"Untuned, QARe helps: {counted(CLAIMS['helps'].answers(found))} (SparseCLR and matching too).",
    )


def evidence_false_negatives(found: Found) -> str:
    """SparseCLR against SimCLR, where it loses most and where it gains most."""
    answers = CLAIMS["sparse-helps"].answers(found)
    ends = (pick(answers, key=lambda one: one.ours.mean) for pick in (min, max))
    return text(
        f"SparseCLR beats SimCLR: {counted(answers)}.",
        "From",
        " to ".join(f"{shown(one.ours)} on {one.where}" for one in ends) + ".",
    )


def evidence_labels(found: Found) -> str:
    """What labels are worth with one network, by cross-entropy."""
    (group,) = (one for one in probed(found) if one.setting == "CIFAR-10, Conv-4, released form")
    known, unknown = (group.plain(base).mean("probe_accuracy") for base in ("supervised", "simclr"))
    return text(f"{shown(known)} %, and SimCLR without labels {shown(unknown)} % ({group.setting}).")


def evidence_pairs(size: int, found: Found) -> str:
    """Recall on so many pairs of sentences, as it comes and tuned, and what the best term adds."""
    recalls, lines = recalls_of_pairs(), []
    for stage, words in (("untuned", "Temperature 0.05, 20 epochs"), ("tuned", "Each tuned in 24 trials")):
        plain = mean_std([*recalls[stage, size, "plain"].values()])
        best = max(gains_of_terms(stage)[size], key=lambda gain: gain.mean)
        lines.append(
            f"{words}: {size:,} pairs give {shown(plain)} %; "
            f"the best of {len(BITEXT_TERMS)} terms {'adds' if best.mean > 0 else 'changes it by'} {shown(best)}."
        )
    return bullets(*lines)


def evidence_untuned(found: Found) -> str:
    """How often a term adds on sentences, untuned and tuned."""
    (better, worse, cases, _), (later, spoils, _, _) = tally("untuned"), tally("tuned")
    return text(
        f"On sentences a term adds in {better} and takes in {worse} of {cases} cases if nothing is tuned. If all is,",
        f"it adds in {later} and takes in {spoils}.",
    )


def evidence_matching(found: Found) -> str:
    """What QARe adds to InfoNCE where sets are matched."""
    matching = [
        (group.setting, *pair) for group in found if group.kind == "matching" for pair in compared(group, "qare")
    ]
    return bullets(
        *(f"{where}: {shown(gain)} points, {gain.n} seeds." for where, row, gain in matching if row.base == "infonce")
    )


def evidence_large(found: Found) -> str:
    """Time and memory of InfoNCE of many rows."""
    rows = {one["loss"]: one for one in _bench("large-batches-h200")["rows"] if one["n"] == 65_536}
    ours, stored = ((rows[way]["ms"], rows[way]["beyond_gradients"]) for way in ("float16", "stored"))
    return text(
        f"65,536 rows take {ours[0]:.0f} ms and {ours[1] / 2**20:.0f} MiB; with the whole matrix of scores",
        f"{stored[0]:.0f} ms and {stored[1] / 2**30:.0f} GiB.",
    )


def known_sets(found: Found) -> str:
    """Which truth is best where only sets are known."""
    return what_sets_say(RESULTS / "sets.json")


def evidence_sets(found: Found) -> str:
    """What it costs to know sets and no pairs."""
    return cost_of_sets(RESULTS / "sets.json")


def all_sets(found: Found) -> str:
    """Every table of the study of sets."""
    return all_tables_of_sets(RESULTS / "sets.json")


def spectrum(found: Found) -> str:
    """How flat the spectra are at the end."""
    columns = ("effective rank", "effective rank of features")
    rows: list[list[str]] = []
    for group in (group for group in probed(found) if not group.changed):
        rows += [[f"{name}: {group.setting}", *more] for name, *more in picked(looks_table(group), "loss", *columns)]
    return markdown(("", *columns), rows)


def changes(found: Found) -> str:
    """What the baseline depends on."""
    return part_of(changes_table(found), "method", "recipe", "compared to", "probe accuracy", "difference")


def missing(found: Found) -> str:
    """How many rows of the paper's tables have runs."""
    ran = {
        (group.form, group.data, group.encoder): sum(1 for row in group.rows if row.runs and group.is_main(row))
        for group in probed(found)
        if not group.changed
    }
    rows = [
        [f"{word(data)}, {word(encoder)}", *(f"{ran.get((form, data, encoder), 0)} of 9" for form in FORMS)]
        for encoder, data in dict.fromkeys(key[:2] for key in CLASSIFICATION)
    ]
    matched = {(row.base, row.term) for group in found if group.data == "cuhk03" for row in group.rows if row.runs}
    table = markdown(("rows of Tables 2 and 3 that ran", *(f"{form} form" for form in FORMS)), rows)
    return f"{table}\n\nRows of Table 1 (CUHK-03) that ran: {len(matched & set(MATCHING))} of {len(MATCHING)}."


def safe(found: Found) -> str:
    """Whether the paper's safe weights help."""
    return text(*(sweep_answer(sweep) for group in probed(found) for sweep in sweeps(group)))


NAMED = (
    *(short_answer, answer, fast, speed, counts, later, terms, term_times, alone, weight, ablation, tuned, bitext),
    *(evidence_views, evidence_untuned, evidence_labels, evidence_false_negatives, evidence_matching, evidence_large),
    *(large_batches, spectrum, changes, missing, safe),
)
PLACES: dict[str, Callable[[Found], str]] = {
    **{function.__name__.replace("_", "-"): function for function in NAMED},
    **{key: partial(one_claim, key) for key in CLAIMS},
    "claims": all_claims,
    "helps": helps,
    "map": paying,
    "sets": known_sets,
    "evidence-pairs": partial(evidence_pairs, 29_000),
    "evidence-few-pairs": partial(evidence_pairs, 1_000),
    "evidence-sets": evidence_sets,
    "sets-all": all_sets,
}


def fill(words: str, found: Found, folder: str = "") -> str:
    """The text with every marked place filled. Places have links from the root: its own begin in its ``folder``."""

    def filled(place: re.Match[str]) -> str:
        made = re.sub(
            r"(?<=\]\()docs/[^)]+", lambda link: os.path.relpath(link[0], folder or "."), PLACES[place[2]](found)
        )
        return f"{place[1]}\n{made}\n\n{place[3]}"

    return PLACE.sub(filled, words)


def main() -> None:
    """Fill all files."""
    found = groups(collect(RESULTS)[0])
    for name in FILES:
        path = ROOT / name
        path.write_text(fill(path.read_text(), found, os.path.dirname(name)))
    for one in found_maps(found):
        picture_of(one).write_text(drawn(one))
    GAINS.write_text(gains_picture(found))
    (ROOT / PICTURE).write_text(picture_of_sets(RESULTS / "sets.json"))


if __name__ == "__main__":
    main()
