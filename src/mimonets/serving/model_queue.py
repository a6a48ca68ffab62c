"""Requests, and the queue of one model. Pure data: no clock, no thread."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mimonets.serving.jobs import Answer, Backlog, QueuedInput
from mimonets.serving.policy import Policy


class ModelQueue:
    """The queue of one model in one version, ordered by priority and deadline."""

    def __init__(self, name: str, policy: Policy, version: str = "1") -> None:
        self.name, self.policy, self.version = name, policy, version
        self.waiting: list[QueuedInput] = []
        self.reruns: list[tuple[QueuedInput, Answer]] = []  # of a cascade, with the fast answer
        self._backlog = self._new_backlog()  # of all that waited when the queue was ...
        self._known, self._length = self.waiting, 0  # ... this list, and so long
        self._trial = self._backlog

    def backlog(self) -> float:
        """Seconds that all that waits takes as fast as each input allows."""
        return self.policy.correction * self._all_that_waits().seconds if self.waiting else 0.0

    def lateness(
        self, inputs: Sequence[QueuedInput], now: float, free_at: float, elsewhere: float
    ) -> float:
        """Say as `Policy.lateness` by how much somebody would be late if these joined the queue.

        Those who join at its end, nearly all, make nobody else late, and what the queue takes is
        known since the last of them came.
        """
        policy = self.policy
        if self.waiting and inputs[0].place < self.waiting[-1].place:
            return policy.lateness(self.waiting, inputs, now, free_at, elsewhere)
        self._trial = self._all_that_waits().copy()
        start, factor = max(now, free_at) + elsewhere, policy.factor
        return max(
            [
                start + factor * self._trial.add(queued) - policy.admission_deadline(queued)
                for queued in inputs
            ]
        )

    def join(self, inputs: Sequence[QueuedInput]) -> None:
        """Queue inputs for which `lateness` was just asked."""
        if self.waiting and inputs[0].place < self.waiting[-1].place:
            for queued in inputs:
                insort(self.waiting, queued, key=lambda one: one.place)
            return
        self.waiting += inputs
        self._backlog, self._length = self._trial, len(self.waiting)

    def _all_that_waits(self) -> Backlog:
        """Add up the queue, unless that was done since it last changed."""
        if self._known is not self.waiting or self._length != len(self.waiting):
            self._backlog = self._new_backlog()
            for queued in self.waiting:
                self._backlog.add(queued)
            self._known, self._length = self.waiting, len(self.waiting)
        return self._backlog

    def _new_backlog(self) -> Backlog:
        return Backlog(self.policy.points, self.policy.fastest, self.policy.most_passes)


@dataclass(slots=True, eq=False)
class InferenceRequest:
    """Some inputs that are answered together, from one client to one model."""

    queue: ModelQueue
    inputs: Any  # one row per input
    count: int
    arrival: float
    deadline: float
    tenant: str = ""
    shares: bool = False
    fastest: int = 10**9
    slowest: int = 0
    alone: bool = False
    priority: int = 0
    cascade: bool = False
    size: int = 0  # bytes that it holds while queued
    future: Any = None
    answers: list[Answer | None] = field(default_factory=list)
    left: int = 0  # inputs without an answer
    error: Exception | None = None
    answered_at: float = inf  # when the engine was done with it
    is_done: bool = False  # answered, failed, late or cancelled: nobody works on it any more
