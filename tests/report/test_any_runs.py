"""What tells runs apart, in as few words as possible."""

from types import SimpleNamespace

import pytest

from setwise.report.any_runs import differing, group_by, label

PLAIN = {"epochs": 20, "encoder.name": "conv4", "encoder.weights": "xavier", "objective.temperature": 0.1}
GAP = {f"objective.terms.gap.{name}": value for name, value in {"similarity": "cosine", "weight": 100.0}.items()}


def runs(*recipes):
    return [SimpleNamespace(fields=fields, seed=1) for fields in recipes]


@pytest.mark.parametrize(
    ("recipes", "paths", "labels"),
    [
        ([PLAIN | GAP, PLAIN], ["objective.terms.gap.weight"], ["gap 100", "no gap"]),
        ([PLAIN, PLAIN | {"epochs": 5}], ["epochs"], ["epochs 20", "epochs 5"]),
        (
            [PLAIN, {key: value for key, value in PLAIN.items() if key != "encoder.weights"} | {"encoder.name": "vit"}],
            ["encoder.name"],
            ["name conv4", "name vit"],
        ),
        (  # nothing else tells these apart
            [PLAIN | {"encoder.stem": "small"}, PLAIN],
            ["encoder.stem"],
            ["stem small", "no stem"],
        ),
        (  # another similarity is said, one that is not there is not
            [PLAIN | GAP, PLAIN | GAP | {"objective.terms.gap.similarity": "euclidean"}, PLAIN],
            ["objective.terms.gap.similarity", "objective.terms.gap.weight"],
            ["similarity cosine, gap 100", "similarity euclidean, gap 100", "no similarity, no gap"],
        ),
    ],
    ids=["a term", "a number", "an encoder", "an option alone", "a term's option"],
)
def test_as_few_fields_as_tell_the_runs_apart(recipes, paths, labels):
    found = runs(*recipes)
    assert differing(found) == paths
    assert [label(group, paths) for group in group_by(found, paths)] == labels
