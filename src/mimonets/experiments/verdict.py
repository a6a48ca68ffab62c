"""One number of ours beside the paper's, and the verdict on the two."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal[
    "reproduced",  # by the paper's recipe, within what seeds explain
    "reached",  # the same accuracy, by a recipe of ours
    "exceeded",  # above that
    "unclear",  # seeds vary too much to tell, or there is only one
    "holds",  # a bound, by simulation
    "differs",  # none of these
    "scaled down",  # trained for less than the paper's recipe asks
    "diverged",  # training came to nothing with some seed
    "no value in the paper",
    "not run",
]
PAPER_SEEDS = 5  # "All experiments are repeated five times with a different random seed."
LEAST_POINTS, MOST_POINTS = 1.0, 3.0  # accuracies this far apart are the same; never further apart


@dataclass(frozen=True)
class Row:
    """One number of ours beside the paper's, and what to make of the two.

    >>> Row("WideResNet-28-10", "MMAC", 5250.3, 5251, tolerance=1).verdict
    'reproduced'
    >>> Row("MIMOConv, N=16", "%", 91.0, 80.4, tolerance=1, more_is_better=True).verdict
    'exceeded'
    """

    what: str
    unit: str
    ours: float | None  # None: not run
    paper: float | None = None  # None: the paper does not say
    at_most: float | None = None  # a bound on ours
    tolerance: float = 0.0  # how far two numbers may lie apart and still be the same
    noise: float = 0.0  # how far seeds alone may put them apart
    deviation: float | None = None  # over the seeds
    paper_deviation: float | None = None
    seeds: int | None = None
    more_is_better: bool = False
    our_recipe: bool = False  # trained by a recipe of ours, not the paper's
    scaled_down: bool = False  # less data, steps or width than the paper's
    macs: float | None = None  # per input, where accuracy is weighed against cost
    streams: int | None = None  # inputs per pass
    group: str = ""  # the line it belongs to in a plot
    variant: str = ""  # such as how long it is trained: a panel of its own in a plot
    diverged: int = 0  # seeds that came to nothing and are not in the mean
    note: str = ""
    by_seed: Mapping[int, float] = field(default_factory=dict)  # what ours is the mean of

    @property
    def verdict(self) -> Verdict:
        """Say at a glance how ours relates to the paper's."""
        if self.diverged:
            return "diverged"
        if self.ours is None:
            return "not run"
        if self.at_most is not None:
            return "holds" if self.ours <= self.at_most + self.tolerance else "differs"
        if self.paper is None:
            return "scaled down" if self.scaled_down else "no value in the paper"
        apart = self.ours - self.paper
        if self.more_is_better and apart > max(self.tolerance, self.noise):
            return "exceeded"
        if self.scaled_down:
            return "scaled down"
        if abs(apart) <= self.tolerance:
            return "reached" if self.our_recipe else "reproduced"
        one_seed = self.seeds == 1  # shows that a value can be reached, not that it cannot
        return "unclear" if one_seed or abs(apart) <= self.noise else "differs"

    def as_dict(self) -> dict[str, Any]:
        """Give everything that is known as plain data."""
        known = {name: value for name, value in asdict(self).items() if value not in (None, "")}
        del known["by_seed"]  # the runs have it
        for name in ("diverged", "noise", "our_recipe"):
            if not known[name]:
                del known[name]
        return {**known, "verdict": self.verdict}


def accuracy_row(
    what: str,
    ours: float | None,
    deviation: float | None,
    seeds: int,
    paper: tuple[float | None, float | None],
    **more: Any,
) -> Row:
    """Compare accuracies in percent, each a mean with its deviation over seeds.

    They are the same if no further apart than seeds explain: one point at least, three at most.
    One seed that is further apart leaves it unclear.

    >>> accuracy_row("small spreads", 96.0, 0.5, 5, (95.2, 0.5)).verdict
    'reproduced'
    >>> accuracy_row("large spreads", 85.67, 19.41, 3, (93.64, 12.66)).verdict
    'unclear'
    >>> accuracy_row("one seed", 54.4, None, 1, (52.9, None)).verdict
    'unclear'
    """
    mean, paper_deviation = paper
    noise = seed_noise((deviation, seeds), (paper_deviation, PAPER_SEEDS))
    tolerance = same_within(noise)
    if deviation is None and paper_deviation is None and seeds:
        noise = MOST_POINTS
    return Row(
        what,
        "%",
        ours,
        mean,
        tolerance=tolerance,
        noise=noise,
        deviation=deviation,
        paper_deviation=paper_deviation,
        seeds=seeds,
        more_is_better=True,
        **more,
    )


def same_within(noise: float) -> float:
    """Say how far two accuracies may lie apart and still be the same, in points."""
    return min(max(noise, LEAST_POINTS), MOST_POINTS)


def seed_noise(one: tuple[float | None, int], two: tuple[float | None, int]) -> float:
    r"""Say how far two means may lie apart by their seeds alone: two standard errors.

    .. math:: 2 \sqrt{s_1^2 / n_1 + s_2^2 / n_2}

    A deviation that is not known is taken to be the other one; 0 if neither is known.

    Args:
        one: deviation over the seeds, and how many there were.
        two: likewise.

    >>> round(seed_noise((3.0, 9), (4.0, 4)), 2), round(seed_noise((None, 1), (4.0, 4)), 2)
    (4.47, 8.94)
    """
    (s1, n1), (s2, n2) = one, two
    known = s1 if s1 is not None else s2
    if known is None or n1 == 0 or n2 == 0:
        return 0.0
    s1, s2 = known if s1 is None else s1, known if s2 is None else s2
    return 2 * math.sqrt(s1**2 / n1 + s2**2 / n2)
