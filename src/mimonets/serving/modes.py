r"""Operating points of a served network: what each costs, how right it is, how long it takes.

A mode is all that the policy sees of a network. For a superposed network the modes are its numbers
of active streams; a big and a small network, or one network at two resolutions, are two modes with
one input per pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

# A active streams   n inputs   c seconds per call   p per pass   s per input


@dataclass(frozen=True)
class ServiceTime:
    r"""How long inputs take: c for each call of the engine, p for each pass, s for each input.

    >>> ServiceTime(per_call=1.0, per_pass=8.0, per_input=0.5).of(7, active_streams=4)
    21.5
    """

    per_call: float = 0.0  # c, seconds
    per_pass: float = 0.0  # p, seconds
    per_input: float = 0.0  # s, seconds

    def of(self, inputs: int, active_streams: int) -> float:
        r"""Predict the time of one batch.

        .. math:: T(A, n) = c + p \lceil n / A \rceil + s n

        A short last group is a call of its own, so it costs one more c.
        """
        calls, passes = calls_and_passes(inputs, active_streams)
        return self.per_call * calls + self.per_pass * passes + self.per_input * inputs


@dataclass(frozen=True)
class Mode:
    """One operating point of a network."""

    active_streams: int  # A: inputs that share a pass; 1 for a network without superposition
    time: ServiceTime
    accuracy: float | None = None  # fraction of right answers on test data, where it is known
    name: str = ""  # which network or resolution, where there are several
    confidence: float | None = None  # cascade: answers below it are worth a rerun in slow mode
    point: int = 0  # which of the network's ways to run it is

    @property
    def cost(self) -> float:
        """Seconds per input when all groups are full and the batch is large."""
        return self.time.per_pass / self.active_streams + self.time.per_input

    @property
    def seconds_of_a_group(self) -> float:
        """Seconds that one full group takes."""
        return self.time.of(self.active_streams, self.active_streams)


def calls_and_passes(inputs: int, active_streams: int) -> tuple[int, int]:
    """Count calls of the engine and passes for a batch: full groups in one call, a rest in another.

    >>> calls_and_passes(7, 4), calls_and_passes(8, 4), calls_and_passes(3, 4)
    ((2, 2), (1, 2), (1, 1))
    """
    full, rest = divmod(inputs, active_streams)
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
            # A pass that seems to be free is noise of a busy machine: all modes would cost the
            # same, and the fast ones would be dropped.
            if shares_passes and 1 not in chosen:
                continue
            found, *_ = np.linalg.lstsq(rows[:, chosen], np.ones(len(seconds)), rcond=None)
            error = float(np.sum((rows[:, chosen] @ found - 1) ** 2))
            if found.min() >= 0 and error < best_error - 1e-12:
                best, best_error = np.zeros(3), error
                best[list(chosen)] = found
    return ServiceTime(*(float(value) for value in best))


def useful_modes(modes: Sequence[Mode]) -> list[Mode]:
    """Keep the modes on the concave hull of (cost, accuracy), most accurate first.

    A mode below the line between two others is never worth it: a mixture of the two costs the same
    and is more accurate. Where an accuracy is unknown, dearer is taken to be more accurate.

    >>> def mode(cost, accuracy): return Mode(1, ServiceTime(per_pass=cost), accuracy)
    >>> [m.cost for m in useful_modes([mode(8, 0.99), mode(6, 0.5), mode(2, 0.95), mode(9, 0.9)])]
    [8.0, 2.0]
    """
    if not modes:
        raise ValueError("A server needs at least one mode.")
    by_cost = sorted(modes, key=lambda mode: (-mode.cost, -(mode.accuracy or 0.0)))
    if any(mode.accuracy is None for mode in modes):
        return by_cost
    best = max(by_cost, key=lambda mode: (_accuracy(mode), -mode.cost))
    hull: list[Mode] = []
    for mode in by_cost[by_cost.index(best) :]:
        if hull and mode.cost == hull[-1].cost:  # as dear, and no more accurate
            continue
        while len(hull) >= 2 and _is_below(hull[-2], hull[-1], mode):
            hull.pop()
        hull.append(mode)
    return hull


def _accuracy(mode: Mode) -> float:
    assert mode.accuracy is not None
    return mode.accuracy


def _is_below(dear: Mode, middle: Mode, cheap: Mode) -> bool:
    """Tell whether the middle mode lies on or below the line between the two others."""
    share = (middle.cost - cheap.cost) / (dear.cost - cheap.cost)
    mixture = share * _accuracy(dear) + (1 - share) * _accuracy(cheap)
    return _accuracy(middle) <= mixture
