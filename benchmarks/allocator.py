"""Time training steps with and without keeping freed memory, in interleaved processes.

Forward and backward of a MIMOConv-10-1 with 16 streams on 128 superpositions, one thread. Counts
processor time, which other work on the machine hardly changes. Writes bench-allocator.json into the
folder that is named, or runs/results.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from mimonets._files import write_text
from mimonets._memory import keep_freed_memory
from mimonets.evaluation.provenance import environment
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import make_model

ROUNDS, STEPS = 3, 6


def seconds_per_step() -> float:
    """Median processor time of a step, after a warm-up."""
    torch.set_num_threads(1)
    model = make_model(load_recipe("mnist-mimoconv-n16")).train()
    images, labels = model.example_inputs(128 * 16), torch.randint(10, (128 * 16,))
    times = []
    for _ in range(2 + STEPS):
        start = time.process_time()
        F.cross_entropy(model(images), labels).backward()
        times.append(time.process_time() - start)
    return statistics.median(times[2:])


def measure(name: str) -> float:
    """Time one side in a process of its own: the setting cannot be taken back."""
    done = subprocess.run(
        [sys.executable, __file__, name], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def main(folder: Path) -> None:
    """Time both sides in turn and write the ratio."""
    times: dict[str, list[float]] = {"kept": [], "handed back": []}
    for _ in range(ROUNDS):
        for name, found in times.items():
            found.append(measure(name))
    ratios = [slow / fast for fast, slow in zip(*times.values(), strict=True)]
    median = statistics.median(ratios)
    print(f"keeping freed memory makes a step {median:.1f} times as fast")
    record = {
        "environment": environment(),
        "speedup": {"median": median, "low": min(ratios), "high": max(ratios)},
        "seconds": times,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "bench-allocator.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] in (["kept"], ["handed back"]):
        if sys.argv[1] == "kept":
            assert keep_freed_memory()
        print(seconds_per_step())
    else:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/results"))
