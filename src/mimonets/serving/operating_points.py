"""Operating points of a served network: how each runs, how accurate it is, how long it takes.

They are all that the policy sees of a network.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from mimonets._operating_point import OperatingPoint

Array = np.ndarray[Any, Any]
Run = Callable[[Array], Array]

# A inputs per pass   n inputs   c seconds per call   p per pass   s per input


@dataclass(frozen=True)
class ServiceTime:
    r"""How long inputs take: c for each call of the engine, p for each pass, s for each input.

    >>> ServiceTime(per_call=1.0, per_pass=8.0, per_input=0.5).of(7, inputs_per_pass=4)
    21.5
    """

    per_call: float = 0.0  # c, seconds
    per_pass: float = 0.0  # p, seconds
    per_input: float = 0.0  # s, seconds

    def of(self, inputs: int, inputs_per_pass: int) -> float:
        r"""Predict the time of one batch.

        .. math:: T(A, n) = c + p \lceil n / A \rceil + s n

        A short last group is a call of its own, so it costs one more c.
        """
        calls, passes = calls_and_passes(inputs, inputs_per_pass)
        return self.per_call * calls + self.per_pass * passes + self.per_input * inputs


UNMEASURED = ServiceTime()


def _run_nothing(inputs: Array) -> Array:
    raise RuntimeError("This operating point has no network to run: it is for simulation only.")


@dataclass(frozen=True, kw_only=True)
class ServedPoint(OperatingPoint):
    """An operating point with what only a server knows: how it runs, and how long that takes."""

    run: Run = _run_nothing  # answers whole groups of inputs
    family: str = ""  # points of one family share c, p and s
    time: ServiceTime = UNMEASURED
    confidence: float | None = None  # cascade: answers below it are worth a rerun in slow mode
    # What neighbours change: "no", the answer depends on them; "rounding", on how many there are,
    # by rounding; "bits", nothing. Found when a network is loaded.
    independent: str = "no"

    @property
    def cost(self) -> float:
        """Seconds per input when all groups are full and the batch is large."""
        return self.time.per_pass / self.inputs_per_pass + self.time.per_input

    def seconds(self, inputs: int) -> float:
        """Predict the time of one batch."""
        return self.time.of(inputs, self.inputs_per_pass)

    def answer(self, inputs: Array) -> Array:
        """Answer a batch; copies fill a last group that is short.

        Left to itself, an engine would run it in a mode that was not chosen to be served.
        """
        left = len(inputs) % self.inputs_per_pass
        if left == 0:
            return np.asarray(self.run(inputs))
        whole = len(inputs) - left
        rows = np.concatenate([np.arange(whole), whole + np.arange(self.inputs_per_pass) % left])
        return np.asarray(self.run(inputs[rows]))[: len(inputs)]


def calls_and_passes(inputs: int, inputs_per_pass: int) -> tuple[int, int]:
    """Count calls of the engine and passes for a batch: full groups in one call, a rest in another.

    >>> calls_and_passes(7, 4), calls_and_passes(8, 4), calls_and_passes(3, 4)
    ((2, 2), (1, 2), (1, 1))
    """
    full, rest = divmod(inputs, inputs_per_pass)
    return (full > 0) + (rest > 0), full + (rest > 0)


def fit_service_time(measured: Mapping[tuple[int, int], float]) -> ServiceTime:
    r"""Fit c, p and s >= 0 to measured times {(A, n): seconds}, by least squares of relative error.

    >>> exact = ServiceTime(per_call=0.001, per_pass=0.008, per_input=0.0005)
    >>> times = {(A, n): exact.of(n, A) for A in (1, 2, 4) for n in (1, 3, 4, 8)}
    >>> fitted = fit_service_time(times)
    >>> [round(value, 6) for value in (fitted.per_call, fitted.per_pass, fitted.per_input)]
    [0.001, 0.008, 0.0005]
    """
    if not measured or min(measured.values()) <= 0:
        raise ValueError("A service time is fitted to at least one measured time, all above 0.")
    rows = np.array([(*calls_and_passes(n, A), n) for A, n in measured], dtype=float)
    seconds = np.array(list(measured.values()))
    rows /= seconds[:, None]
    best, best_error = np.zeros(3), np.inf
    shares_passes = any(A > 1 for A, _ in measured)
    # Three unknowns: least squares with each subset of them, and the best without a negative one.
    for count in (1, 2, 3):
        for chosen in combinations(range(3), count):
            # A pass that seems to be free is noise of a busy machine: all points would cost the
            # same, and the fast ones would be dropped.
            if shares_passes and 1 not in chosen:
                continue
            found, *_ = np.linalg.lstsq(rows[:, chosen], np.ones(len(seconds)), rcond=None)
            error = float(np.sum((rows[:, chosen] @ found - 1) ** 2))
            if found.min() >= 0 and error < best_error - 1e-12:
                best, best_error = np.zeros(3), error
                best[list(chosen)] = found
    return ServiceTime(*(float(value) for value in best))


def useful_points(points: Sequence[ServedPoint]) -> list[ServedPoint]:
    """Keep the points on the concave hull of (cost, accuracy), most accurate first.

    A point below the line between two others is never worth it: a mixture of the two costs the same
    and is more accurate. Where an accuracy is unknown, dearer is taken to be more accurate.

    >>> points = [
    ...     ServedPoint(number=i, name="", time=ServiceTime(per_pass=cost), accuracy=accuracy)
    ...     for i, (cost, accuracy) in enumerate([(8, 0.99), (6, 0.5), (2, 0.95), (9, 0.9)])
    ... ]
    >>> [point.cost for point in useful_points(points)]
    [8.0, 2.0]
    """
    if not points:
        raise ValueError("A server needs at least one operating point.")
    by_cost = sorted(points, key=lambda point: (-point.cost, -(point.accuracy or 0.0)))
    if any(point.accuracy is None for point in points):
        return by_cost
    best = max(by_cost, key=lambda point: (point.accuracy or 0.0, -point.cost))
    hull: list[ServedPoint] = []
    for point in by_cost[by_cost.index(best) :]:
        if hull and point.cost == hull[-1].cost:  # as dear, and no more accurate
            continue
        while len(hull) >= 2 and _is_below(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _is_below(dear: ServedPoint, middle: ServedPoint, cheap: ServedPoint) -> bool:
    """Tell whether the middle point lies on or below the line between the two others."""
    share = (middle.cost - cheap.cost) / (dear.cost - cheap.cost)
    mixture = share * (dear.accuracy or 0.0) + (1 - share) * (cheap.accuracy or 0.0)
    return (middle.accuracy or 0.0) <= mixture
