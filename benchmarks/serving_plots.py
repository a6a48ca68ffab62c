"""Plots of the serving benchmark: against load, for the two traces, and in a spike."""

from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from mimonets._figure import (
    legend_below,
    log_percent,
    new_figure,
    points_around_zero,
    rule_colour,
    save_figure,
)

LABELS = {
    "policy": "mimonets: by load",
    "fixed 1": "always 1 active",
    "fixed 2": "always 2 active",
    "fixed 3": "always 3 active",
    "fixed 4": "always 4 active",
    "big/small": "big/small network by load",
    "LitServe, 1 active": "LitServe, 1 active",
    "LitServe, 4 active": "LitServe, 4 active",
    "Ray Serve, 1 active": "Ray Serve, 1 active",
    "Ray Serve, 4 active": "Ray Serve, 4 active",
}
COURSES = {
    "spike": "a spike in the middle",
    "azure-llm-2023-code": "arrivals of a coding assistant",
    "azure-llm-2023-conv": "arrivals of a chat service",
}


def look(name: str) -> dict:
    """Choose how a server is drawn; ours is thicker, one active of others dotted."""
    dashed = "--" if name == "big/small" or name.endswith("4 active") else "-"
    style = ":" if name.endswith(", 1 active") else dashed
    width = 2.4 if name == "policy" else 1.3
    colour = rule_colour(LABELS[name])
    return {"color": colour, "linestyle": style, "linewidth": width, "label": LABELS[name]}


def draw(record: dict, path: Path) -> Path:
    """Draw what is lost, how far by load is ahead, p99, and three courses of arrivals."""
    figure = new_figure(8.4, 10.2)
    panels = figure.subplots(3, 2).flat
    pieces = sorted(record["pieces"], key=lambda piece: piece["load"])
    poisson = [piece for piece in pieces if piece["workload"] == "poisson"]
    draw_lost(panels[0], poisson)
    draw_ahead(panels[1], poisson)
    draw_latency(panels[2], poisson, record["slo"])
    for place, (workload, title) in zip(panels[3:], COURSES.items(), strict=True):
        draw_course(place, [p for p in pieces if p["workload"] == workload], title)
    for place in panels:
        place.grid(alpha=0.3)
        place.tick_params(labelsize=8)
    legend_below(figure, panels[0].get_lines())
    figure.suptitle(
        "Real servers, the digits network in tiles; lost: refused, late or wrong", fontsize=10
    )
    return save_figure(figure, path)


def values(pieces: list[dict], name: str, key: str) -> dict[float, list[float]]:
    """Gather a measure of a server by load, over all rounds."""
    found: dict[float, list[float]] = {}
    for piece in pieces:
        if name == "policy" and piece["set"] == "others":
            continue  # beside Ray's own processes, which take a part of a core
        for row in piece["rows"]:
            if row["contender"] == name:
                found.setdefault(piece["load"], []).append(row[key])
    return found


def draw_lost(place, pieces: list[dict]) -> None:
    """Draw the share of requests that got no right answer in time."""
    for name in LABELS:
        found = values(pieces, name, "right_in_time")
        lost = [max(0.2, 100 - 100 * fmean(shares)) for shares in found.values()]
        place.plot(list(found), lost, marker=".", **look(name))
    log_percent(place, 0.2)
    place.set(xlabel="load / slow capacity", ylabel="lost, % of offered (log scale)")


def draw_ahead(place, pieces: list[dict]) -> None:
    """Draw by how many points by load is ahead of others with the same arrivals."""
    for name in LABELS:
        apart: dict[float, list[float]] = {}
        for piece in pieces:
            good = {row["contender"]: 100 * row["right_in_time"] for row in piece["rows"]}
            if name != "policy" and name in good:
                apart.setdefault(piece["load"], []).append(good["policy"] - good[name])
        error = [
            stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0 for found in apart.values()
        ]
        if apart:
            means = [fmean(found) for found in apart.values()]
            place.errorbar(list(apart), means, yerr=error, capsize=3, marker=".", **look(name))
    points_around_zero(place)
    place.set_ylim(-6, 100)
    place.set_yticks([-5, -2, -1, 0, 1, 2, 5, 20, 50, 100])
    place.set_yticklabels(["-5", "-2", "-1", "0", "+1", "+2", "+5", "+20", "+50", "+100"])
    place.set(xlabel="load / slow capacity", ylabel="points by which by load is ahead")


def draw_latency(place, pieces: list[dict], slo: float) -> None:
    """Draw the 99th percentile of latency, and the time that there is to answer."""
    for name in LABELS:
        found = values(pieces, name, "p99")
        place.plot(
            list(found), [1000 * fmean(some) for some in found.values()], marker=".", **look(name)
        )
    place.axhline(1000 * slo, color="tab:red", lw=0.8)
    place.annotate("time to answer", (4.1, 1060 * slo), fontsize=7, color="tab:red")
    place.set(xlabel="load / slow capacity", ylabel="p99 latency of answers, ms", yscale="log")
    place.set_yticks([50, 100, 200, 500, 1000, 2000, 4000], minor=False)
    place.set_yticklabels(["50", "100", "200", "500", "1,000", "2,000", "4,000"])
    place.set_yticks([], minor=True)


def draw_course(place, pieces: list[dict], title: str) -> None:
    """Draw what was lost so far, second by second, and how much came, behind the lines."""
    rate = place.twinx()
    for piece in pieces:
        for row in piece["rows"]:
            line = row["timeline"]
            came = np.array(line["rate"])
            lost = np.cumsum(came * (1 - np.array(line["right_in_time"])))
            share = np.maximum(0.2, 100 * lost / np.cumsum(came))
            place.plot(line["seconds"], share, **look(row["contender"]))
            if row["contender"] == "policy":
                rate.fill_between(line["seconds"], came, color="k", alpha=0.1, lw=0)
    log_percent(place, 0.2)
    rate.set(ylabel="requests/s (grey)", ylim=(0, None))
    rate.tick_params(labelsize=8)
    place.set(xlabel=f"seconds; {title}", ylabel="lost so far, % (log scale)")
    place.set_zorder(rate.get_zorder() + 1)
    place.patch.set_visible(False)
