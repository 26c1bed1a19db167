"""Claims, the paper's and ours: what the paper says, what our runs say, a verdict. The report's first screen."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import setwise.records as records
from setwise.paper.ablation import bests_of, is_ablation
from setwise.paper.collected import TERMS, Group, Row, probed
from setwise.paper.figures import sweeps
from setwise.paper.numbers import SAFE_WEIGHTS, word
from setwise.paper.objectives import preset_of, weight_of
from setwise.paper.spectra import by_seed, last_look
from setwise.paper.tables import paper_number
from setwise.records.statistics import MeanStd, PairedDifference, holm, mean_std, paired_difference
from setwise.report.chart import Interval
from setwise.report.tables import Cell, Table, shown

VERDICTS = {"above": "yes", "around": "cannot be told", "below": "no", "unknown": "one seed only"}
NO_RUNS, UNCONFIRMED = "no runs yet", "seen on validation only"
GOAL = 1.0  # points: the gain that this project looks for
BOTH = ("conv4", "resnet32")  # the paper's encoders
SPARSE = 50.0  # a support below so many per cent of the negatives is called sparse: softmax, unclamped, has 100
LEVEL = 0.05
CONTROLLED = ("ablation/simclr-qare", "ablation/simclr-frobenius")  # of an ablation, the same but for the eigenvalues
NAMED = 3  # settings of one verdict that the lead names
FEW = 3  # settings of one question that are all named
EXPLAINED = (
    "Differences are taken seed by seed, between the loss with the term and the same loss without it, and then "
    "averaged; in brackets the 95 % interval (Student's t). An interval that contains zero means that these runs "
    "cannot tell, not that there is no effect; and of twenty intervals one misses by chance. With three seeds an "
    "interval rests on two degrees of freedom: its width is itself mostly chance. All seeds share one split of the "
    "data: intervals are about the randomness of training, not about other images."
)
NOTE = (
    "Verdicts of differences, seed by seed, in points: yes if the 95 % interval is above zero, no below, cannot be "
    "told around it; and how many stay after Holm's correction for so many settings. From and to: the least and the "
    "greatest among the settings that can be told, or of all where none can. Support is no difference: per cent of "
    "the negatives that have weight, sparse below half."
)
SIGNS = (
    "Verdicts as above. The structural difference of the two sets and the product of the Frobenius norms are set-level "
    "terms without eigenvalues; the second is QARe's own bound, so what QARe has beyond it is its eigenvalues'. "
    "Weight 0 is QARe's form without QARe: in the released code a clamp is left. False negatives: points of the "
    "weight's share on images of the same class, against SimCLR. A point on both encoders: the lesser of both gains; "
    "yes if both gain a point with intervals above zero, no if an interval ends below a point. *: recipes with "
    "changes, or tested on training images that were kept apart."
)
Found = tuple[str, str | None, PairedDifference | MeanStd, str]  # where, the paper's, ours, the verdict


def compared(group: Group, term: str) -> list[tuple[Row, PairedDifference]]:
    """Rows with this term and their differences to the loss without it, where both were run.

    Rows of other weights than the recipe's, or the chosen one, are for the tables only; and so are runs for choosing.
    """
    found = []
    for row in group.rows if not group.validation else ():
        difference = group.difference(row, group.measure[0])
        if row.term == term and group.is_main(row) and difference is not None:
            found.append((row, difference))
    return found


def differences(found: Sequence[Group]) -> Table:
    """What every term adds to every loss, in one table."""
    terms = [term for term in TERMS if term]
    rows: list[list[Cell]] = []
    for group in found:
        cells = {term: {row.base: difference for row, difference in compared(group, term)} for term in terms}
        for base in dict.fromkeys(row.base for row in group.rows):
            if any(base in cells[term] for term in terms):
                ours, *others = (cells[term].get(base) for term in terms)
                rows.append([f"{word(base)}: {group.setting}", ours, _paper_gain(group, base), *others])
    columns = ["loss", TERMS["qare"], "paper's QARe", *(TERMS[term] for term in terms[1:])]
    starred = (
        " *: recipes with changes, which the tables below name." if any("*" in str(row[0]) for row in rows) else ""
    )
    return Table("differences", columns, rows, "What set-level terms add, in points of accuracy", EXPLAINED + starred)


def _beats_structural(found: Sequence[Group]) -> list[Found]:
    """QARe minus the structural difference, another set-level term, which has no eigenvalues: of matching."""
    rows: list[Found] = []
    for group in (group for group in found if group.kind == "matching"):
        ours, others = ({row.base: row for row, _ in compared(group, term)} for term in ("qare", "control"))
        for base in (base for base in ours if base in others):
            rows += _beaten(group, ours[base], others[base], word(base))
    return rows


def _beats_zero(found: Sequence[Group]) -> list[Found]:
    """QARe minus the same form with weight 0: of probes, where the released form clamps too."""
    rows: list[Found] = []
    for group in probed(found):
        others = {row.base: row for row in group.rows if (row.term, row.loss, row.weight) == ("qare", "", 0.0)}
        for ours, _ in compared(group, "qare"):
            rows += _beaten(group, ours, others[ours.base], word(ours.base)) if ours.base in others else []
    return rows


def _beats_frobenius(found: Sequence[Group]) -> list[Found]:
    """QARe minus the product of Frobenius norms, its bound without eigenvalues: of ablations, weight by weight."""
    rows: list[Found] = []
    for group in filter(is_ablation, found):
        ours, others = ({row.weight: row for row in group.rows if row.loss == loss} for loss in CONTROLLED)
        for weight, row in ours.items():
            label = f"{word(row.base)}, weight {weight:g}"
            rows += _beaten(group, row, others[weight], label) if weight in others else []
    return rows


def _beaten(group: Group, ours: Row, other: Row, label: str) -> list[Found]:
    difference = paired_difference(ours.values(group.measure[0]), other.values(group.measure[0]))
    return [(f"{label}: {group.setting}", None, difference, VERDICTS[difference.side])] if difference else []


def _paper_gain(group: Group, base: str) -> str | None:
    """What the paper's QARe adds; of matching on other data than the paper's, nothing."""
    with_qare, plain = (paper_number(group, Row(base, term)) for term in ("qare", ""))
    same = group.kind != "matching" or group.data == "cuhk03"
    return f"{with_qare.mean - plain.mean:+.2f}" if with_qare and plain and same else None


def _qare_helps(found: Sequence[Group]) -> list[Found]:
    return [
        (f"{word(row.base)}: {group.setting}", _paper_gain(group, row.base), difference, VERDICTS[difference.side])
        for group in found
        for row, difference in compared(group, "qare")
    ]


def pictured(found: Sequence[Group]) -> list[Interval]:
    """What QARe adds in each setting, for a picture; the paper's gain beside ours."""
    rows = []
    for where, paper, ours, _ in _qare_helps(found):
        if isinstance(ours, PairedDifference):
            bounds = None if ours.low is None or ours.high is None else (ours.low, ours.high)
            rows.append(Interval(where, shown(ours), ours.mean, bounds, float(paper) if paper else None))
    return rows


