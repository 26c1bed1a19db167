"""README's answer to "Does it help?" and the findings of the documentation say what the records say."""

import re
from pathlib import Path

from setwise.paper.ablation import is_ablation, ranked
from setwise.paper.claims import CONTROLLED, _paper_gain, settings
from setwise.paper.collected import collect, groups
from setwise.paper.figures import sweeps
from setwise.paper.spectra import by_seed, last_look, mean_look, ranks
from setwise.paper.tables import changes_table, paper_number
from setwise.records.statistics import holm, paired_difference
from setwise.report.tables import shown

ROOT = Path(__file__).parent.parent
BASES, RESIDUAL = ("simclr", "sparseclr"), "released-cifar10-resnet32"


def findings():
    """README and the documentation's findings, one after the other, as words in a row."""
    texts = [(ROOT / name).read_text() for name in ("README.md", "docs/findings.md")]
    return " ".join(" ".join(texts).replace("**", "").split())


def test_the_readmes_answer_is_made_of_the_records():
    said = (ROOT / "README.md").read_text().replace("**", "")
    found = {g.name: g for g in groups(collect(ROOT / "results")[0]) if g.kind == "matching"}
    large, small = (found[f"matching-cifar10-{instances}"] for instances in (10000, 1467))
    labels = (
        "alone",
        "+ QARe, the paper's term and weight",
        "+ alignment gap, ours",
        "+ structural difference, without eigenvalues",
    )
    for i, label in enumerate(labels):
        cells = []
        for group in (large, small):
            row = [row for row in group.rows if row.base == "infonce"][i]
            assert len(row.runs) == 10
            cells.append(shown(group.difference(row, "held_out_accuracy") if i else row.mean("held_out_accuracy")))
        assert f"| {label} | {cells[0]} | {cells[1]} |" in said
    words = findings()
    answered = settings(groups(collect(ROOT / "results")[0])).rows
    (above,) = (
        r[3]
        for r in answered
        if r[:2] == ["QARe beats the structural difference", "InfoNCE: CIFAR-10, 10,000 instances"]
    )
    assert f"With 10,000 instances and InfoNCE QARe is {shown(above)} above the structural difference" in words
    others = [r[2] for r in answered if r[0] == "QARe beats the structural difference" and "10,000" in r[1]]
    assert sorted(others) == ["cannot be told"] * 3 + ["yes"]
    weights = [[row.weight for row in group.rows if row.base == "infonce"][2:] for group in (large, small)]
    assert weights == [[10.0, 3.0], [10.0, 1.0]]
    assert (
        "with InfoNCE gap 10, structural difference 3 (by seeds 1 to 3, for the runs with 10,000) and 1 (by all"
        in words
    )
    assert (len(small.choices), sum("at the edge" in how for _, how in small.choices)) == (8, 7)
    assert "eight choices, of which seven lie at the edge" in words
    probes = {g.name: g for g in groups(collect(ROOT / "results")[0]) if g.kind == "classification"}
    for encoder, label in (("conv4", "Conv-4"), ("resnet32", "ResNet-32")):
        written, released = (probes.get(f"classification-{form}-cifar10-{encoder}") for form in ("paper", "released"))
        for base, of in (("simclr", "SimCLR"), ("sparseclr", "SparseCLR")):
            row = next(row for row in released.rows if (row.base, row.term, row.said) == (base, "qare", ""))
            others = [r for r in written.rows if (r.base, r.term) == (base, "qare")] if written else []
            cells = [shown(written.difference(other, "probe_accuracy")) for other in others] or ["not run"]
            more = "" if len(row.runs) == 3 else f", {len(row.runs)} seeds"
            cells += [shown(released.difference(row, "probe_accuracy")) + more, _paper_gain(released, base)]
            assert f"| to {of}, {label} | {' | '.join(cells)} |" in said
        mean = shown(released.plain("simclr").mean("probe_accuracy"))
        theirs = paper_number(released, released.plain("simclr")).mean
        assert re.search(rf"{re.escape(mean)} with {label} \((13 seeds; )?there {theirs}\)", words)
        values = (released.plain(base).values("probe_accuracy") for base in ("sparseclr", "simclr"))
        assert f"{shown(paired_difference(*values))} with {label}" in words
        clamp = next(r for r in released.rows if (r.base, r.term, r.weight) == ("sparseclr", "qare", 0.0))
        assert f"{shown(released.difference(clamp, 'probe_accuracy'))} with {label}" in words
        looks = {
            (row.base, row.term): last_look(row)[1]
            for row in released.rows
            if row.base in ("simclr", "sparseclr") and not row.said and not row.loss
        }
        two = (mean_look(looks["simclr", term], "effective_rank").mean for term in ("", "qare"))
        assert "from {:.1f} to {:.1f}".format(*two) + f" with {label}" in words
        features = (by_seed(looks["simclr", term], "feature_rank") for term in ("qare", ""))
        assert f"{shown(paired_difference(*features))} with {label}" in words
        two = (mean_look(looks["sparseclr", term], "effective_rank").mean for term in ("", "qare"))
        assert "{:.1f} and {:.1f}".format(*two) in words
    written, released = (probes[f"classification-{form}-cifar10-conv4"] for form in ("paper", "released"))
    sparse, dense = (written.plain(base).values("probe_accuracy") for base in ("sparseclr", "simclr"))
    assert f"{shown(paired_difference(sparse, dense))} with Conv-4 as the paper is written" in words
    qare = next(row for row in released.rows if (row.base, row.term, row.said) == ("simclr", "qare", ""))
    later = {seed: value for seed, value in qare.values("probe_accuracy").items() if seed > 10}
    assert len(later) == 10
    alone = paired_difference(later, released.plain("simclr").values("probe_accuracy"))
    assert words.count(f"those alone give {shown(alone)}") == 2
    assert len(probes["classification-released-cifar10-conv4"].plain("simclr").runs) == 13
    (ablation,) = (g for g in groups(collect(ROOT / "results")[0]) if is_ablation(g))
    tried = [(row, difference) for row, difference in ranked(ablation) if difference is not None]
    assert len(tried) == 28
    assert {difference.n for _, difference in tried} == {5}
    gains = [difference.mean for row, difference in tried if row.weight == 1 and row.loss != "ablation/simclr-features"]
    assert (round(min(gains), 1), round(max(gains), 1)) == (0.3, 0.9)
    adjusted = holm([difference.p for _, difference in tried])
    above = [p for (_, difference), p in zip(tried, adjusted, strict=True) if difference.side == "above"]
    assert (len(above), sum(p < 0.05 for p in above)) == (3, 0)
    at_rank = [(ranks(row)[0].mean, difference.mean) for row, difference in tried if row.weight is not None]
    gains = [gain for rank, gain in at_rank if 17 <= rank <= 38]
    assert (round(min(gains), 1), round(max(gains), 1)) == (0.3, 0.9)
    assert f"those at 43 or more at most {max(gain for rank, gain in at_rank if rank >= 43):.2f}," in words
    assert round(max(gain for rank, gain in at_rank if rank < 17), 1) == 0.4
    (plain,) = (row for row, difference in ranked(ablation) if difference is None)
    cold, loss = next((row, d) for row, d in tried if row.loss == "ablation/simclr-cold")
    strong = next(d for row, d in tried if (row.loss, row.weight) == ("released/simclr-qare", 10.0))
    assert f"QARe as released with weight 10 loses {-strong.mean:.2f}." in words
    assert f"(without any {ranks(plain)[0].mean:.1f})" in words
    assert f"temperature 0.05 ends at {ranks(cold)[0].mean:.1f} and loses {-loss.mean:.2f}" in words
    best, gain = tried[0]
    assert (best.loss, best.weight) == ("ablation/simclr-control", 10.0)
    ours, control = (next(r for r, _ in tried if (r.loss, r.weight) == (loss, 1.0)) for loss in CONTROLLED)
    behind = paired_difference(ours.values("probe_accuracy"), control.values("probe_accuracy"))
    beaten = [row[2:4] for row in answered if row[0] == "QARe beats the Frobenius norms"]
    assert [verdict for verdict, difference in beaten if difference.n == 5] == [
        "cannot be told",
        "no",
        "cannot be told",
    ]
    adjusted = holm([difference.p for _, difference in beaten])
    assert [p for p, (verdict, _) in zip(adjusted, beaten, strict=True) if verdict == "no"] > [0.05]
    held, large_held = (
        group.difference(
            next(row for row in group.rows if (row.loss, row.weight) == (best.loss, best.weight)), "probe_accuracy"
        )
        for group in (probes[f"classification-released-cifar10-{encoder}"] for encoder in ("conv4", "resnet32"))
    )
    assert held.seeds == tuple(range(11, 21))
    for sentence in (
        f"which has none, QARe without clamp is {shown(behind)} with weight 1, which does not stay after Holm's",
        f"with weight 10, {shown(gain)}, adds {shown(held)} on the test images with ten fresh seeds, and "
        f"{shown(large_held)} with ResNet-32",
    ):
        assert sentence in words
    for base, side in {"triplet": "above", "sparseclr": "above", "nt-logistic": "around"}.items():
        row = next(row for row in large.rows if (row.base, row.term) == (base, "qare"))
        assert large.difference(row, "held_out_accuracy").side == side
    answers = [row for row in settings([*found.values(), *probes.values()]).rows if row[0] == "QARe helps"]
    ps = {where: ours.p for _, where, _, ours, _ in answers if ours.p is not None}
    stay = [where for where, p in zip(ps, holm(list(ps.values())), strict=True) if p < 0.05]
    assert [where.partition(": CIFAR-10, ")[::2] for where in stay] == [
        ("InfoNCE", "10,000 instances"),
        ("SparseCLR", "10,000 instances"),
        ("SimCLR", "Conv-4, released form"),
    ]
    assert (len(ps), sum(verdict == "yes" for _, _, verdict, *_ in answers)) == (19, 6)
    assert (
        "In six of nineteen settings QARe's gain can be told from zero, and in three of these also after Holm's"
        in words
    )
    reached = [row[2] for row in settings([*probes.values()]).rows if row[0] == "A point on both encoders"]
    assert set(reached) == {"cannot be told", "no"}


