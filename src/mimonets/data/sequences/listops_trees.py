"""Sample ListOps trees, thousands side by side, one level after the other.

A node is an operator with probability 1/4, else a digit; at depth 10 always a digit. An operator
has 2 to 10 arguments. Only trees whose number of tokens lies between two bounds are kept, about
8 % of all at the bounds of LRA. Lengths, positions and values come from sums over siblings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
FIRST_OPERATOR = 11  # token of [MIN; digits 0..9 are tokens 1..10
CLOSE = 15
MAX_DEPTH = 10
OPERATOR_SHARE = 0.25
MAX_ARGUMENTS = 10
BLOCK = 8192  # trees that grow side by side


@dataclass
class _Level:
    """The nodes of all trees at one depth, siblings side by side."""

    parent: Array  # index in the level above; at the root the number of the tree
    operator: Array  # bool
    children: Array  # how many: 0 for digits
    symbol: Array  # a digit, or which operator


def sample_trees(rng: np.random.Generator, least: int, most: int) -> Iterator[tuple[Array, int]]:
    """Yield the tokens (uint8) and the value of the trees with ``least < length < most``.

    They are those of one block of trees; call again for more.
    """
    levels = _grow(rng)
    lengths = _lengths(levels)
    fits = (lengths[0] > least) & (lengths[0] < most)
    levels, lengths = _keep(levels, lengths, fits)
    values = _values(levels)[0]
    starts = np.concatenate([[0], lengths[0].cumsum()])
    tokens = _lay_out(levels, lengths, starts)
    for tree, value in enumerate(values):
        yield tokens[starts[tree] : starts[tree + 1]].copy(), int(value)


def _grow(rng: np.random.Generator) -> list[_Level]:
    levels: list[_Level] = []
    parent = np.zeros(BLOCK, dtype=np.int64)
    for depth in range(1, MAX_DEPTH + 1):
        count = len(parent)
        operator = rng.random(count) < (OPERATOR_SHARE if depth < MAX_DEPTH else 0.0)
        children = np.where(operator, rng.integers(2, MAX_ARGUMENTS + 1, size=count), 0)
        symbol = np.where(operator, rng.integers(4, size=count), rng.integers(10, size=count))
        levels.append(_Level(parent, operator, children, symbol))
        parent = np.repeat(np.arange(count), children)
    return levels


def _lengths(levels: list[_Level]) -> list[Array]:
    """Tokens in the subtree of every node: a digit has 1, an operator 2 and its arguments'."""
    lengths = [np.where(level.operator, 2, 1) for level in levels]
    for depth in range(len(levels) - 1, 0, -1):
        parent = levels[depth].parent
        below = np.bincount(parent, lengths[depth], minlength=len(lengths[depth - 1]))
        lengths[depth - 1] += below.astype(np.int64)
    return lengths


def _keep(
    levels: list[_Level], lengths: list[Array], fits: Array
) -> tuple[list[_Level], list[Array]]:
    """Forget the nodes of the trees that do not fit."""
    kept_levels, kept_lengths = [], []
    keep, above = fits, np.zeros(1, dtype=np.int64)  # the roots have one parent, number 0
    for depth, (level, length) in enumerate(zip(levels, lengths, strict=True)):
        keep = keep[level.parent] if depth else fits
        parent = above[level.parent[keep]]
        kept_levels.append(
            _Level(parent, level.operator[keep], level.children[keep], level.symbol[keep])
        )
        kept_lengths.append(length[keep])
        above = keep.cumsum() - 1  # where a kept node now stands in its level
    return kept_levels, kept_lengths


def _values(levels: list[_Level]) -> list[Array]:
    """Work all trees out, from the leaves up."""
    values = [level.symbol.copy() for level in levels]
    for depth in range(len(levels) - 2, -1, -1):
        level, below = levels[depth], levels[depth + 1]
        nodes = np.flatnonzero(level.operator)
        if not len(nodes):
            continue
        # Sort each operator's arguments: minimum, maximum and median are then places in a row.
        order = np.lexsort((values[depth + 1], below.parent))
        arguments = values[depth + 1][order]
        counts = level.children[nodes]
        starts = counts.cumsum() - counts
        middle = (arguments[starts + (counts - 1) // 2] + arguments[starts + counts // 2]) // 2
        results = np.stack(
            [
                arguments[starts],
                arguments[starts + counts - 1],
                middle,
                np.add.reduceat(arguments, starts) % 10,
            ]
        )
        values[depth][nodes] = results[level.symbol[nodes], np.arange(len(nodes))]
    return values


def _lay_out(levels: list[_Level], lengths: list[Array], tree_starts: Array) -> Array:
    """Write all trees one after the other, operators before and X after their arguments."""
    tokens = np.zeros(tree_starts[-1], dtype=np.uint8)
    starts = tree_starts[:-1]
    for depth, level in enumerate(levels):
        if depth:
            # After the operator and the siblings that come before.
            before = lengths[depth].cumsum() - lengths[depth]
            first = np.searchsorted(level.parent, level.parent)
            starts = starts[level.parent] + 1 + before - before[first]
        first_token = np.where(level.operator, FIRST_OPERATOR, 1)
        tokens[starts] = first_token + level.symbol
        nodes = np.flatnonzero(level.operator)
        tokens[starts[nodes] + lengths[depth][nodes] - 1] = CLOSE
    return tokens
