"""Plan a width: how likely streams interfere, how many fit, and what the bounds do not cover."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from mimonets.theory.cleanup import cleanup_noise_typical, wrong_item_bound
from mimonets.theory.dimensionality import (
    MANY,
    any_pair_bound,
    check_counts,
    check_probability,
    interference_bound,
    interference_probability,
    streams_apart,
    width_apart,
)
from mimonets.theory.interference import PAPER_BOUNDS, bernstein, typical_crosstalk, typical_peak
from mimonets.vsa import squarest_grid

Bound = Callable[[int, int], float]  # of width and streams
MOST_WIDTH, MOST_STREAMS = 2**16, 2**12  # what a plan is asked about
WIDEST = 2**20  # where the search for a width ends

NOT_COVERED = (
    "Learned keys: the bounds are about random keys. Training may spread keys better than chance "
    "or worse; MIMOConv's stream-key penalty pulls them apart.",
    "Nonlinear trunks: they speak of values that are added up and read again. What a trunk of "
    "convolutions and ReLU does to a superposition between binding and unbinding is not in them.",
    "Correlated inputs: reading and attention assume streams of equal norm and unrelated "
    "directions. Values that share a few large entries interfere more than this says.",
    "Pairs that should not attend: an error is counted relative to the score without other "
    "streams, so at cosine 0 the attention bounds say nothing.",
    "ReLU features: they see the norm of a superposition as well as its products, and flatten with "
    "every stream, interference or not (superposed_relu_kernel).",
    "Accuracy: a network is trained to live with interference. A bound near 1 is no forecast of "
    "failure, and a small one no promise.",
)


@dataclass(frozen=True)
class Line:
    """One question to a width and a number of streams."""

    question: str
    source: str
    bound: float  # on the probability; above 1 it says nothing
    streams_carried: int  # the most with the bound within the tolerated probability, up to 4,096
    width_needed: int | None  # the least for the wished number of streams; None: beyond a million


@dataclass(frozen=True)
class WidthPlan:
    """What the bounds say about a width, and what they do not."""

    dim: int
    num_streams: int
    grid: tuple[int, int]
    angle: float
    probability: float
    alpha: float
    cosine: float
    items: int
    tokens: int
    pair_bound: float
    pair_probability: float
    lines: tuple[Line, ...]
    not_covered: tuple[str, ...] = NOT_COVERED

    def as_dict(self) -> dict[str, Any]:
        """Give the plan as plain data."""
        return asdict(self)


def plan(
    dim: int,
    num_streams: int,
    *,
    angle: float = 70.0,
    probability: float = 0.05,
    alpha: float = 0.5,
    cosine: float = 1.0,
    items: int = 10,
    tokens: int = 1,
) -> WidthPlan:
    """Say how likely interference is, how many streams the width carries, and what they need.

    Args:
        dim: The width of keys: the maps after MIMOConv's first layer, or MIMOFormer's head size.
        num_streams: N, how many inputs shall share a pass. In attention they stand on the grid that
            is nearest to a square.
        angle: Two keys interfere within this angle, in degrees.
        probability: How much interference is tolerated.
        alpha: A comparison or score may be off by this share of itself.
        cosine: How well value and dictionary entry, or key and query, are aligned.
        items: Entries of the dictionary, or classes.
        tokens: Keys that one query is compared with; a union over them.

    >>> found = plan(64, 4)
    >>> round(found.pair_bound, 4), found.grid, found.lines[0].streams_carried
    (0.0474, (2, 2), 2)
    """
    check_counts(MOST_WIDTH, dim=dim)
    check_counts(MOST_STREAMS, num_streams=num_streams)
    check_counts(MANY, items=items, tokens=tokens)
    check_probability(probability)
    if not alpha > 0:
        raise ValueError(f"alpha={alpha} does not fit: tolerate a share above 0, such as 0.5.")
    if not 0 < abs(cosine) <= 1:
        raise ValueError(
            f"cosine={cosine} does not fit: pass a number from -1 to 1 other than 0; at 0 there is "
            f"nothing to read, and no bound."
        )

    def noise(width: int, streams: int) -> float:
        return cleanup_noise_typical(width, streams, alpha, cosine)

    def wrong(width: int, streams: int) -> float:
        return wrong_item_bound(width, streams, items)

    def attention(width: int, streams: int) -> float:
        table = typical_crosstalk(width, squarest_grid(streams), alpha, cosine)
        return tokens * min(bound(table) for bound in PAPER_BOUNDS.values())

    def attention_sharper(width: int, streams: int) -> float:
        grid = squarest_grid(streams)
        table = typical_crosstalk(width, grid, alpha, cosine)
        return tokens * bernstein(table, typical_peak(width, grid, alpha, cosine))

    off = f"off by more than {alpha:.0%}"
    over = f" for any of {tokens} tokens" if tokens > 1 else ""
    keys_apart = Line(
        f"any two of {num_streams} keys within {angle:g}° (or beyond {180 - angle:g}°)",
        "A.2, union over pairs",
        any_pair_bound(dim, num_streams, angle),
        min(streams_apart(dim, probability, angle), MOST_STREAMS),
        width_apart(num_streams, probability, angle),
    )
    questions: tuple[tuple[str, str, Bound], ...] = (
        (f"a value read from {num_streams} streams {off}", "A.3", noise),
        (f"a wrong one of {items} entries read", "ours", wrong),
        (f"an attention score {off}{over}", "D, least of four", attention),
        (f"an attention score {off}{over}", "ours, Bernstein", attention_sharper),
    )
    lines = [keys_apart]
    for question, source, bound in questions:
        carried = _most(bound, dim, probability)
        needed = _least(bound, num_streams, probability)
        lines.append(Line(question, source, bound(dim, num_streams), carried, needed))
    return WidthPlan(
        dim,
        num_streams,
        squarest_grid(num_streams),
        angle,
        probability,
        alpha,
        cosine,
        items,
        tokens,
        interference_bound(dim, angle),
        interference_probability(dim, angle),
        tuple(lines),
    )


def _most(bound: Bound, dim: int, probability: float) -> int:
    """Find the largest number of streams that fits, 1 at least; the bounds grow with it."""
    return _bisect(lambda streams: bound(dim, streams) > probability, 2, MOST_STREAMS) - 1


def _least(bound: Bound, num_streams: int, probability: float) -> int | None:
    """Find the smallest width that fits."""
    found = _bisect(lambda width: bound(width, num_streams) <= probability, 1, WIDEST)
    return found if found <= WIDEST else None


def _bisect(holds: Callable[[int], bool], low: int, limit: int) -> int:
    """Find the first number from low on that holds, or limit + 1; once it holds, it goes on to."""
    high = limit + 1
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