def _sparse_helps(found: Sequence[Group]) -> list[Found]:
    rows: list[Found] = []
    for group in probed(found):
        sparse, dense = group.plain("sparseclr"), group.plain("simclr")
        difference = paired_difference(sparse.values("probe_accuracy"), dense.values("probe_accuracy"))
        if difference is not None:
            theirs, other = (paper_number(group, row) for row in (sparse, dense))
            gain = f"{theirs.mean - other.mean:+.2f}" if theirs and other else None
            rows.append((group.setting, gain, difference, VERDICTS[difference.side]))
    return rows


def _weights_are_safe(found: Sequence[Group]) -> list[Found]:
    rows: list[Found] = []
    for sweep in (sweep for group in probed(found) for sweep in sweeps(group)):
        if (difference := sweep.against_plain()) is not None:
            rows.append((f"{sweep.label}: {sweep.group.setting}", "yes", difference, VERDICTS[difference.side]))
    return rows


def _support_is_sparse(found: Sequence[Group]) -> list[Found]:
    rows: list[Found] = []
    for group in probed(found):
        last = last_look(group.plain("sparseclr"))
        looks = last[1] if last else {}
        negatives = {seed: value for seed, value in by_seed(looks, "negatives").items() if value}
        support = {seed: value for seed, value in by_seed(looks, "support").items() if seed in negatives}
        if support:
            mean = mean_std([100 * value / negatives[seed] for seed, value in support.items()])
            rows.append((group.setting, "only a few", mean, "yes" if mean.mean < SPARSE else "no"))
    return rows


def _false_negatives(found: Sequence[Group]) -> list[Found]:
    rows: list[Found] = []
    for group in probed(found):
        looks = [last_look(group.plain(base)) for base in ("sparseclr", "simclr")]
        sparse, dense = (by_seed(look[1], "same_class_weight") if look else {} for look in looks)
        if difference := paired_difference(sparse, dense):
            rows.append((group.setting, "yes, on CIFAR-10", difference, VERDICTS[difference.side]))
    return rows


