"""Place the paper's networks among published ones: accuracy on CIFAR against MACs per input.

Nothing is measured here. The numbers are those that others published, each with its source; costs
are multiply-accumulates per input of 32x32. Writes published-networks.json and .png into the folder
that is named, or runs/results.
"""

import json
import sys
from pathlib import Path

from mimonets._figure import family_colour, legend_below, new_figure, save_figure
from mimonets._files import write_text
from mimonets.evaluation.provenance import environment

KEYS, PLAIN = family_colour("keys, the paper's recipe"), family_colour("plain network")
PAPER = "MIMONets, NeurIPS 2023, table 1: 1,200 epochs, mixup"
IMGCLSMOB = "imgclsmob (the test set served for validation: optimistic)"
WRN = "Zagoruyko & Komodakis, BMVC 2016, as quoted"

# network, MMAC per input, accuracy on CIFAR-10 and CIFAR-100, source
PUBLISHED = (
    ("MIMOConv, static, N=1", 5335, 97.49, 83.19, PAPER),
    ("MIMOConv, static, N=2", 2671, 96.93, 82.30, PAPER),
    ("MIMOConv, static, N=4", 1339, 95.58, 78.44, PAPER),
    ("MIMOConv, dynamic, 1 active", 5335, 97.13, 82.52, PAPER),
    ("MIMOConv, dynamic, 2 active", 2671, 96.41, 80.48, PAPER),
    ("MIMOConv, dynamic, 4 active", 1339, 95.43, 78.19, PAPER),
    ("WideResNet-28-10", 5247, 96.00, 80.75, "its authors' repository, median of 5"),
    ("WideResNet-28-10 with mixup", 5247, 97.07, 83.43, "MixMo's table"),
    ("WideResNet-16-10", 2414, 97.07, 81.05, IMGCLSMOB),
    ("WideResNet-16-8", 1548, 95.73, 79.57, WRN),
    ("WideResNet-40-4", 1299, 95.47, 78.82, WRN),
    ("ResNeXt-56 2x32d", 1060, 96.99, 82.14, IMGCLSMOB),
    ("SE-ResNet-164", 256, 96.61, 80.05, IMGCLSMOB),
    ("ResNet-56", 127, 95.48, 75.12, IMGCLSMOB),
)


def draw(path: Path) -> Path:
    """Draw accuracy against cost, one panel per data set."""
    figure = new_figure(8.4, 4.6)
    for place, (data, column) in enumerate((("CIFAR-10", 2), ("CIFAR-100", 3)), start=1):
        axes = figure.add_subplot(1, 2, place)
        for kind, marker, colour in (
            ("MIMOConv, static", "o-", KEYS),
            ("MIMOConv, dynamic", "s--", KEYS),
        ):
            rows = [row for row in PUBLISHED if row[0].startswith(kind)]
            label = (
                "keys: "
                + kind
                + (", one set of weights" if "dynamic" in kind else ", three networks")
            )
            axes.plot(
                [r[1] for r in rows], [r[column] for r in rows], marker, color=colour, label=label
            )
        others = [row for row in PUBLISHED if not row[0].startswith("MIMOConv")]
        axes.plot(
            [r[1] for r in others],
            [r[column] for r in others],
            "x",
            color=PLAIN,
            label="one input per pass, numbered",
        )
        for number, (_, cost, *accuracies, _) in enumerate(others, start=1):
            axes.annotate(
                str(number),
                (cost, accuracies[column - 2]),
                xytext=(-6, -3),
                ha="right",
                textcoords="offset points",
                fontsize=8,
                color="dimgray",
            )
        axes.set_xscale("log")
        axes.set_xlim(90, 9000)
        axes.set_xlabel("MMAC per input")
        axes.set_ylabel(f"{data}, test accuracy (%)")
        axes.grid(alpha=0.3)
    figure.suptitle("Published numbers, not measured by us", fontsize=11)
    legend_below(figure, figure.axes[0].get_lines())
    names = [f"{n} {row[0].replace('WideResNet', 'WRN')}" for n, row in enumerate(others, start=1)]
    figure.axes[0].text(
        0.03, 0.97, "\n".join(names), transform=figure.axes[0].transAxes, fontsize=7, va="top"
    )
    return save_figure(figure, path)


def main() -> None:
    """Write the table and the plot."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/results")
    folder.mkdir(parents=True, exist_ok=True)
    names = ("network", "mmac", "cifar10", "cifar100", "source")
    rows = [dict(zip(names, row, strict=True)) for row in PUBLISHED]
    record = {"environment": environment(), "measured_by_us": False, "rows": rows}
    write_text(folder / "published-networks.json", json.dumps(record, indent=1) + "\n")
    print(draw(folder / "published-networks.png"))


if __name__ == "__main__":
    main()
