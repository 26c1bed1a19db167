"""Fill the marked places of README.md and of the documentation with numbers from results/: `make readme`.

A place begins with the line `<!-- from results: NAME -->` and ends with the line `<!-- end -->`; the function of that
name in PLACES writes what stands between. Verdicts come from the records, so no sentence outside says one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

from known_sets import PICTURE, cost_of_sets, picture_of_sets, what_sets_say
from paragraphs import bullets, markdown, part_of, picked, text
from sentences import bitext, evidence_pairs, evidence_untuned, tally
from sets_details import all_tables_of_sets
from setwise.paper.ablation import ablation_answer, ablation_table, is_ablation
from setwise.paper.claims import CLAIMS, claims, compared, counted, differences, surviving, verdicts
from setwise.paper.collected import Group, collect, groups, probed
from setwise.paper.figures import sweep_answer, sweep_table, sweeps
from setwise.paper.missing import Part, claims_not_run, costs, missing_answer, missing_table, parts
from setwise.paper.missing import part_of as wanted
from setwise.paper.numbers import word
from setwise.paper.paying import Map, map_answer, map_rows, map_table, maps
from setwise.paper.recipes import MATCHING_LOSSES
from setwise.paper.spectra import looks_table
from setwise.paper.tables import changes_table, paper_gain, paper_number
from setwise.paper.tuned import settings, trials_table, tuned_answer, tuned_table
from setwise.records.statistics import paired_difference
from setwise.report.chart import Interval
from setwise.report.picture import interval_picture
from setwise.report.tables import NONE, Cell, shown
from speeds import evidence_large, fast, large_batches, set_times, speed, term_times

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
BASES = ("simclr", "sparseclr")
USUAL = 3  # seeds
Found = Sequence[Group]


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
    rows: list[list[Cell]] = [
        [one.where.replace("*", ""), one.ours, words, one.paper]
        for one, words in zip(answers, verdicts(answers), strict=True)
    ]
    end = 4 if any(one.paper for one in answers) else 3
    table = markdown(("", "ours", "verdict", "paper")[:end], [row[:end] for row in rows])
    more = text(claims_not_run(every_part()).get(key, ""))
    return "\n\n".join(filter(None, (f"{CLAIMS[key].words}: **{counted(answers)}**.", table, more)))


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
        tests = part_of(tuned_table(setting, costs(every_part()))) if setting.tested else ""
        left = wanted(every_part(), "tuned", setting.data, setting.encoder)
        words = text(tuned_answer(setting), left.sentence if left else "")
        parts += [words, tests, part_of(trials_table(setting))]
    return "\n\n".join(filter(None, parts)) or "Not run yet: `setwise reproduce tuning` makes the trials."


@cache
def every_part() -> list[Part]:
    """All that the paper's tables and figures need, and ours."""
    return parts(RESULTS)


def left_of_map(data: str) -> str:
    """What the map of a data set lacks."""
    part = wanted(every_part(), "map", data)
    return part.sentence if part else ""


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
        parts.append(text(map_answer(one), left_of_map(one.data)))
        if one.tested:
            parts.append(f"![Differences with their intervals, factor by factor]({picture_of(one).name})")
        table = map_table(one)
        parts.append(part_of(table, *columns) if table.rows else "")
    return "\n\n".join(filter(None, parts)) or text(left_of_map("cifar10"))


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


def evidence_matching(found: Found) -> str:
    """What QARe adds to InfoNCE where sets are matched."""
    matching = [
        (group.setting, *pair) for group in found if group.kind == "matching" for pair in compared(group, "qare")
    ]
    return bullets(
        *(f"{where}: {shown(gain)} points, {gain.n} seeds." for where, row, gain in matching if row.base == "infonce")
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
    """The parts of the paper that lack runs, and what they cost."""
    table = missing_table(every_part())
    words = text(f"{missing_answer(every_part())}.", table.note)
    rows = [[*others, f"`{command}`"] for *others, command in picked(table, *table.columns)]
    return f"{words}\n\n{markdown(table.columns, rows)}" if rows else words


def safe(found: Found) -> str:
    """Whether the paper's safe weights help."""
    return text(*(sweep_answer(sweep) for group in probed(found) for sweep in sweeps(group)))


FROM_RUNS = (
    *(short_answer, answer, counts, later, terms, alone, weight, ablation, tuned, spectrum, changes, missing, safe),
    *(evidence_views, evidence_labels, evidence_false_negatives, evidence_matching),
)
FROM_OTHER_RECORDS = (fast, speed, set_times, term_times, bitext, evidence_untuned, evidence_large, large_batches)


def place(function: Callable[..., str]) -> str:
    """The name of the place that a function fills."""
    return function.__name__.replace("_", "-")


PLACES: dict[str, Callable[[Found], str]] = {
    **{place(function): function for function in FROM_RUNS},
    **{place(function): lambda _, write=function: write() for function in FROM_OTHER_RECORDS},
    **{key: partial(one_claim, key) for key in CLAIMS},
    "claims": all_claims,
    "helps": helps,
    "map": paying,
    "sets": known_sets,
    "evidence-pairs": lambda _: evidence_pairs(29_000),
    "evidence-few-pairs": lambda _: evidence_pairs(1_000),
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
