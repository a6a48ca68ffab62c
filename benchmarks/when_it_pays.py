"""Draw the figure of docs/when-it-pays.md from results/: superposition beside plain networks.

Nothing is measured here: it reads mnist.json, mnist-map.json and cifar-map.json from the folder
that is named, or results, and writes when-it-pays.png into it.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mimonets._figure import error_scale, family_colour, new_figure, save_figure

EPOCHS = (3, 10, 30)
# title of the rows, label, line; colours are those of the label's family
MNIST_LINES = (
    ("tiles N={}", "tiles", "o-"),
    ("MIMOConv N={}, ours", "keys, our recipe", "o-"),
    ("MIMOConv N={}", "keys, the paper's recipe", "o-"),
    ("DataMUX N={}", "DataMUX", "o-"),
)
CIFAR_LINES = (
    ("WideResNet-10-1, distilled, {} epochs", "plain network, distilled", "P--"),
    ("WideResNet-10-1, {} epochs", "plain network", "o-"),
    ("late tiles N=4, distilled, {} epochs", "four late tiles, distilled", "P--"),
    ("late tiles N=4, {} epochs", "four late tiles", "o-"),
    ("tied N=4, {} epochs", "four tied lanes", "o-"),
    ("slots N=4, {} epochs", "keys, four images, our recipe", "o-"),
    ("the paper's binding N=4, {} epochs", "keys, four images, the paper's recipe", "o-"),
)
# Plain networks of the cost of tiles with so many digits per pass.
PLAIN = {1: "WideResNet-10-1", 2: "WideResNet-10-1, stride 2", 16: "WideResNet-16-1, stride 5"}

Rows = dict[str, dict[str, Any]]


def draw(folder: Path) -> Path:
    """Draw a panel per data set."""
    figure = new_figure(8.4, 5.4)
    left, right = figure.subplots(1, 2)
    rows = read(folder, "mnist-map") | read(folder, "mnist")
    streams = (1, 2, 4, 8, 16)
    for title, label, style in MNIST_LINES:
        line(left, rows, {n: title.format(n) for n in streams}, label, style)
    line(left, rows, PLAIN, "plain network of equal cost", "o--")
    error_scale(left, [rows[f"DataMUX N={n}"]["ours"] for n in streams] + [99.6])
    finish(left, "MNIST", "digits per pass", streams)
    left.set_ylabel("test accuracy, % (log scale of errors)")

    rows = read(folder, "cifar-map")
    for title, label, style in CIFAR_LINES:
        line(right, rows, {n: title.format(n) for n in EPOCHS}, label, style)
    finish(right, "CIFAR-10, networks of one cost (7 to 8 MMAC)", "epochs", EPOCHS)
    return save_figure(figure, folder / "when-it-pays.png")


def read(folder: Path, name: str) -> Rows:
    """Read the rows of a result by their titles."""
    record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return {row["what"]: row for row in record["rows"] if "ours" in row}


def line(axes: Any, rows: Rows, titles: dict[int, str], label: str, style: str) -> None:
    """Draw the rows of these titles that were run, with their spread; hollow: under three seeds."""
    colour = family_colour(label)
    at = [x for x, title in titles.items() if title in rows]
    found = [rows[titles[x]] for x in at]
    spread = [row.get("deviation", 0.0) for row in found]
    means = [row["ours"] for row in found]
    axes.errorbar(at, means, yerr=spread, capsize=3, fmt=style, color=colour, label=label)
    for x, row in zip(at, found, strict=True):
        if row["seeds"] < 3:
            axes.plot(x, row["ours"], style[0], color=colour, markerfacecolor="white", zorder=3)


def finish(axes: Any, title: str, label: str, ticks: Iterable[int]) -> None:
    """Label the axes; what is below is on a logarithmic scale."""
    axes.set_title(title, fontsize=10)
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    if title == "MNIST":
        look = {"color": "0.3", "markerfacecolor": "white"}
        axes.plot([], [], "o", **look, label="one or two seeds (others: three)")
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13)}  # below, never over a line
    axes.legend(frameon=False, fontsize=8, **place)


if __name__ == "__main__":
    print(draw(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
