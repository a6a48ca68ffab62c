import math

import pytest
import torch

from mimonets.evaluation.accuracy import expected_calibration_error
from mimonets.experiments.robustness import auroc, confidence, judge


def auroc_by_pairs(own, foreign):
    wins = [1.0 if s > t else 0.5 if s == t else 0.0 for s in own for t in foreign]
    return sum(wins) / len(wins)


@pytest.mark.parametrize("steps", [3, 1000])  # few values: many ties
def test_auroc_is_the_share_of_pairs_in_order(steps):
    generator = torch.Generator().manual_seed(0)
    own = torch.randint(steps, (31,), generator=generator).double()
    foreign = torch.randint(steps, (17,), generator=generator).double() - 0.2 * steps
    foreign = foreign.round()
    expected = auroc_by_pairs(own.tolist(), foreign.tolist())
    assert auroc(own, foreign) == pytest.approx(expected, abs=1e-12)
    assert auroc(foreign, own) == pytest.approx(1 - expected, abs=1e-12)


def test_scores_that_cannot_be_ranked_are_refused():
    with pytest.raises(ValueError, match="The 0 foreign scores cannot be ranked"):
        auroc(torch.ones(2), torch.ones(0))
    with pytest.raises(ValueError, match="The 2 own scores cannot be ranked.*finite"):
        auroc(torch.tensor([1.0, math.nan]), torch.ones(1))


def test_answers_are_judged_as_by_hand():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(23, 5, generator=generator)
    labels = torch.randint(5, (23,), generator=generator)
    right, nats = 0, 0.0
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        right += row.index(max(row)) == label
        nats -= row[label] - math.log(sum(math.exp(value) for value in row))
    found = judge(logits, labels)
    assert found["accuracy"] == pytest.approx(right / 23)
    assert found["negative_log_likelihood"] == pytest.approx(nats / 23)
    assert found["calibration_error"] == expected_calibration_error(logits, labels)


def test_confidence_is_the_largest_probability():
    logits = torch.tensor([[0.0, math.log(3.0)], [2.0, 2.0]])
    assert confidence(logits).tolist() == pytest.approx([0.75, 0.5])
