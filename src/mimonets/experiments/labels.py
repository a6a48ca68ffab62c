"""Write names beside the points of a plot, so that none lies on a point or on another name."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
LINE = 0.032  # of the height of the axes, that a line of small print takes


def name_points(
    axes: Any, rows: Sequence[dict[str, Any]], x: str, unit: float, colours: dict[str, str]
) -> tuple[float, float]:
    """Write every row's name beside its point; returns the ends of an axis with room for them."""
    for near in (2.0, 3.0, 4.0, math.inf):  # wider columns until no name lies on a point
        columns = columns_of(rows, x, near)
        limits = _room_for_names(columns, x)
        places = _places(columns, x, limits, axes.get_ylim())
        if not _cover_points(columns, x, limits, places, axes.get_ylim()):
            break
    _write_names(axes, columns, places, colours, x, unit)
    return limits


def _room_for_names(columns: list[list[Any]], x: str) -> tuple[float, float]:
    """Find the ends of an axis that has room for the names left and right of all points."""
    low, high = columns[0][0][x], columns[-1][-1][x]
    left, right = _share_of_names(columns[0]), _share_of_names(columns[-1])
    left = left if len(columns) > 1 else 0.1
    width = max(math.log(high / low) / (1 - left - right), 1.0)  # of the axis, names included
    return low * math.exp(-left * width), high * math.exp(right * width)


def _share_of_names(column: list[Any]) -> float:
    """Estimate how much of the width of the axes the longest name takes, in small print."""
    return 0.04 + 0.0075 * min(48, max(len(row["what"]) for row in column))


def _places(
    columns: list[list[Any]], x: str, limits: tuple[float, float], heights: tuple[float, float]
) -> list[tuple[float, list[float]]]:
    """Find where a column's names stand: beside it, the first one's where no lines run.

    Sorts every column by accuracy.
    """
    apart = (limits[1] / limits[0]) ** 0.02
    places = []
    for column in columns:
        left = column is columns[0] and len(columns) > 1
        beside = column[0][x] / apart if left else column[-1][x] * apart
        column.sort(key=lambda row: row["ours"])
        line = LINE * (heights[1] - heights[0])
        places.append((beside, spread_out([row["ours"] for row in column], line)))
    return places


def _cover_points(
    columns: list[list[Any]],
    x: str,
    limits: tuple[float, float],
    places: list[tuple[float, list[float]]],
    heights: tuple[float, float],
) -> bool:
    """Tell whether a name to the right of its column lies on a point of a later one."""
    width, line = math.log(limits[1] / limits[0]), LINE * (heights[1] - heights[0])
    return any(
        start <= point[x] <= start * math.exp(width * 0.0075 * len(row["what"]))
        and abs(point["ours"] - height) < line
        for index, (start, names) in enumerate(places)
        if index > 0
        for row, height in zip(columns[index], names, strict=True)
        for later in columns[index + 1 :]
        for point in later
    )


def _write_names(
    axes: Any,
    columns: list[list[Any]],
    places: list[tuple[float, list[float]]],
    colours: dict[str, str],
    x: str,
    unit: float,
) -> None:
    """Name every point, with a thin line from it to its name."""
    bottom, top = axes.get_ylim()
    line = LINE * (top - bottom)
    for column, (beside, heights) in zip(columns, places, strict=True):
        left = column is columns[0] and len(columns) > 1
        for row, height in zip(column, heights, strict=True):
            axes.annotate(
                row["what"],
                (row[x] / unit, row["ours"]),
                xytext=(beside / unit, height),
                ha="right" if left else "left",
                va="center",
                fontsize=7,
                color="dimgray",
                bbox=BEHIND_TEXT,
                arrowprops={
                    "arrowstyle": "-",
                    "relpos": (1.0 if left else 0.0, 0.5),  # the end of the name that is nearer
                    "color": colours[row.get("group", "")],
                    "linewidth": 0.6,
                    "alpha": 0.6,
                },
            )
        bottom, top = min(bottom, heights[0] - line), max(top, heights[-1] + line)
    axes.set_ylim(bottom, top)


def columns_of(rows: Sequence[dict[str, Any]], x: str, near: float = 2.0) -> list[list[Any]]:
    """Sort rows by ``x``, and part them where one is not near the first of its column.

    >>> [len(column) for column in columns_of([{"x": 2.4}, {"x": 1.0}, {"x": 1.2}], "x")]
    [2, 1]
    """
    columns: list[list[Any]] = []
    for row in sorted(rows, key=lambda row: row[x]):
        if columns and row[x] < near * columns[-1][0][x]:
            columns[-1].append(row)
        else:
            columns.append([row])
    return columns


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Move sorted heights apart, each as little as possible, until neighbours are ``gap`` apart.

    Least squares: blocks of neighbours that touch move as one, to the mean of their wishes.

    >>> spread_out([0.0, 1.0, 1.0, 9.0], 2.0)
    [-1.333..., 0.666..., 2.666..., 9.0]
    """
    blocks: list[list[float]] = []  # wishes of those who touch, each less its place in the line
    for place, height in enumerate(heights):
        blocks.append([height - place * gap])
        while len(blocks) > 1 and fmean(blocks[-2]) > fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    starts = [fmean(block) for block in blocks for _ in block]
    return [start + place * gap for place, start in enumerate(starts)]
