"""Inputs that wait, jobs that run them together, and their answers. Pure data, without a clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mimonets.serving.operating_points import ServedPoint


@dataclass(slots=True, eq=False)
class QueuedInput:
    """One input that waits. ``place`` orders the queue: priority, then deadline, then arrival."""

    arrival: float
    deadline: float
    fastest: int = 10**9  # index of the fastest operating point it may run at
    slowest: int = 0  # index of the slowest one
    tenant: str = ""
    shares: bool = False  # may share a pass with other tenants who agreed to that too
    alone: bool = False  # deterministic: runs as a batch of one, at the slowest point
    priority: int = 0  # smaller is served first
    number: int = 0
    request: Any = None  # the InferenceRequest that it belongs to
    row: int = 0  # which of the request's inputs it is

    @property
    def place(self) -> tuple[int, float, int]:
        """Order of service: earliest deadline first within a priority."""
        return (self.priority, self.deadline, self.number)

    def nearest_allowed(self, index: int) -> int:
        """Find the index of the operating point it runs at when the policy chose this one."""
        return 0 if self.alone else min(max(index, self.slowest), self.fastest)

    def neighbours(self) -> object:
        """Tell with whom it may share a pass: inputs whose answers here are equal."""
        if self.alone:
            return (self.number, self.row)
        return None if self.shares else self.tenant


@dataclass(slots=True)
class Answer:
    """The answer to one input, and how it came about."""

    output: Any
    point: ServedPoint  # at which it ran
    group_size: int
    confidence: float
    queued: float  # seconds
    computed: float  # seconds
    cascaded: bool = False


@dataclass(slots=True)
class Group:
    """Inputs that share a pass, or a single one."""

    point: ServedPoint
    inputs: list[QueuedInput]


@dataclass(slots=True)
class Job:
    """What the engine does next, until the policy is asked again: groups of one model's inputs."""

    point: ServedPoint  # which the policy chose
    groups: list[Group]
    started: float = 0.0
    fast_answers: dict[int, Answer] = field(default_factory=dict)  # of a cascade, by id of input

    @property
    def inputs(self) -> list[QueuedInput]:
        """All inputs of the job."""
        return [queued for group in self.groups for queued in group.inputs]

    @property
    def queue(self) -> Any:
        """The ModelQueue that its inputs come from."""
        return self.groups[0].inputs[0].request.queue

    def calls(self) -> list[tuple[ServedPoint, list[QueuedInput]]]:
        """List the calls of the engine as (operating point, inputs).

        Full groups at one point are one call; a short group is a call of its own, so that nobody
        joins it, and so is an input that must run alone.
        """
        merged: dict[int, tuple[ServedPoint, list[QueuedInput]]] = {}
        single: list[tuple[ServedPoint, list[QueuedInput]]] = []
        for group in self.groups:
            point, inputs = group.point, group.inputs
            if len(inputs) == point.inputs_per_pass and not inputs[0].alone:
                merged.setdefault(point.number, (point, []))[1].extend(inputs)
            else:
                single.append((point, inputs))
        return [*merged.values(), *single]

    def predicted(self) -> float:
        """Add up the service times of all calls, uncorrected."""
        return sum(point.seconds(len(inputs)) for point, inputs in self.calls())


class Backlog:
    """The time that a growing set of inputs needs at one operating point, in jobs of some passes.

    Inputs that may not run at that point count at the nearest one that they allow.
    """

    def __init__(self, points: Sequence[ServedPoint], index: int, passes: int) -> None:
        self._points, self._index, self._passes = points, index, passes
        self._open: dict[object, int] = {}  # members of every group that is not full
        self._full = [0] * len(points)
        self._now = 0.0
        self.seconds = 0.0  # never falls, though a group that gets full may save a call

    def copy(self) -> "Backlog":
        """Make another one that grows by itself."""
        made = Backlog(self._points, self._index, self._passes)
        made._open, made._full = self._open.copy(), self._full.copy()
        made._now, made.seconds = self._now, self.seconds
        return made

    def skip(self, seconds: float) -> None:
        """Add inputs of which only their time is known; nobody joins their groups."""
        self._now += seconds
        self.seconds = max(self.seconds, self._now)

    def add(self, queued: QueuedInput) -> float:
        """Add an input; returns the seconds that all of them need."""
        index = queued.nearest_allowed(self._index)
        point = self._points[index]
        time = point.time
        who = (index, queued.neighbours())
        members = self._open.get(who, 0) + 1
        self._now += time.per_input
        if members == 1:
            self._now += time.per_pass + time.per_call
        if members == point.inputs_per_pass:  # full groups share calls, one for each job
            if self._full[index] % self._passes:
                self._now -= time.per_call
            self._full[index] += 1
            members = 0
        self._open[who] = members
        self.seconds = max(self.seconds, self._now)
        return self.seconds
