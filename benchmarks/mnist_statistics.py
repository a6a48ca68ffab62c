"""Test trained networks three ways that differ in the statistics of batch norm only.

After training with mixup, the running statistics describe mixed images. mimonets measures them
again on unmixed training images before it tests (``train.recalibrate_batches``). The authors' code
tests in training mode, so on the statistics of each test batch, and answers depend on the batch.

Takes the folders of finished runs, all of one recipe with mixup, such as those of ``mimonets
reproduce mnist --only mnist-mimoconv-n16``.
Writes mnist-statistics.json into runs/results, or --out.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from mimonets._files import write_text
from mimonets._seeds import mean_and_deviation
from mimonets.data import ImageBatches
from mimonets.evaluation.provenance import environment
from mimonets.layers import StreamBatchNorm
from mimonets.models import MIMOConv
from mimonets.recipes.execute import open_run, read_run

WAYS = {
    "mixed": "running statistics of mixed training images",
    "unmixed": "measured again on unmixed training images, as mimonets tests",
    "batch": "statistics of each test batch of 128 superpositions, as the authors test",
}


@torch.inference_mode()
def accuracy(model: MIMOConv, batches: ImageBatches, batch_statistics: bool = False) -> float:
    """Count the share of right answers; on request with the statistics of each batch."""
    model.eval()
    for module in model.modules():
        if isinstance(module, StreamBatchNorm | nn.BatchNorm2d):
            module.train(batch_statistics)
    right = total = 0
    for images, labels in batches.epoch(0):
        right += int((model(images).argmax(dim=1) == labels).sum())
        total += len(labels)
    return right / total


def measure(run: Path, data_dir: str | None) -> dict[str, float]:
    """Test the last weights of a run in every way."""
    model, batches = open_run(run, "test", data_dir, which="last")
    batches.batch_size = read_run(run).train.batch_size * model.num_streams
    found = {"unmixed": accuracy(model, batches)}
    trained = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    model.load_state_dict(trained["model"])
    found["mixed"] = accuracy(model, batches)
    found["batch"] = accuracy(model, batches, batch_statistics=True)
    return {way: 100 * found[way] for way in WAYS}


def main() -> None:
    """Measure every run, print the means, and write the numbers down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs")
    parser.add_argument("--data-dir", metavar="DIR", help="where MNIST's files are")
    parser.add_argument("--out", default="runs/results", metavar="DIR", help="(%(default)s)")
    args = parser.parse_args()
    seeds = {read_run(run).train.seed: measure(run, args.data_dir) for run in args.runs}
    rows = []
    for way, words in WAYS.items():
        mean, deviation = mean_and_deviation([one[way] for one in seeds.values()])
        rows.append({"what": words, "ours": mean, "deviation": deviation, "seeds": len(seeds)})
        print(f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation else "") + f"  {words}")
    record = {
        "environment": environment(),
        "recipe": read_run(args.runs[0]).name,
        "rows": rows,
        "by_seed": seeds,
    }
    Path(args.out).mkdir(parents=True, exist_ok=True)
    write_text(Path(args.out) / "mnist-statistics.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
