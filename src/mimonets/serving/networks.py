"""What the server runs: a network with one or several operating points.

The server sees nothing else of an engine than :class:`EngineLike`. A superposed network has a point
for each number of active streams; a big and a small network have points with one input per pass.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from mimonets._answers import names_of, parts_of
from mimonets._inputs import InputSpec
from mimonets._operating_point import OperatingPoint
from mimonets.serving.operating_points import (
    Array,
    Run,
    ServedPoint,
    fit_service_time,
    useful_points,
)

VALUES = "values"  # the name of answers that are numbers, where there is one output
PADDING = -1  # fills token ids up to the full length; the engine gets a mask in its place


class EngineLike(Protocol):
    """What runs a network: numpy in, numpy out, any batch size."""

    @property
    def operating_points(self) -> Sequence[OperatingPoint]:
        """The ways to run it, slow to fast; each number is what ``active_streams`` gets."""

    @property
    def input_spec(self) -> InputSpec:
        """What one input is."""

    def __call__(self, inputs: Any, active_streams: int | None = None) -> Any:
        """Answer every input, in order; neighbours share a pass."""


class Network:
    """A network as the server sees it: what it takes, and its operating points."""

    def __init__(
        self,
        name: str,
        input_spec: InputSpec,
        points: Sequence[ServedPoint],
        *,
        takes_short: bool = True,
    ) -> None:
        if not points:
            raise ValueError(f"{name} has no operating points: there is nothing to serve.")
        self.name, self.input_spec, self.points = name, input_spec, list(points)
        self.takes_short = takes_short and input_spec.kind == "tokens"  # below the full length
        self.answer_shapes: dict[str, tuple[int, ...]] = {}  # by output, once it ran

    def example(self, count: int) -> Array:
        """Make inputs to measure with."""
        spec = self.input_spec
        if spec.kind == "tokens":
            numbers = np.arange(count * np.prod(spec.shape), dtype=np.int64)
            return numbers.reshape(count, *spec.shape) % (spec.vocab_size or 1)
        rng = np.random.default_rng(0)
        return rng.standard_normal((count, *spec.shape), dtype=np.float32)

    def run_every_graph(self) -> None:
        """Run every graph once, so that none is opened or compiled while requests wait."""
        for number, point in enumerate(self.points):
            example = self.example(point.inputs_per_pass)
            if self.takes_short and example.shape[-1] > 1:  # masked: another graph
                short = example.copy()
                short[..., -1] = PADDING
                point.run(short)
            answers = np.asarray(point.run(example))
            if not np.isfinite(numbers_in(answers)).all():
                raise ValueError(
                    f"{self.name} gives answers that are not finite at {point.name}: its weights "
                    f"are damaged, or it diverged in training."
                )
            if answers.ndim > 2:  # numbers for every position, which name no class of the input
                self.input_spec = replace(self.input_spec, answers="values")
            names = answers.dtype.names
            self.answer_shapes = (
                {name: answers.dtype[name].shape for name in names}
                if names
                else {VALUES: answers.shape[1:]}
            )
            self.points[number] = replace(point, independent=self._independence(point))

    def _independence(self, point: ServedPoint) -> str:
        """Find out whether the answers of a point depend on the inputs that run beside them."""
        if point.inputs_per_pass > 1:
            return "no"
        inputs = self.example(4)
        alone = np.concatenate([np.asarray(point.run(inputs[row : row + 1])) for row in range(4)])
        same = all(np.array_equal(point.run(inputs[:size]), alone[:size]) for size in (2, 4))
        return "bits" if same else "rounding"

    def measure(
        self,
        clock: Callable[[], float],
        *,
        passes: Sequence[int] = (1, 2, 4),
        repeats: int = 3,
        limit: float = 0.25,
    ) -> Iterator[list[ServedPoint] | None]:
        """Time every point on several batch sizes, one call per step; ends with the useful points.

        One step at a time, so that a server can measure a new version between jobs. Batches that
        take longer than ``limit`` seconds are not enlarged further.
        """
        measured: dict[str, dict[tuple[int, int], float]] = {}
        for point in self.points:
            for size in (count * point.inputs_per_pass for count in passes):
                inputs = self.example(size)
                seconds = []
                for number in range(repeats + 1):
                    started = clock()
                    answers = np.asarray(point.run(inputs))
                    if number:  # the first call of a size may be slower
                        seconds.append(max(clock() - started, 1e-7))
                    if len(answers) != size:
                        raise ValueError(
                            f"{self.name} gave {len(answers)} answers to {size} inputs: "
                            f"an engine gives as many as it gets."
                        )
                    yield None
                # The shortest: a busy machine must not hide that a point is faster.
                of_family = measured.setdefault(point.family, {})
                of_family[point.inputs_per_pass, size] = min(seconds)
                if min(seconds) > limit:
                    break
        times = {family: fit_service_time(found) for family, found in measured.items()}
        yield useful_points([replace(point, time=times[point.family]) for point in self.points])


def superposed(
    name: str,
    engine: EngineLike,
    accuracies: Mapping[int, float] | None = None,
    confidences: Mapping[int, float] | None = None,
    points: Sequence[int] | None = None,
) -> Network:
    """Serve a network with streams at each operating point of its engine, or at some of them.

    ``accuracies`` and ``confidences`` are by number of active streams, and so are ``points``.
    A pair of sequences takes two streams, so that several points answer as many pairs in a pass;
    the largest of them is served, which needs no second pass for a pair.
    """
    accuracies, confidences = accuracies or {}, confidences or {}
    by_size = {  # points ascend: the last of a size counts
        point.inputs_per_pass: ServedPoint(
            number=point.number,
            name=point.name,
            inputs_per_pass=point.inputs_per_pass,
            options=point.options,
            accuracy=accuracies.get(point.number, point.accuracy),
            run=_runner(engine, point.number),
            confidence=confidences.get(point.number),
        )
        for point in engine.operating_points
        if points is None or point.number in points
    }
    served = list(by_size.values())
    return Network(name, engine.input_spec, served, takes_short=_takes_mask(engine))


def switched(
    name: str, engines: Mapping[str, EngineLike], accuracies: Mapping[str, float] | None = None
) -> Network:
    """Serve several networks for the same inputs as one, such as a big and a small one."""
    specs = [engine.input_spec for engine in engines.values()]
    if any(spec.shape != specs[0].shape or spec.kind != specs[0].kind for spec in specs):
        raise ValueError(
            f"{name}: networks to switch between take the same inputs, but these take "
            f"{', '.join(str(spec.shape) for spec in specs)}."
        )
    runs = {label: _runner(engine, 1) for label, engine in engines.items()}
    takes_short = all(_takes_mask(engine) for engine in engines.values())
    return Network(name, specs[0], _points_of(runs, accuracies or {}), takes_short=takes_short)


def _points_of(runs: Mapping[str, Run], accuracies: Mapping[str, float]) -> list[ServedPoint]:
    """Make points with one input per pass, each with a service time of its own."""
    return [
        ServedPoint(
            number=number, name=label, accuracy=accuracies.get(label), run=run, family=label
        )
        for number, (label, run) in enumerate(runs.items(), start=1)
    ]


def _runner(engine: EngineLike, active: int) -> Run:
    takes_mask = _takes_mask(engine)

    def run(inputs: Array) -> Array:
        if not np.issubdtype(inputs.dtype, np.integer):
            return side_by_side(engine(inputs, active_streams=active))
        real = inputs != PADDING
        if not takes_mask or real.all():
            return side_by_side(engine(inputs, active_streams=active))
        masked: Any = engine
        return side_by_side(masked(np.where(real, inputs, 0), active_streams=active, mask=real))

    return run


def side_by_side(answers: Any) -> Array:
    """Make one array of answers; several outputs become its fields, by name.

    >>> side_by_side((np.zeros((2, 3)), np.ones((2, 5, 5)))).dtype["1"].shape
    (5, 5)
    """
    names = names_of(answers)
    if not names:
        return np.asarray(answers)
    arrays = [np.asarray(part, dtype=np.float32) for part in parts_of(answers)]
    fields = [(name, "<f4", part.shape[1:]) for name, part in zip(names, arrays, strict=True)]
    joined = np.empty(len(arrays[0]), dtype=fields)
    for name, part in zip(names, arrays, strict=True):
        joined[name] = part
    return joined


def numbers_in(answers: Array) -> Array:
    """Give all numbers of answers, a row per input.

    >>> numbers_in(side_by_side((np.zeros((2, 3)), np.ones((2, 1))))).shape
    (2, 4)
    """
    count = len(answers)
    flat = np.ascontiguousarray(answers).view("<f4") if answers.dtype.names else answers
    return flat.reshape(count, flat.size // max(count, 1))


def _takes_mask(engine: EngineLike) -> bool:
    return bool(getattr(getattr(engine, "manifest", None), "takes_mask", False))
