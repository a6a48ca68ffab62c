"""Requests, and the queue of one model. Pure data: no clock, no thread."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mimonets.serving.jobs import Answer, Backlog, QueuedInput
from mimonets.serving.policy import CLOSE_BLOCKS, Policy
from mimonets.serving.waiting_line import MOST, Place, WaitingLine


class ModelQueue:
    """The queue of one model in one version, ordered by priority and deadline."""

    def __init__(self, name: str, policy: Policy, version: str = "1") -> None:
        self.name, self.policy, self.version = name, policy, version
        self.waiting = WaitingLine()
        self.reruns: list[tuple[QueuedInput, Answer]] = []  # of a cascade, with the fast answer
        self._backlog: Backlog | None = None  # of all that waits, unless something left
        self._trial = self._new_backlog()

    def backlog(self) -> float:
        """Seconds that all that waits takes as fast as each input allows."""
        return self.policy.correction * self._all_that_waits().seconds if self.waiting else 0.0

    def lateness(
        self, inputs: Sequence[QueuedInput], now: float, free_at: float, elsewhere: float
    ) -> float:
        """Say as `Policy.lateness` by how much somebody would be late if these joined the queue.

        Those who join at its end, nearly all, make nobody else late, and what the queue takes is
        known since the last of them came. In a long queue it is an upper bound.
        """
        policy, start = self.policy, max(now, free_at) + elsewhere
        if not self.waiting or inputs[0].place > self.waiting[-1].place:
            self._trial = self._all_that_waits().copy()
            return max([start + policy.late(self._trial, queued, is_new=True) for queued in inputs])
        place = inputs[0].place
        at = self.waiting.find(place)
        backlog = self._new_backlog()
        if at == 1:  # exact
            for queued in self.waiting.blocks[0].inputs:
                backlog.add(queued)
        else:
            backlog.skip(sum(self._bounds()[:at]))
        own = self.waiting.blocks[at].inputs
        for queued in own:
            if queued.place < place:
                backlog.add(queued)
        worst = max([start + policy.late(backlog, queued, is_new=True) for queued in inputs])
        behind = [start + policy.late(backlog, one) for one in own if one.place > place]
        return max([worst, *behind, self._lateness_behind(at + 1, backlog, start)])

    def tenant_lateness(self, inputs: Sequence[QueuedInput], share: float) -> float:
        """Say by how much these would exceed a tenant's share of their time, by its own inputs.

        At most 0 if none of its inputs is ahead of them: then the share is theirs alone.
        """
        place, tenant = inputs[0].place, inputs[0].tenant
        at = self.waiting.find(place)
        backlog = self._new_backlog()
        backlog.skip(sum(self._bounds(tenant)[:at]))
        for block in self.waiting.blocks[at : at + 1]:
            for queued in block.inputs:
                if queued.tenant == tenant and queued.place < place:
                    backlog.add(queued)
        if backlog.seconds == 0:
            return 0.0
        for queued in inputs:
            backlog.add(queued)
        budget = inputs[0].deadline - inputs[0].arrival
        return self.policy.factor * backlog.seconds - share * budget

    def join(self, inputs: Sequence[QueuedInput]) -> None:
        """Queue inputs for which `lateness` was just asked."""
        is_last = not self.waiting or inputs[0].place > self.waiting[-1].place
        self.waiting.add(inputs)
        inputs[0].request.places = inputs[0].place, inputs[-1].place
        self._backlog = self._trial if is_last else None

    def leave(self, request: "InferenceRequest") -> list[QueuedInput]:
        """Forget what waits of a request; returns that."""
        if request.places is None:
            return []
        return self._remove(
            self.waiting.remove(lambda one: one.request is request, *request.places)
        )

    def take(self, inputs: Sequence[QueuedInput]) -> list[QueuedInput]:
        """Take the inputs of a job out of the queue."""
        places, taken = [queued.place for queued in inputs], set(map(id, inputs))
        return self._remove(
            self.waiting.remove(lambda one: id(one) in taken, min(places), max(places))
        )

    def _remove(self, gone: list[QueuedInput]) -> list[QueuedInput]:
        if gone:
            self._backlog = None
        return gone

    def _lateness_behind(self, at: int, backlog: Backlog, start: float) -> float:
        """Bound the lateness of all blocks from here on, after a backlog."""
        worst, close, factor = -inf, 0, self.policy.factor
        for block, seconds in zip(self.waiting.blocks[at:], self._bounds()[at:], strict=True):
            late = start + factor * (backlog.seconds + seconds) - block.earliest
            if late > 0 and close < CLOSE_BLOCKS:
                close += 1
                late = max([start + self.policy.late(backlog, one) for one in block.inputs])
            else:
                backlog.skip(seconds)
            worst = max(worst, late)
        return worst

    def _all_that_waits(self) -> Backlog:
        """Add up the queue, unless that was done since it last changed; a long one by blocks."""
        if self._backlog is None:
            self._backlog = self._new_backlog()
            if len(self.waiting) > MOST:
                self._backlog.skip(sum(self._bounds()))
            else:
                for queued in self.waiting:
                    self._backlog.add(queued)
        return self._backlog

    def _bounds(self, tenant: str | None = None) -> list[float]:
        policy = self.policy
        return self.waiting.bounds(policy.points, policy.fastest, policy.most_passes, tenant)

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
    places: tuple[Place, Place] | None = None  # of its first and last input in the queue
    future: Any = None
    answers: list[Answer | None] = field(default_factory=list)
    left: int = 0  # inputs without an answer
    error: Exception | None = None
    answered_at: float = inf  # when the engine was done with it
    is_done: bool = False  # answered, failed, late or cancelled: nobody works on it any more