def test_the_findings_are_made_of_the_records():
    runs = collect(ROOT / "results")[0]
    found = groups(runs)
    named = {group.name: group for group in found}
    words = findings()
    small = sum(run.data == "cifar10" for run in runs)
    counted = f"{len(runs):,} runs (NVIDIA H200, bf16 but for three), {small} on CIFAR-10 and {len(runs) - small} on"
    assert counted in words
    assert sum(run.record["precision"] != "bfloat16" for run in runs) == 3
    assert {run.data for run in runs} == {"cifar10", "cifar100"}

    def difference(group, base, term="", said=""):
        row = next(row for row in group.rows if (row.base, row.term, row.said) == (base, term, said))
        return shown(group.difference(row, "probe_accuracy"))

    written, conv, residual = (
        named[f"classification-{name}"] for name in ("paper-cifar10-conv4", "released-cifar10-conv4", RESIDUAL)
    )
    gains = [[difference(group, base, "qare") for base in BASES] for group in (conv, residual, written)]
    assert "QARe adds {} to SimCLR and {} to SparseCLR with Conv-4,".format(*gains[0]) in words
    assert "{} and {} with ResNet-32;".format(*gains[1]) in words
    assert "as the paper is written, {} and {} with Conv-4.".format(*gains[2]) in words
    hundred = [named[f"classification-{form}-cifar100-conv4"] for form in ("released", "paper")]
    gains = [[difference(group, base, "qare") for base in BASES] for group in hundred]
    assert "QARe adds {} to SimCLR (ten seeds) and {} to SparseCLR as released,".format(*gains[0]) in words
    assert "{} and {} as the paper is written, where the paper".format(*gains[1]) in words
    assert f"runs cannot tell: {gains[0][0]} to SimCLR as released, ten seeds." in words
    assert len(hundred[0].plain("simclr").runs) == 10
    assert f"SimCLR has {shown(hundred[0].plain('simclr').mean('probe_accuracy'))} as released (there 30.75)" in words
    deep = named["classification-released-cifar100-resnet32"]
    gain, plain = difference(deep, "simclr", "qare"), shown(deep.plain("simclr").mean("probe_accuracy"))
    assert f"With ResNet-32, as released, QARe adds {gain} to SimCLR ({plain}; there 40.18 and +1.02)" in words
    assert f"On CIFAR-100 the released form adds {gain} to SimCLR with ResNet-32, three seeds (not after" in words
    clamps = [difference(group, base, "qare", ", weight 0") for base in BASES for group in (conv, residual)]
    of = "The clamp alone adds to SimCLR {} with Conv-4 and {} with ResNet-32; to SparseCLR {} with Conv-4 and {} with"
    assert of.format(*clamps) in words

    (sweep,) = (sweep for group in found for sweep in sweeps(group))
    assert (sweep.group, len(sweep.rows)) == (conv, 16)
    assert {len(row.runs) for row in sweep.rows.values()} == {3}
    safe = shown(sweep.against_plain())
    assert f"which the paper calls safe, add {safe} on average to SimCLR with Conv-4, three seeds" in words
    assert f"which the paper calls safe, adds {safe}." in words
    plain = sweep.plain.values("probe_accuracy")
    added = {weight: paired_difference(row.values("probe_accuracy"), plain) for weight, row in sweep.rows.items()}
    some = [round(gain.mean, 1) for weight, gain in added.items() if weight >= 0.25]
    sure = sum(gain.side == "above" for weight, gain in added.items() if weight >= 0.25)
    assert f"on adds {min(some)} to {max(some)} points; {sure} of these {len(some)} intervals exclude zero" in words
    middle = [round(gain.mean, 1) for weight, gain in added.items() if 0.375 <= weight <= 1.5]
    advice = (ROOT / "docs" / "how-to" / "choose-beta.md").read_text()
    assert f"all weights from 0.375 to 1.5 add {min(middle)} to {max(middle)} points" in advice
    best = max(added, key=lambda weight: added[weight].mean)
    assert f"The greatest, {best:g}, adds {shown(added[best])}, which" in words
    assert f"rises further, to {ranks(sweep.rows[1.875])[0].mean:.1f} at 1.875" in words
    zeros = [next(r for r in g.rows if (r.base, r.term, r.weight) == ("simclr", "qare", 0)) for g in (conv, residual)]
    assert "the clamp alone leads to {:.1f} and {:.1f}.".format(*(ranks(row)[0].mean for row in zeros)) in words
    (ablation,) = filter(is_ablation, found)
    one = next(gain for row, gain in ranked(ablation) if (row.loss, row.weight) == ("released/simclr-qare", 1.0))
    assert f"on validation images weight 1 adds {shown(one)}, five seeds" in words

    rows = {tuple(row[1:3]): row[4:] for row in changes_table(found).rows}
    usual, short, shortest = "the recipe as it is", "with epochs 50", "with epochs 20"
    accuracy, change = rows["with mean instead of log-mean", usual]
    again = rows["with mean instead of log-mean, epochs 50", short][1]
    assert f"it has {shown(accuracy)}, which is {shown(change)}, and with 50" in words
    assert f"it is as far below, {shown(again)}; with Conv-4" in words
    form = next(gain for row, gain in ranked(ablation) if row.loss == "ablation/simclr-mean")
    assert form.side == "around"
    changes = {
        "another start (Xavier's) changes it by": (f"{short}, weights xavier", short),
        "no partial last batch by": ("with drop_last True, epochs 50", short),
        "weaker changes of colour by": (f"{short}, views modern", short),
        "float32 instead of bf16 by": (f"{shortest}, precision float32", shortest),
    }
    for said, key in changes.items():
        assert f"{said} {shown(rows[key][1])}" in words
        assert rows[key][1].side == "around"

    answered = settings(found).rows
    supports = [row[3].mean for row in answered if row[0] == "SparseCLR's support is sparse"]
    assert f"{min(supports):.0f} to {max(supports):.0f} % of the negatives" in words
    same = {row[1]: row[3] for row in answered if row[0] == "SparseCLR weighs false negatives more"}
    more = [same[f"CIFAR-10, {encoder}, released form"] for encoder in ("Conv-4", "ResNet-32")]
    assert "{} points with Conv-4 and {} with ResNet-32, released form".format(*map(shown, more)) in words
    assert f"as the paper is written {shown(same['CIFAR-10, Conv-4, paper form'])}." in words
    adjusted = dict(zip(same, holm([gain.p for gain in same.values()]), strict=True))
    assert [where for where, p in adjusted.items() if p < 0.05] == ["CIFAR-100, Conv-4, released form"]
    assert f"released form, it is {shown(same['CIFAR-100, Conv-4, released form'])}, which stays" in words
    sparse = {row[1]: row[3] for row in answered if row[0] == "SparseCLR beats SimCLR"}
    above, around = (sparse[f"CIFAR-100, Conv-4, {form} form"] for form in ("released", "paper"))
    assert f"SparseCLR is {shown(above)} above SimCLR as released (not after Holm's correction) and" in words
    assert f"{shown(around)} as the paper is written; the paper has +1.29" in words