def _gains_on_both(found: Sequence[Group]) -> list[Found]:
    """Each set-level form that was run on both encoders, by the encoder that it does less for."""
    forms: dict[tuple[str, str, str, str], dict[str, PairedDifference]] = {}
    for group in probed(found):
        for row in group.rows:
            difference = group.difference(row, "probe_accuracy")
            if difference is not None and group.encoder in BOTH and (group.is_main(row) or row.loss) and row.weight:
                key = (row.label, group.form, group.data, group.changed)
                forms.setdefault(key, {})[group.encoder] = difference
    rows: list[Found] = []
    for (label, form, data, changed), by_encoder in forms.items():
        if len(by_encoder) == len(BOTH):
            encoder, least = min(by_encoder.items(), key=lambda pair: pair[1].mean)
            ps = [one.p for one in by_encoder.values() if one.p is not None]
            least = replace(least, p=max(ps) if len(ps) == len(BOTH) else None)  # both have to be above zero
            where = f"{label}: {word(data)}{'*' if changed else ''}, {form} form, lesser gain with {word(encoder)}"
            rows.append((where, None, least, _reached(by_encoder.values())))
    return rows


def _reached(both: Collection[PairedDifference]) -> str:
    """Yes if all are a point or more with intervals above zero, no if an interval ends below a point."""
    if any(one.high is None for one in both):
        return VERDICTS["unknown"]
    if all(one.mean >= GOAL and one.side == "above" for one in both):
        return VERDICTS["above"]
    return VERDICTS["below" if any(one.high is not None and one.high < GOAL for one in both) else "around"]


def _best_holds(found: Sequence[Group]) -> list[Found]:
    """The best on validation of each ablation, on the test set and with seeds that it was not chosen by."""
    rows: list[Found] = []
    for group, (row, chosen_by) in ((g, best) for g in filter(is_ablation, found) for best in bests_of(g)):
        for encoder in BOTH:
            seen = {run.seed for run in group.runs} if encoder == group.encoder else set()
            difference = None
            for other in probed(found):
                if (other.form, other.data, other.encoder, other.changed) == (group.form, group.data, encoder, ""):
                    for candidate in (one for one in other.rows if one.runs and _loss(one) == _loss(row)):
                        fresh = {s: v for s, v in candidate.values("probe_accuracy").items() if s not in seen}
                        plain = other.plain(row.base).values("probe_accuracy")
                        difference = difference or paired_difference(fresh, plain)
            where = f"{row.label}: {word(group.data)}, {word(encoder)}, {group.form} form"
            if difference or encoder == group.encoder:
                verdict = VERDICTS[difference.side] if difference else UNCONFIRMED
                rows.append((where, None, difference or chosen_by, verdict))
    return rows


def _loss(row: Row) -> tuple[object, object]:
    """Which loss its runs had, whatever their recipe is called."""
    recipe = records.recipe_of(next(iter(row.runs.values())).record)
    return preset_of(recipe) or recipe.objective, weight_of(recipe)


# The question, the claim in few words, what the paper says, and what answers it.
QUESTIONS: tuple[tuple[str, str, str, Callable[[Sequence[Group]], list[Found]]], ...] = (
    ("Does QARe help?", "QARe helps", "yes", _qare_helps),
    (
        "Does QARe beat the structural difference?",
        "QARe beats the structural difference",
        "-",
        _beats_structural,
    ),
    ("Does QARe beat its own form with weight 0?", "QARe beats its weight 0", "-", _beats_zero),
    ("Does QARe beat the Frobenius norms?", "QARe beats the Frobenius norms", "-", _beats_frobenius),
    ("Does SparseCLR beat SimCLR?", "SparseCLR beats SimCLR", "yes, but not ResNet-32 on CIFAR-10", _sparse_helps),
    (
        "Does QARe help with weights from {:g} to {:g}, on average?".format(*SAFE_WEIGHTS),
        "Weights {:g} to {:g} help on average".format(*SAFE_WEIGHTS),
        "yes",
        _weights_are_safe,
    ),
    ("Is SparseCLR's support sparse?", "SparseCLR's support is sparse", "only a few", _support_is_sparse),
    (
        "Does SparseCLR weigh false negatives more than SimCLR?",
        "SparseCLR weighs false negatives more",
        "yes, on CIFAR-10",
        _false_negatives,
    ),
    (
        "Does a set-level form gain a point on both encoders?",
        "A point on both encoders",
        "-",
        _gains_on_both,
    ),
    (
        "Does the best of the ablation hold on fresh seeds and the test set?",
        "The ablation's best holds",
        "-",
        _best_holds,
    ),
)
LEADING = (QUESTIONS[0], QUESTIONS[-2], QUESTIONS[-1])
TOLD = (VERDICTS["above"], VERDICTS["below"])


def claims(found: Sequence[Group]) -> Table:
    """A row for each claim: how many settings say what, and the least and the greatest of those that can be told."""
    rows: list[list[Cell]] = []
    for _, claim, paper, answered in QUESTIONS:
        answers = answered(found)
        told = [answer for answer in answers if answer[3] in TOLD]
        ours = sorted((answer[2] for answer in told or answers), key=lambda found: found.mean)
        ends = (ours[0] if ours else None, ours[-1] if len(ours) > 1 else None)
        rows.append([claim, _counted(answers), *ends, paper])
    columns = ("claim", "verdict", "from", "to", "paper")
    return Table("claims", columns, rows, "The paper's claims, and ours", NOTE, wrap=True)


