"""Requests, their answers, and the queue of one model. Pure data: no clock, no thread."""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mimonets.serving.jobs import Backlog, Item
from mimonets.serving.policy import Policy


@dataclass(slots=True)
class Answer:
    """The answer to one input, and how it came about."""

    output: Any
    mode: int  # index of the mode it ran in
    group_size: int
    confidence: float
    queued: float  # seconds
    computed: float  # seconds
    cascaded: bool = False


@dataclass(slots=True, eq=False)
class Ticket:
    """A request: some inputs that are answered together."""

    inputs: Any  # one row per input
    count: int
    arrival: float
    deadline: float
    tenant: str = ""
    shares: bool = False
    limit: int = 10**9
    least: int = 0
    alone: bool = False
    priority: int = 0
    cascade: bool = False
    size: int = 0  # bytes that it holds while queued
    future: Any = None
    lane: "ModelQueue | None" = None  # where it was admitted
    items: list[Item] = field(default_factory=list)
    answers: list[Answer | None] = field(default_factory=list)
    left: int = 0  # inputs without an answer
    error: Exception | None = None
    answered_at: float = inf  # when the engine was done with it
    is_done: bool = False  # answered, failed, late or cancelled: nobody works on it any more


class ModelQueue:
    """The queue of one model in one version, ordered by priority and deadline."""

    def __init__(self, name: str, policy: Policy, version: str = "1") -> None:
        self.name, self.policy, self.version = name, policy, version
        self.queue: list[Item] = []
        self.reruns: list[tuple[Item, Answer]] = []
        self._tail = self._new_tail()  # of all that waited when the queue was ...
        self._known, self._length = self.queue, 0  # ... this list, and so long
        self._trial = self._tail

    def backlog(self) -> float:
        """Seconds that all that waits takes as fast as each input allows."""
        return self.policy.correction * self._all_that_waits().seconds if self.queue else 0.0

    def lateness(
        self, items: Sequence[Item], now: float, free_at: float, elsewhere: float
    ) -> float:
        """Say as `Policy.lateness` by how much somebody would be late if these joined the queue.

        Those who join at its end, nearly all, make nobody else late, and what the queue takes is
        known since the last of them came.
        """
        policy = self.policy
        if self.queue and items[0].place < self.queue[-1].place:
            return policy.lateness(self.queue, items, now, free_at, elsewhere)
        self._trial = self._all_that_waits().copy()
        start, factor = max(now, free_at) + elsewhere, policy.factor
        return max([start + factor * self._trial.add(item) - policy.latest(item) for item in items])

    def join(self, items: Sequence[Item]) -> None:
        """Queue inputs for which `lateness` was just asked."""
        if self.queue and items[0].place < self.queue[-1].place:
            for item in items:
                insort(self.queue, item, key=lambda queued: queued.place)
            return
        self.queue += items
        self._tail, self._length = self._trial, len(self.queue)

    def _all_that_waits(self) -> Backlog:
        """Add up the queue, unless that was done since it last changed."""
        if self._known is not self.queue or self._length != len(self.queue):
            self._tail = self._new_tail()
            for item in self.queue:
                self._tail.add(item)
            self._known, self._length = self.queue, len(self.queue)
        return self._tail

    def _new_tail(self) -> Backlog:
        return Backlog(self.policy.modes, self.policy.fastest, self.policy.largest_job)
