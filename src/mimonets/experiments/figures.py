"""Draw what an experiment measured, beside what the paper reports."""

import itertools
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mimonets._figure import new_axes, new_figure, save_figure
from mimonets.experiments.experiment import Record

BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
LINE = 0.032  # of the height of the axes, that a line of small print takes
PAPER_STYLE = {"linestyle": "none", "marker": "x", "color": "black", "zorder": 3}


def draw_against_streams(record: Record, path: Path) -> Path:
    """Draw accuracy against inputs per pass, one line per group."""
    figure, axes = new_axes()
    _draw_groups(axes, record["rows"], "streams")
    ticks = sorted({row["streams"] for row in record["rows"]})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel("inputs per pass")
    _finish(axes, record)
    return save_figure(figure, path)


def draw_against_macs(record: Record, path: Path) -> Path:
    """Draw accuracy against multiply-accumulates per input, every row with its name."""
    figure, axes = new_axes(width=7.6, height=5.0)
    rows = [row for row in record["rows"] if "ours" in row]
    draw_named_points(axes, rows, "macs", unit=1e6)
    axes.set_xlabel("MMAC per input")
    figure.suptitle(record["title"], fontsize=10)
    return save_figure(figure, path)


def draw_named_points(axes: Any, rows: Sequence[dict[str, Any]], x: str, unit: float = 1.0) -> None:
    """Draw accuracy against ``x`` on a logarithmic scale, one line per group.

    Rows are named where they stand. Where groups have variants that is too much to read, and a
    legend names the colours of the groups and the markers of the variants.
    """
    if not rows:
        return  # nothing has been run yet
    _draw_groups(axes, rows, x, unit)
    if any(row.get("variant") for row in rows):
        _name_lines(axes.figure, rows)
        low, high = min(row[x] for row in rows) / 1.2, max(row[x] for row in rows) * 1.2
    else:
        low, high = _name_points(axes, rows, x, unit)
    _scale(axes, low / unit, high / unit)
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)


def _scale(axes: Any, low: float, high: float) -> None:
    """Make the axis below logarithmic, with ticks at round numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low > 8 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    ticks = [step * 10.0**power for power in powers for step in steps]
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlim(low, high)


def _name_lines(figure: Any, rows: Sequence[dict[str, Any]]) -> None:
    """Name the colours of groups and the markers of variants, beside the axes."""
    axes = figure.axes[0]
    handles = [
        axes.plot([], [], color=colour, label=group)[0] for group, colour in _colours(rows).items()
    ]
    handles += [
        axes.plot([], [], color="dimgray", linestyle="none", marker=marker, label=variant)[0]
        for variant, marker in _markers(rows).items()
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=8)


def _name_points(
    axes: Any, rows: Sequence[dict[str, Any]], x: str, unit: float
) -> tuple[float, float]:
    """Write every row's name beside its point; returns the ends of an axis with room for them."""
    for near in (2.0, 3.0, 4.0, math.inf):  # wider columns until no name lies on a point
        columns = columns_of(rows, x, near)
        limits = _room_for_names(columns, x)
        places = _places(columns, x, limits, axes.get_ylim())
        if not _cover_points(columns, x, limits, places, axes.get_ylim()):
            break
    _write_names(axes, columns, places, _colours(rows), x, unit)
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