def settings(found: Sequence[Group]) -> Table:
    """The same, a row for each claim and setting."""
    rows: list[list[Cell]] = []
    for _, claim, _, answer in QUESTIONS:
        rows += [[claim, where, verdict, ours, paper] for where, paper, ours, verdict in answer(found)]
    columns = ("claim", "where", "verdict", "ours", "paper")
    return Table("settings", columns, rows, "The claims, setting by setting", SIGNS, wrap=True)


def lead(found: Sequence[Group]) -> str:
    """Does QARe help, and the other questions that matter most if runs answer them; and how many runs there are."""
    runs = sum(len(group.runs) for group in found)
    answers = {question: answer(found) for question, _, _, answer in LEADING}
    said = [f"{question} {_said(these)}." for i, (question, these) in enumerate(answers.items()) if these or i == 0]
    kinds = {group.kind for group in found}
    how = "; an encoder's name means a linear probe, a number of instances that these were matched"
    return "\n".join(said) + f" ({runs:,} {'run' if runs == 1 else 'runs'}{how if len(kinds) > 1 else ''}.)"


def _said(answers: Sequence[Found]) -> str:
    """Each verdict with the settings that it is of, with their numbers if there are few or they can be told."""
    parts = []
    for verdict in (*VERDICTS.values(), UNCONFIRMED):
        mine = sorted((a for a in answers if a[3] == verdict), key=_certainty)
        many = f" in {len(mine)} of {len(answers)} settings" if len(answers) > 1 else ""
        if mine and (len(answers) <= FEW or verdict in TOLD):
            names = [f"{where.replace(': ', ' (', 1)}) {shown(ours)}" for where, _, ours, _ in mine[:NAMED]]
            more = f" and {len(mine) - NAMED} more" if len(mine) > NAMED else ""
            corrected = _corrected(answers, verdict, fewer_than=len(mine))
            parts.append(f"{verdict}{many}{corrected}: {', '.join(names)}{more}")
        elif mine:
            parts.append(f"{verdict}{many}")
    words = "; ".join(parts) or NO_RUNS
    return words[0].upper() + words[1:]


def _certainty(answer: Found) -> tuple[float, float]:
    """What is most certain comes first; of two as certain, the greater."""
    p = getattr(answer[2], "p", None)
    return (1.0 if p is None else p, -abs(answer[2].mean))


def _counted(answers: Sequence[Found]) -> str:
    """The verdicts: the one there is, or how many settings have which."""
    verdicts = [verdict for *_, verdict in answers]
    if len(verdicts) < 2:
        return verdicts[0] if verdicts else NO_RUNS
    once = VERDICTS["unknown"]
    known = [verdict for verdict in verdicts if verdict != once]
    alone = len(verdicts) - len(known)
    if not known:
        return f"{once} in all of {alone} settings"
    kinds = [verdict for verdict in (*VERDICTS.values(), UNCONFIRMED) if verdict in known]
    more = f"; {alone} more with one seed only" if alone else ""
    if len(kinds) == 1:
        all_of = f"all of {len(known)} settings" if len(known) > 1 else "one setting"
        return f"{kinds[0]} in {all_of}{_corrected(answers, kinds[0])}{more}"
    parts = [f"{known.count(kind)} {kind}{_corrected(answers, kind)}" for kind in kinds]
    return f"of {len(known)} settings: {', '.join(parts)}{more}"


def _against_zero(answer: Found) -> bool:
    """Whether the verdict is that of the test against zero: less than a point is not below zero."""
    *_, ours, verdict = answer
    return isinstance(ours, PairedDifference) and VERDICTS[ours.side] == verdict


def _corrected(answers: Sequence[Found], verdict: str, fewer_than: float = math.inf) -> str:
    """How many of those that can be told stay so after Holm's correction for all that were tested, if so few do."""
    if verdict not in TOLD:
        return ""
    tests = [(ours, said) for *_, ours, said in answers if isinstance(ours, PairedDifference) and said != UNCONFIRMED]
    tests = [(ours, said) for ours, said in tests if ours.p is not None]
    mine = [i for i, (_, said) in enumerate(tests) if said == verdict]
    if not mine or len(tests) < 2 or not all(map(_against_zero, (x for x in answers if x[3] == verdict))):
        return ""
    adjusted = holm([ours.p for ours, _ in tests if ours.p is not None])
    stay = sum(adjusted[i] < LEVEL for i in mine)
    return f" ({stay} after Holm's correction)" if stay < fewer_than else ""
