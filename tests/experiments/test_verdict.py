"""Verdicts on accuracies follow from both spreads."""

import random
import statistics

import pytest

from mimonets.experiments.verdict import PAPER_SEEDS, accuracy_row, seed_noise


@pytest.mark.parametrize(
    ("ours", "paper", "verdict"),
    [
        ((80.9, 0.1, 5), (80.0, 0.1), "reproduced"),  # within a point
        ((81.1, 0.1, 5), (80.0, 0.1), "exceeded"),
        ((78.9, 0.1, 5), (80.0, 0.1), "differs"),
        ((78.0, 1.8, 5), (80.0, 1.8), "reproduced"),  # within what seeds explain
        ((76.9, 9.0, 5), (80.0, 9.0), "unclear"),  # seeds explain it, but it is too far
        ((68.0, 9.0, 5), (80.0, 9.0), "differs"),  # seeds do not explain it
        ((79.5, None, 1), (80.0, None), "reproduced"),
        ((78.5, None, 1), (80.0, None), "unclear"),
        ((82.5, None, 1), (80.0, None), "unclear"),
        ((76.5, None, 1), (80.0, None), "unclear"),  # one seed shows no difference
        ((83.5, None, 1), (80.0, None), "exceeded"),
        ((85.67, 19.41, 3), (93.64, 12.66), "unclear"),  # DPFP, associative recall
    ],
)
def test_accuracies_are_judged_by_both_spreads(ours, paper, verdict):
    assert accuracy_row("anything", *ours, paper).verdict == verdict


def test_no_more_than_three_points_are_ever_called_reproduced():
    draw = random.Random(0)
    for _ in range(2000):
        ours = draw.uniform(0, 100), draw.choice([None, draw.uniform(0, 40)]), draw.randint(1, 5)
        paper = draw.uniform(0, 100), draw.choice([None, draw.uniform(0, 40)])
        if abs(ours[0] - paper[0]) > 3:
            assert accuracy_row("anything", *ours, paper).verdict != "reproduced"


def test_the_noise_of_seeds_covers_nearly_all_differences_of_equal_recipes():
    draw = random.Random(0)
    apart = []
    for _ in range(2000):
        ours = [draw.gauss(80, 2) for _ in range(5)]
        papers = [draw.gauss(80, 2) for _ in range(PAPER_SEEDS)]
        apart.append(abs(statistics.mean(ours) - statistics.mean(papers)))
    noise = seed_noise((2.0, 5), (2.0, PAPER_SEEDS))
    assert 0.93 < statistics.mean(distance <= noise for distance in apart) < 0.97
    assert seed_noise((None, 5), (None, 5)) == 0
