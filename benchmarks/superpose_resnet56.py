"""Measure the pretrained ResNet-56 with two and four images per pass against ResNet-20.

Runs examples/resnet_cifar10.py for both and writes superpose-resnet56.json into the folder that is
named, or runs/results:
python benchmarks/superpose_resnet56.py WEIGHTS DATA [FOLDER] [STEPS] [LIMIT] [2,4]
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from resnet_cifar10 import main as run

from mimonets._files import write_text
from mimonets.evaluation.provenance import environment


def main(
    weights: str, data: str, folder: str = "runs/results", steps="100", limit="1000", streams="2,4"
):
    """Train and measure, one seed each, and write all rows."""
    place = environment()
    rows = {}
    for count in map(int, streams.split(",")):
        with tempfile.TemporaryDirectory() as out:
            found = run(Path(weights), data, count, int(steps), int(limit), Path(out) / "run")
        for name, active, measured, macs in found:
            title = name if name.startswith("ResNet") else f"{name} (N={count})"
            rows[title, active] = {
                "name": title,
                "active_streams": active,
                "macs": macs,
                "accuracy": measured.accuracy,
                "interval": list(measured.interval),
            }
            print(f"{title}, {active} active: {measured.accuracy:.1%}, {macs / 1e6:.0f} M MACs")
    place["command"] = f"superpose_resnet56.py WEIGHTS DATA results {steps} {limit} {streams}"
    record = {
        "environment": place,
        "steps": int(steps),
        "inputs_per_step": 64,
        "test_images": int(limit),
        "seeds": [0],
        "rows": list(rows.values()),
    }
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_text(Path(folder) / "superpose-resnet56.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
