"""Measure how a hostile neighbour changes answers, and what a cascade would bring.

mimonets demo; python benchmarks/isolation.py runs/demo/digits-writers-tiles-late
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

import mimonets as mn
from mimonets.evaluation.provenance import environment
from mimonets.inference.cascade import choose_threshold, thresholds
from mimonets.loadtest.isolation import by_gradient, constant, measure_isolation, noise
from mimonets.recipes.execute import read_run, split_batches

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 1.0)


def main(folder: str, out: str) -> None:
    """Measure a run's network on its test data and write one JSON file."""
    recipe = read_run(folder)
    model = mn.load(Path(folder) / "model").eval()
    model.requires_grad_(False)
    batches = list(split_batches(recipe, "test"))
    images = torch.cat([batch[0] for batch in batches]).numpy()
    labels = torch.cat([batch[1] for batch in batches]).numpy()
    streams = model.num_streams

    def answer(inputs, active):
        with torch.no_grad():
            return model(torch.from_numpy(inputs), active_streams=active).numpy()

    limit = float(np.abs(images).max())
    rng = np.random.default_rng(0)
    rows = measure_isolation(
        answer,
        images,
        labels,
        {
            "noise": noise(1.0, rng),
            "a value of 1e6 everywhere": constant(1e6),
            "made by gradient": by_gradient(model, limit=limit),
            "not finite": constant(float("nan")),
        },
        sorted({2, streams}),
        rng=rng,
    )
    order = rng.permutation(len(images))
    fast, slow = answer(images[order], streams), answer(images[order], 1)
    table = thresholds(fast, slow, labels[order], active_streams=streams, shares=SHARES)
    record = {
        "environment": environment(),
        "recipe": recipe.name,
        "isolation": [row.as_dict() for row in rows],
        "cascade": [row.as_dict() for row in table if np.isfinite(row.confidence)],
        "chosen": choose_threshold(table).as_dict(),
    }
    Path(out).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    for row in rows:
        print(
            f"{row.active_streams} active, {row.neighbours}: {row.flipped:.1%} flipped, "
            f"{row.wrong:.1%} wrong, {row.lost:.1%} lost"
        )
    for row in table:
        print(f"rerun {row.rerun:.1%}: accuracy {row.accuracy:.4f}, {row.cost:.3f} passes")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "results/isolation.json")
