"""How much can a hostile neighbour in a group change another's answer? Measured, not assumed.

A victim shares a pass with A - 1 inputs that someone else chose: other inputs of the data, noise,
inputs made by gradient to change the victim's answer, or inputs that are not finite.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

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