def draw_dots(record: Record, path: Path) -> Path:
    """Draw one dot per row, with its spread over the seeds, and the paper's value as a cross.

    The axis spans what was found, so that differences of a point can be seen.
    """
    rows = [row for row in record["rows"] if row["unit"] == "%"]
    rows = [row for row in rows if "ours" in row] or rows
    figure, axes = new_axes(width=7.6, height=0.8 + 0.34 * len(rows))
    places = range(len(rows))
    colours = _colours(rows)
    for place, row in enumerate(rows):
        colour = colours[row.get("group", "")]
        if "ours" in row:
            spread = _within_percent(row["ours"], row.get("deviation", 0.0))
            sides = [[side] for side in spread]
            axes.errorbar(row["ours"], place, xerr=sides, fmt="o", color=colour, capsize=3)
        if "paper" in row:
            axes.plot(row["paper"], place, **PAPER_STYLE)
    axes.set_yticks(places, [row["what"] for row in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    crosses = " (cross: the paper's)" if any("paper" in row for row in rows) else ""
    axes.set_xlabel(f"test accuracy, %{crosses}")
    axes.figure.suptitle(record["title"], fontsize=10)  # over names and dots: it has room there
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def draw_uncertainty(record: Record, path: Path) -> Path:
    """Draw a panel per data set and measure, a dot per network with its spread over the seeds.

    Titles of rows are "network, data" for the accuracy and "network, data: measure" for the rest.
    """
    rows = [row for row in record["rows"] if "ours" in row]
    panels: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        title, _, measure = row["what"].partition(": ")
        panels.setdefault((title.rpartition(", ")[2], measure or "accuracy"), []).append(row)
    sets, measures = (list(dict.fromkeys(key[side] for key in panels)) for side in (0, 1))
    colours = _colours(record["rows"])
    figure = new_figure(1.4 + 2.1 * max(1, len(measures)), 1.3 + 1.5 * max(1, len(sets)))
    grid = figure.subplots(max(1, len(sets)), max(1, len(measures)), squeeze=False)
    for (name, measure), some in panels.items():
        axes = grid[sets.index(name)][measures.index(measure)]
        for place, row in enumerate(some):
            colour, spread = colours[row.get("group", "")], row.get("deviation")
            axes.errorbar(row["ours"], place, xerr=spread, color=colour, marker="o", capsize=3)
        axes.margins(x=0.15)
        axes.set_yticks([])
        axes.set_ylim(len(some) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel(some[0]["unit"], fontsize=8)
        axes.tick_params(labelsize=8)
        if name == sets[0]:
            axes.set_title(textwrap.fill(measure, 20), fontsize=9)
        if measure == measures[0]:
            axes.set_ylabel(name)
    handles = [
        grid[0][0].plot([], [], color=colour, marker="o", label=group)[0]
        for group, colour in colours.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(record["title"], fontsize=10)
    return save_figure(figure, path)


DRAWINGS = {
    "streams": draw_against_streams,
    "macs": draw_against_macs,
    "trials": draw_dots,
    "uncertainty": draw_uncertainty,
}


def _draw_groups(axes: Any, rows: Sequence[dict[str, Any]], x: str, unit: float = 1.0) -> None:
    """Draw ours as a line per group and variant with error bars, the paper's as crosses."""
    colours, markers = _colours(rows), _markers(rows)
    for group, variant in dict.fromkeys(map(_line_of, rows)):
        points = sorted(
            (row[x] / unit, row["ours"], row.get("deviation", 0.0))
            for row in rows
            if _line_of(row) == (group, variant) and "ours" in row
        )
        if points:
            at, mean, spread = zip(*points, strict=True)
            sides = zip(*map(_within_percent, mean, spread), strict=True)
            style = {"color": colours[group], "marker": markers[variant]}
            axes.errorbar(at, mean, yerr=list(sides), **style, capsize=3, label=group)
    known = {  # where only a recipe of ours stands beside it, its name is not the paper's
        (row[x] / unit, row["paper"]): "" if row.get("our_recipe") else f" {row['what']}"
        for row in sorted(rows, key=lambda row: not row.get("our_recipe", False))
        if "paper" in row
    }
    for point, what in known.items():
        axes.plot(*point, **PAPER_STYLE)
        axes.annotate(
            f"the paper's{what}",
            point,
            xytext=(-8, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=8,
            bbox=BEHIND_TEXT,
        )


def _within_percent(mean: float, deviation: float) -> tuple[float, float]:
    """Say how far an error bar reaches to either side: not below 0 %, not above 100 %.

    >>> _within_percent(98.0, 5.0)
    (5.0, 2.0)
    """
    return min(deviation, mean), min(deviation, 100 - mean)


def _colours(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    groups = dict.fromkeys(row.get("group", "") for row in rows)
    return {group: f"C{index}" for index, group in enumerate(groups)}


def _markers(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    variants = dict.fromkeys(row.get("variant", "") for row in rows)
    return dict(zip(variants, itertools.cycle("osD^v"), strict=False))


def _line_of(row: dict[str, Any]) -> tuple[str, str]:
    return row.get("group", ""), row.get("variant", "")


def _finish(axes: Any, record: Record) -> None:
    axes.set_ylabel("test accuracy, %")
    axes.figure.suptitle(record["title"], fontsize=10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
