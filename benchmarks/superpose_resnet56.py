"""Measure the pretrained ResNet-56 with several images per pass against ResNet-20.

Trains examples/resnet_cifar10.py in several ways, one after the other, and writes
superpose-resnet56.json into FOLDER as results come. Runs are kept in RUNS, where they resume:
python benchmarks/superpose_resnet56.py WEIGHTS DATA RUNS [FOLDER] [LIMIT] [WAY=STEPS ...]
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from resnet_cifar10 import MODES, TILES
from resnet_cifar10 import main as run

from mimonets._files import write_text
from mimonets.evaluation.provenance import environment

KEYS = {"bind_after": "layer2.0", "unbind_before": "linear"}  # the first one with 32 maps
KEYS |= {"binding": "matrix", "identity_start": True}
WAYS = {
    "tiles": (TILES, MODES),
    "keys-n2": ({"num_streams": 2, **KEYS}, {1: 0.2, 2: 0.8}),
    "keys-n4": ({"num_streams": 4, **KEYS}, {1: 0.2, 4: 0.8}),
}


def main(weights: str, data: str, runs: str, folder="runs/results", limit="10000", *ways: str):
    """Train and measure, one seed each, and write all rows so far after each way."""
    place = environment()
    place["command"] = " ".join(["superpose_resnet56.py WEIGHTS DATA RUNS results", limit, *ways])
    rows: dict[tuple[str, int], dict] = {}
    for way in ways or ("tiles=600", "tiles=200", "keys-n2=200", "keys-n4=200"):
        name, _, steps = way.partition("=")
        where, modes = WAYS[name]
        out = Path(runs) / way
        found = run(Path(weights), data, int(steps), int(limit), out, where, modes)
        for title, active, measured, macs in found:
            alone = title.startswith("ResNet")
            rows[title if alone else way, active] = {
                "name": title if alone else f"{title}, {name}",
                "active_streams": active,
                "macs": macs,
                "accuracy": measured.accuracy,
                "interval": list(measured.interval),
                "test_images": int(limit),
                **({} if alone else {"steps": int(steps), **where}),
            }
            print(f"{title}, {name}, {active} active: {measured.accuracy:.1%}, {macs / 1e6:.0f} M")
        record = {
            "environment": place,
            "inputs_per_step": 64,
            "seeds": [0],
            "rows": list(rows.values()),
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_text(Path(folder) / "superpose-resnet56.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
