"""Measure how a hostile neighbour changes answers, and what a cascade would bring.

A victim shares a pass with A - 1 inputs that someone else chose: other inputs of the data, noise,
inputs made by gradient to change the victim's answer, or inputs that are not finite.

mimonets demo; python benchmarks/isolation.py runs/demo/digits-writers-tiles-late
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mimonets as mn
from mimonets.evaluation.provenance import environment
from mimonets.inference.cascade import choose_threshold, thresholds
from mimonets.recipes.execute import read_run, split_batches

SHARES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.5, 1.0)


Array = np.ndarray[Any, Any]
Answer = Callable[[Array, int], Array]  # inputs and active streams to logits
Attack = Callable[[Array, int], Array]  # victims and active streams to neighbours (b, A - 1, ...)


@dataclass(frozen=True)
class Isolation:
    """Victims whose answer a kind of neighbour changed."""

    neighbours: str
    active_streams: int
    victims: int
    flipped: float  # fraction whose answer differs from the one among ordinary neighbours
    wrong: float  # fraction whose answer is wrong then
    lost: float  # fraction without a finite answer

    def as_dict(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        return asdict(self)


def measure_isolation(
    answer: Answer,
    victims: Array,
    labels: Array,
    attacks: dict[str, Attack],
    active_streams: Sequence[int],
    *,
    rng: np.random.Generator,
) -> list[Isolation]:
    """Run every victim first in its group, beside the neighbours of every attack."""
    rows = []
    for active in active_streams:
        ordinary = victims[rng.integers(len(victims), size=(len(victims), active - 1))]
        usual = _answers(answer, victims, ordinary, active)
        rows.append(_row("other inputs", active, usual, usual, labels))
        for name, attack in attacks.items():
            found = _answers(answer, victims, attack(victims, active), active)
            rows.append(_row(name, active, found, usual, labels))
    return rows


def noise(scale: float, rng: np.random.Generator) -> Attack:
    """Make neighbours of Gaussian noise."""

    def attack(victims: Array, active: int) -> Array:
        shape = (len(victims), active - 1, *victims.shape[1:])
        return (scale * rng.standard_normal(shape)).astype(victims.dtype)

    return attack


def constant(value: float) -> Attack:
    """Make neighbours that have one value everywhere, such as NaN or a huge number."""

    def attack(victims: Array, active: int) -> Array:
        return np.full((len(victims), active - 1, *victims.shape[1:]), value, victims.dtype)

    return attack


def by_gradient(model: Any, *, limit: float, steps: int = 20) -> Attack:
    """Make neighbours that change the victim's answer, by signed gradient ascent.

    The attacker knows the weights and the victim, and keeps every value within +-limit: that of
    ordinary inputs. Needs PyTorch and a network ``model(inputs, active_streams=A)``.
    """

    def attack(victims: Array, active: int) -> Array:
        import torch

        known = torch.from_numpy(victims)
        with torch.no_grad():
            answers = model(known, active_streams=1).argmax(dim=1)
        generator = torch.Generator().manual_seed(0)
        shape = (len(victims), active - 1, *victims.shape[1:])
        mean = (torch.rand(shape, generator=generator) * 2 - 1) * limit
        for _ in range(steps):
            mean.requires_grad_(True)
            groups = torch.cat([known.unsqueeze(1), mean], dim=1).flatten(0, 1)
            logits = model(groups, active_streams=active)[::active]
            loss = torch.nn.functional.cross_entropy(logits, answers)
            (slope,) = torch.autograd.grad(loss, mean)
            mean = (mean + 2 * limit / steps * slope.sign()).clamp(-limit, limit).detach()
        return np.asarray(mean.numpy())

    return attack


def _answers(answer: Answer, victims: Array, neighbours: Array, active: int) -> Array:
    groups = np.concatenate([victims[:, None], neighbours], axis=1)
    flat = groups.reshape(-1, *victims.shape[1:])
    return np.asarray(answer(flat, active))[::active]


def _row(name: str, active: int, found: Array, usual: Array, labels: Array) -> Isolation:
    finite = np.isfinite(found).all(axis=1)
    said = np.where(finite, np.nan_to_num(found).argmax(axis=1), -1)
    return Isolation(
        neighbours=name,
        active_streams=active,
        victims=len(labels),
        flipped=float((said != usual.argmax(axis=1)).mean()),
        wrong=float((said != labels).mean()),
        lost=float((~finite).mean()),
    )


def main(folder: str, out: str) -> None:
    """Measure a run's network on its test data and write one JSON file."""
    recipe = read_run(folder)
    model = mn.load(Path(folder) / "model").eval()
    model.requires_grad_(False)
    batches = list(split_batches(recipe.data, "test"))
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
