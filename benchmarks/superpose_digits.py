"""Measure examples/own_network.py over three seeds: a CNN with four digits per pass, three ways.

Writes superpose-digits.json into the folder that is named, or runs/results:
python benchmarks/superpose_digits.py [FOLDER] [EPOCHS]
"""

import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from own_network import CNN, FOUR, NETWORKS
from own_network import main as run
from torch import nn

from mimonets._files import write_text
from mimonets.evaluation.provenance import environment

SEEDS = (0, 1, 2)


def smaller_images() -> CNN:
    """Make the CNN that sees, one by one, what a tile shows: half the height and width."""
    network = CNN()
    network.stem.append(nn.AvgPool2d(2))
    return network


APART = {
    "CNN in tiles": (CNN, {**FOUR, "binding": "tiles", "unbind_before": "pool"}),
    "CNN on maps of half the size": (smaller_images, {"num_streams": 1}),
}


def main(folder: str = "runs/results", epochs: str = "40") -> None:
    """Train, measure and write accuracy and cost of each mode."""
    place = environment()
    found: dict[tuple[str, int, float], list[float]] = {}
    for seed in SEEDS:
        for name, active, accuracy, macs in run(int(epochs), seed, NETWORKS | APART):
            found.setdefault((name, active, macs), []).append(accuracy)
    rows = [
        {
            "name": name,
            "active_streams": active,
            "million_macs": macs,
            "accuracy": values,
            "mean": statistics.mean(values),
            "deviation": statistics.stdev(values),
        }
        for (name, active, macs), values in found.items()
    ]
    place["command"] = f"superpose_digits.py results {epochs}"
    record = {"environment": place, "epochs": int(epochs), "seeds": list(SEEDS), "rows": rows}
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_text(Path(folder) / "superpose-digits.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
