"""Draw the figure of docs/when-it-pays.md from results/: superposition beside plain networks.

Nothing is measured here: it reads mnist.json, mnist-map.json and cifar-map.json from the folder
that is named, or results, and writes when-it-pays.png into it.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mimonets._figure import new_figure, save_figure

EPOCHS = (3, 10, 30)
# title of the rows, label, colour, line
MNIST_LINES = (
    ("tiles N={}", "tiles, our recipe", "tab:green", "o-"),
    ("MIMOConv N={}, ours", "keys, our recipe", "tab:orange", "o-"),
    ("MIMOConv N={}", "keys, the paper's recipe", "tab:red", "o-"),
    ("DataMUX N={}", "DataMUX", "tab:gray", "o-"),
)
CIFAR_LINES = (
    ("WideResNet-10-1, distilled, {} epochs", "plain, taught", "tab:blue", "P--"),
    ("WideResNet-10-1, {} epochs", "plain, one per pass", "tab:blue", "o-"),
    ("late tiles N=4, distilled, {} epochs", "late tiles, taught", "tab:green", "P--"),
    ("late tiles N=4, {} epochs", "late tiles, four per pass", "tab:green", "o-"),
    ("tied N=4, {} epochs", "tied lanes", "tab:purple", "o-"),
    ("slots N=4, {} epochs", "keys, our recipe", "tab:orange", "o-"),
    ("the paper's binding N=4, {} epochs", "keys, the paper's recipe", "tab:red", "o-"),
)
# Plain networks of the cost of tiles with so many digits per pass.
PLAIN = {1: "WideResNet-10-1", 2: "WideResNet-10-1, stride 2", 16: "WideResNet-16-1, stride 5"}

Rows = dict[str, dict[str, Any]]


def draw(folder: Path) -> Path:
    """Draw a panel per data set."""
    figure = new_figure(10.5, 4.2)
    left, right = figure.subplots(1, 2)
    rows = read(folder, "mnist-map") | read(folder, "mnist")
    streams = (1, 2, 4, 8, 16)
    for title, label, colour, style in MNIST_LINES:
        line(
            left, rows, {n: title.format(n) for n in streams}, label=label, color=colour, fmt=style
        )
    line(left, rows, PLAIN, label="plain, at the cost of tiles", color="tab:blue", fmt="o--")
    finish(left, "MNIST", "digits per pass", streams)

    rows = read(folder, "cifar-map")
    for title, label, colour, style in CIFAR_LINES:
        line(
            right, rows, {n: title.format(n) for n in EPOCHS}, label=label, color=colour, fmt=style
        )
    finish(right, "CIFAR-10, networks of one cost (7 to 8 MMAC per image)", "epochs", EPOCHS)
    return save_figure(figure, folder / "when-it-pays.png")


def read(folder: Path, name: str) -> Rows:
    """Read the rows of a result by their titles."""
    record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return {row["what"]: row for row in record["rows"] if "ours" in row}


def line(axes: Any, rows: Rows, titles: dict[int, str], **style: Any) -> None:
    """Draw the rows of these titles that were run, with their spread; hollow: under three seeds."""
    at = [x for x, title in titles.items() if title in rows]
    found = [rows[titles[x]] for x in at]
    spread = [row.get("deviation", 0.0) for row in found]
    axes.errorbar(at, [row["ours"] for row in found], yerr=spread, capsize=3, **style)
    for x, row in zip(at, found, strict=True):
        if row["seeds"] < 3:
            look = {"color": style["color"], "markerfacecolor": "white", "zorder": 3}
            axes.plot(x, row["ours"], style["fmt"][0], **look)


def finish(axes: Any, title: str, label: str, ticks: Iterable[int]) -> None:
    """Label the axes; what is below is on a logarithmic scale."""
    axes.set_title(title, fontsize=10)
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


if __name__ == "__main__":
    print(draw(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
