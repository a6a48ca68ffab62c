"""Time superpose(WideResNet) against the MIMOConv that it equals, pass by pass in turns.

Writes bench-superpose.json into the folder that is named, or runs/results.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

from mimonets import MIMOConv, MIMOConvConfig, WideResNet, WideResNetConfig, superpose
from mimonets._files import write_text
from mimonets.evaluation.provenance import environment

SIZE = {"depth": 16, "width": 4, "in_channels": 3, "num_classes": 10, "image_size": 32}
NAMES = {  # of MIMOConv's parts, and where superpose() has them
    "stem.": "network.stem.module.",
    "binding.": "network.stem.binding.",
    "trunk.": "network.trunk.",
    "unbinding.": "network.classifier.unbinding.",
    "classifier.": "network.classifier.module.",
}
STREAMS, BATCH, ROUNDS = 4, 16, 61


def main(folder: Path) -> None:
    """Time both in pairs, and write the median of the pairs' ratios."""
    torch.set_num_threads(1)
    conv = MIMOConv(MIMOConvConfig(**SIZE, num_streams=STREAMS, initial_width=4)).eval()
    network = WideResNet(
        WideResNetConfig(**SIZE, initial_width=4, activation="prelu", final_norm=False)
    )
    options = {"bind_after": "stem", "unbind_before": "classifier", "unbinding_relu": True}
    mine = superpose(network, num_streams=STREAMS, **options).eval()
    mine.load_state_dict(
        {
            next(n + name.removeprefix(o) for o, n in NAMES.items() if name.startswith(o)): w
            for name, w in conv.state_dict().items()
        }
    )
    images = conv.example_inputs(BATCH)
    assert torch.equal(mine(images), conv(images))  # the same network, and the same keys
    ratios: dict[int, list[float]] = {}
    for active in (1, STREAMS):
        ratios[active] = []
        for turn in range(ROUNDS + 3):
            seconds = {}
            for model in (conv, mine) if turn % 2 else (mine, conv):
                start = time.process_time()  # of this process: what others do does not count
                with torch.inference_mode():
                    model(images, active_streams=active)
                seconds[model] = time.process_time() - start
            if turn >= 3:  # the first ones warm up
                ratios[active].append(seconds[mine] / seconds[conv])
    overhead = {}
    for active, values in ratios.items():
        low, median, high = statistics.quantiles(values, n=4)
        overhead[active] = {"median": median - 1, "low": low - 1, "high": high - 1}
        print(f"{active} active: {median - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})")
    record = {
        "environment": {**environment(), "command": "superpose_overhead.py results"},
        "network": SIZE,
        "num_streams": STREAMS,
        "batch_size": BATCH,
        "rounds": ROUNDS,
        "overhead": overhead,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "bench-superpose.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/results"))
