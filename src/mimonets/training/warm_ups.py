"""Warm-ups: simpler ways to run that the first steps of a training take.

Each has a fraction of all steps. Retrieval (as in DataMUX), exact and solo follow one another; the
curricula, half of the grid or few active streams, run beside them from the start.
"""

from typing import Any

from mimonets.training.config import TrainConfig

Grid = tuple[int, int]


def warm_up_at(config: TrainConfig, step: int, total_steps: int) -> str | None:
    """Name the warm-up that a step belongs to; None once all are over.

    >>> [warm_up_at(TrainConfig(exact=0.5, solo=0.25), step, 4) for step in range(4)]
    ['exact', 'exact', 'solo', None]
    """
    end = 0.0
    for name, fraction in config.warm_ups.items():
        end += fraction
        if step < end * total_steps:
            return name
    return None


def grid_at(config: TrainConfig, model: Any, step: int, total_steps: int) -> Grid | None:
    """Halve both sides of the model's grid while the curriculum lasts; None: the whole grid."""
    if step >= config.curriculum * total_steps:
        return None
    m, n = model.config.grid
    return max(1, m // 2), max(1, n // 2)


def streams_at(config: TrainConfig, num_streams: int, step: int, total_steps: int) -> int:
    """Count the streams that may be active at a step of the curriculum: 1, 2, 4 and so on to N.

    The numbers below N share the first ``config.stream_curriculum`` of the steps evenly.

    >>> config = TrainConfig(stream_curriculum=0.5)
    >>> [streams_at(config, 4, step, total_steps=8) for step in range(8)]
    [1, 1, 2, 2, 4, 4, 4, 4]
    """
    below = [2**power for power in range((num_streams - 1).bit_length())]
    steps = config.stream_curriculum * total_steps
    if step >= steps or not below:
        return num_streams
    return below[int(step * len(below) / steps)]
