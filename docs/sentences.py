"""What set-level terms add on pairs of sentences, for the marked places that `readme.py` fills."""

from __future__ import annotations

import json
from pathlib import Path

from paragraphs import bullets, markdown, text
from setwise.records.statistics import PairedDifference, mean_std, paired_difference
from setwise.report.tables import Cell, shown

RESULTS = Path(__file__).parent.parent / "results"
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


def bitext() -> str:
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


def evidence_pairs(size: int) -> str:
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


def evidence_untuned() -> str:
    """How often a term adds on sentences, untuned and tuned."""
    (better, worse, cases, _), (later, spoils, _, _) = tally("untuned"), tally("tuned")
    return text(
        f"On sentences a term adds in {better} and takes in {worse} of {cases} cases if nothing is tuned. If all is,",
        f"it adds in {later} and takes in {spoils}.",
    )
