"""compare(): does it pay for my network and my data? Candidates trained alike, a table, advice.

The advice may well be not to superpose.
"""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from mimonets._extras import need
from mimonets._files import write_text
from mimonets.evaluation.metrics import Measure
from mimonets.evaluation.provenance import environment
from mimonets.experiments.advice import advise, plot
from mimonets.experiments.candidates import AS_IT_IS, Make, Trainee, list_candidates
from mimonets.experiments.compare_data import read_data
from mimonets.experiments.compare_measuring import Measurer
from mimonets.experiments.compare_training import Tell, Trainer, shared_settings


def compare(
    network: nn.Module | Make,
    data: Any,
    *,
    out: str | Path = "runs/compare",
    speed: float | None = None,
    macs: float | None = None,
    minutes: float = 10.0,
    steps: int | None = None,
    seeds: int = 3,
    first_seed: int = 0,
    streams: Sequence[int] = (2, 4),
    siblings: Mapping[str, Make] | None = None,
    teacher: nn.Module | None = None,
    loss: str | Measure | None = None,
    lr: float = 3e-3,
    precision: str = "32",
    batch_size: int = 16,
    int8: bool = True,
    workers: int = 1,
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """Train candidates alike on your data, measure them, and say which to run.

    What was done is kept in ``out``: the same call resumes there. A network, or a sibling, that is
    trained already is measured as it is. The others then learn from the network by distillation.

    Args:
        network: a function that makes the network anew; or a network, which is copied and starts
            from its weights.
        data: a folder with one sub-folder per class, a .npz, or (train, test), two DataLoaders.
        out: gets ``compare.json``, ``compare.png``, and exports in ``served/`` for
            ``mimonets serve``.
        speed: the aim: so many times the inputs per second of the network as it is.
        macs: or the aim: at most so many MACs per input.
        minutes: for all training and measuring, about.
        steps: optimiser steps of every candidate in place of minutes.
        seeds: trainings of every candidate, with the seeds from ``first_seed`` on.
        streams: inputs per pass of the superposed candidates.
        siblings: other networks by name, as functions, that take part.
        teacher: a trained network that all candidates learn from; by default the network itself, if
            it is trained.
        loss: ``"cross_entropy"``, ``"squared_error"``, ``"binary"`` or a function of answers and
            labels; by default the first for labels, the second for numbers.
        lr: learning rate of AdamW; lower it where the network starts from pretrained weights.
        precision: of training, ``"32"`` or ``"bf16"``, which is faster on CPUs that compute in it.
        batch_size: inputs per call when speed is measured.
        int8: also measure every candidate in int8.
        workers: trainings at a time, in processes of Ray.
        tell: called with a line after each step of the work.
    """
    numbers: dict[str, float | None] = {"batch_size": batch_size, "workers": workers, "lr": lr}
    numbers |= {"speed": speed, "macs": macs, "minutes": minutes, "steps": steps, "seeds": seeds}
    _check(numbers, streams)
    make: Make = partial(copy.deepcopy, network) if isinstance(network, nn.Module) else network
    ready = read_data(data, loss, getattr(make(), "input_spec", None))
    config = shared_settings(ready, lr, precision)
    found, refused = list_candidates(make, siblings or {}, streams, ready)
    if teacher is None and found[0].is_trained:
        teacher = make()
        tell(
            "the network is trained already: it is measured as it is, and the others learn from it"
        )
    for name, reason in refused.items():
        tell(f"{name} cannot be built: {reason}")
    folder = Path(out)
    plan: dict[str, Any] = {
        "candidates": [one.name for one in found],
        "budget": {"minutes": None if steps else minutes, "steps": steps, "seeds": seeds},
        "first_seed": first_seed,
        "lr": lr,
        "precision": precision,
        "int8": int8,
        "data": str(data) if isinstance(data, str | Path) else None,
        "weights": [sum(p.numel() for p in one.make().parameters()) for one in found],
        "shape": list(ready.example.shape[1:]),
        "distilled": teacher is not None,
        "loss": ready.loss if isinstance(ready.loss, str) else "a function",
    }
    trainer = Trainer(ready, folder, teacher, config)
    plan["steps"] = _steps_of(plan, trainer, found, workers)
    tell(f"{len(found)} candidates, {seeds} seeds of each, {plan['steps']} steps")
    trainer = replace(trainer, config=replace(config, steps=plan["steps"]))
    every = range(first_seed, first_seed + seeds)
    refused |= trainer.train_all(found, every, workers, tell)
    if AS_IT_IS in refused:
        raise ValueError(f"There is nothing to compare with; {AS_IT_IS}: {refused[AS_IT_IS]}")
    measurer = Measurer(ready, folder / "served", batch_size, int8, tell)
    rows = measurer.measure(
        [
            (one, trainer.run_of(one, first_seed) / "model", trainer.scores_of(one, every))
            for one in found
            if one.name not in refused
        ]
    )
    result = {
        "advice": advise(rows, speed=speed, macs=macs),
        "aim": {"speed": speed, "macs": macs},
        "rows": rows,
        "refused": refused,
        "plan": plan,
        "test_items": rows[0]["items"],
        "batch_size": batch_size,
        "environment": environment(),
    }
    write_text(folder / "compare.json", json.dumps(result, indent=2))
    plot(rows, folder / "compare.png")
    return result


def _check(numbers: Mapping[str, float | None], streams: Sequence[int]) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} must be a number above 0.")
    if numbers["speed"] is not None and numbers["macs"] is not None:
        raise ValueError("speed and macs are two aims: give one of them.")
    if not streams or min(streams) < 2:
        raise ValueError(f"streams={tuple(streams)} must be integers >= 2.")
    if (numbers["workers"] or 1) > 1:
        need("ray", extra="ray", what="workers > 1")


def _steps_of(
    plan: Mapping[str, Any], trainer: Trainer, found: Sequence[Trainee], workers: int
) -> int:
    """Begin with as many steps as fit, or go on with those of an earlier call; refuse others."""
    path, folder = trainer.folder / "plan.json", trainer.folder
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in plan if before.get(name) != plan[name]]
        if differing:
            raise ValueError(
                f"out={folder} was begun with other {', '.join(differing)}: repeat that call, or "
                f"name another folder."
            )
        return int(before["steps"])
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"out={folder} holds something else: name another folder.")
    budget = plan["budget"]
    steps = budget["steps"] or trainer.count_steps(
        found, seeds=budget["seeds"], minutes=budget["minutes"], workers=workers
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({**plan, "steps": steps}, indent=2))
    return int(steps)
