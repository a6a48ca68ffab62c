"""Random keys are nearly orthogonal, and how nearly. MIMONets, appendices A.2 and G."""

import math

from mimonets._config import is_integer

MANY = 10**9  # counts of streams stop here: more keys than any network has use for


def interference_bound(dim: int, angle: float = 70.0) -> float:
    r"""Bound the chance that two random keys are within ``angle`` degrees, on either side.

    .. math:: P(|\cos \angle(x, y)| \ge \alpha) \le 2 e^{-D \alpha^2 / 2},
        \qquad \alpha = \cos(\text{angle})

    Appendix A.2, "Blessing of dimensionality", for independent bipolar keys with fair signs. It
    holds for Gaussian keys too, whose directions are uniform (a cap of the sphere has at most the
    share :math:`e^{-D \alpha^2 / 2}`). Both sides count: an angle above 180 - ``angle`` interferes
    as well. For the narrower event that the paper's text names, "less than 70 degrees", half of
    this is enough. Above 1 it says nothing.

    >>> round(interference_bound(16), 3), round(interference_bound(64), 4)  # the paper's figures
    (0.785, 0.0474)
    """
    check_counts(dim=dim)
    return 2 * math.exp(-dim * cutoff(angle) ** 2 / 2)


def interference_probability(dim: int, angle: float = 70.0) -> float:
    r"""Give that chance exactly, for bipolar keys: a binomial tail.

    .. math:: \langle x, y \rangle = D - 2 h, \qquad h \sim \mathrm{Bin}(D, 1/2)

    >>> round(interference_probability(16), 3), round(interference_probability(64), 4)
    (0.21, 0.0081)
    """
    check_counts(dim=dim)
    least = cutoff(angle) * dim - 1e-9  # cos(60°) is a little above 1/2 in floating point
    if least <= 0:
        return 1.0
    most_flips = math.floor((dim - least) / 2)
    ways, count = 0, 1
    for flips in range(most_flips + 1):
        ways += count
        count = count * (dim - flips) // (flips + 1)
    return 2 * ways / 2**dim


def any_pair_bound(dim: int, num_streams: int, angle: float = 70.0) -> float:
    r"""Bound the chance that any two of N keys interfere: the union over all pairs.

    .. math:: P \le \tfrac{N (N - 1)}{2} \, 2 e^{-D \alpha^2 / 2}

    Not in the paper, which looks at two keys; N streams need all of their pairs apart.

    >>> round(any_pair_bound(64, 4), 3)
    0.284
    """
    check_counts(num_streams=num_streams)
    return math.comb(num_streams, 2) * interference_bound(dim, angle)


def streams_apart(dim: int, probability: float, angle: float = 70.0) -> int:
    """Count the keys that a width carries before :func:`any_pair_bound` exceeds ``probability``.

    Stops counting at a thousand million.

    >>> [streams_apart(dim, 0.05) for dim in (16, 64, 128, 256)]
    [1, 2, 9, 399]
    """
    check_counts(dim=dim)
    check_probability(probability)
    log_pairs = math.log(probability / 2) + dim * cutoff(angle) ** 2 / 2
    if log_pairs > 2 * math.log(MANY):
        return MANY
    streams = int((1 + math.sqrt(1 + 8 * math.exp(log_pairs))) / 2)
    return max(streams, 1)


def width_apart(num_streams: int, probability: float, angle: float = 70.0) -> int:
    r"""Give the width from which N keys are apart but for ``probability``.

    .. math:: D \ge \frac{2}{\alpha^2} \ln \frac{N (N - 1)}{P}

    The logarithm is the blessing: keys can be squared in number by doubling the width.

    >>> [width_apart(streams, 0.05) for streams in (2, 4, 16, 256)]
    [64, 94, 145, 241]
    """
    check_counts(num_streams=num_streams)
    check_probability(probability)
    pairs = math.comb(num_streams, 2)
    if pairs == 0:
        return 1
    if cutoff(angle) == 0:
        raise ValueError(
            "No width keeps random keys at 90 degrees exactly: ask for an angle below 90."
        )
    return max(1, math.ceil(2 / cutoff(angle) ** 2 * math.log(2 * pairs / probability)))


def hadamard_norm_mean(dim: int) -> float:
    r"""Give the mean square norm of a Hadamard product of two unit vectors.

    .. math:: E[\|X \odot Y\|^2] = \tfrac{1}{D}

    Appendix G, "On the norm of Hadamard products": Y is uniform on the sphere and independent of X,
    whatever distribution X has.

    >>> hadamard_norm_mean(64)
    0.015625
    """
    check_counts(dim=dim)
    return 1 / dim


def hadamard_norm_tail(beta: float) -> float:
    r"""Bound the chance that it exceeds its mean by the factor 1 + beta.

    .. math:: P(\|X \odot Y\|^2 > \tfrac{1 + \beta}{D}) \le \tfrac{1}{1 + \beta}

    The complement of the paper's :math:`P(\cdot \le (1 + \beta)/D) \ge 1/(1 + 1/\beta)`. It is
    Markov's inequality, so it is the same for every D and far above the truth for large D.

    >>> hadamard_norm_tail(1.0)
    0.5
    """
    if not beta >= 0:
        raise ValueError(f"beta={beta} is no excess over the mean: pass 0 or more.")
    return 1 / (1 + beta)


def cutoff(angle: float) -> float:
    """Turn an angle in degrees into the cosine from which two keys interfere.

    >>> round(cutoff(70.0), 4), cutoff(90.0)
    (0.342, 0.0)
    """
    if not 0 <= angle <= 90:
        raise ValueError(
            f"angle={angle} is out of range: keys interfere within an angle of 0 to 90 degrees; "
            f"the paper takes 70."
        )
    return 0.0 if angle == 90 else math.cos(math.radians(angle))


def check_counts(most: int | None = None, **counts: int) -> None:
    """Refuse what is no number of dimensions, streams, entries or tokens."""
    for name, value in counts.items():
        if not is_integer(value) or value < 1 or (most is not None and value > most):
            limits = ">= 1" if most is None else f"from 1 to {most}"
            raise ValueError(f"{name}={value} does not fit: pass an integer {limits}.")


def check_probability(probability: float) -> None:
    """Refuse a probability that needs no bound."""
    if not 0 < probability < 1:
        raise ValueError(
            f"probability={probability} does not fit: tolerate something between 0 and 1, "
            f"such as 0.05."
        )
