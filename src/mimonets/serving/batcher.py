"""Requests from admission to answer: queues, jobs, cancellation, cascade. Pure bookkeeping.

No clock, no thread, no engine: `now` is an argument, and whoever calls holds a lock. The server's
inference thread and the simulator drive the same object.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from mimonets.serving.jobs import Item, Job
from mimonets.serving.model_queue import Answer, ModelQueue, Ticket

FREE = -inf


class RefusedError(Exception):
    """A request is not admitted: come back in ``retry_after`` seconds, or, if None, not at all."""

    def __init__(self, reason: str, retry_after: float | None) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class NotFiniteError(ValueError):
    """The network gave NaN or infinity, even for the input alone."""

    def __init__(self) -> None:
        super().__init__("The network gave no finite answer.")


@dataclass(slots=True)
class Work:
    """A job of one lane."""

    lane: ModelQueue
    job: Job
    started: float
    fast: dict[int, Answer] = field(default_factory=dict)  # cascade: {id of item: first answer}


class Batcher:
    """All lanes of a server, and one engine thread that serves them in turn."""

    def __init__(self, *, max_bytes: int | None = None, quotas: Mapping[str, int] | None = None):
        self.lanes: list[ModelQueue] = []
        self.max_bytes = max_bytes  # queued by all together
        self.quotas = dict(quotas or {})  # most inputs a tenant may have queued
        self.queued_bytes = 0
        self.queued: dict[str, int] = {}  # inputs per tenant
        # Seconds from an answer to its delivery. The way in is as long: twice as much is kept free.
        self.overhead = 0.0
        self.free_at = FREE  # when the running job is expected to end
        self._ended: float | None = None  # end of the last job, if others waited for the engine
        self._number = 0

    def offer(self, lane: ModelQueue, ticket: Ticket, now: float) -> None:
        """Queue a request, or raise RefusedError at once if it could not be answered in time."""
        quota = self.quotas.get(ticket.tenant)
        if quota is not None and self.queued.get(ticket.tenant, 0) + ticket.count > quota:
            if ticket.count > quota:
                raise RefusedError(
                    f"{ticket.count} inputs in one request; the quota is {quota}: send fewer.", None
                )
            raise RefusedError(f"The quota of {quota} queued inputs is used up.", 1.0)
        if self.max_bytes is not None and self.queued_bytes + ticket.size > self.max_bytes:
            if ticket.size > self.max_bytes:
                raise RefusedError(
                    f"{ticket.size} bytes of inputs in one request; at most {self.max_bytes} are "
                    f"queued: send fewer.",
                    None,
                )
            raise RefusedError(f"{self.queued_bytes} bytes are queued already.", 1.0)
        items = [self._make_item(ticket, row, now) for row in range(ticket.count)]
        elsewhere = sum(other.backlog() for other in self.lanes if other is not lane)
        late = lane.lateness(items, now, self.free_at, elsewhere)
        if late > 0:
            if lane.policy.lateness((), items, now) > 0:
                raise RefusedError(
                    f"No mode that it allows answers {ticket.count} inputs in "
                    f"{(ticket.deadline - now) * 1000:.0f} ms, even on an idle server: "
                    f"give it more time, or fewer inputs.",
                    None,
                )
            lane.policy.refused(now, ticket.deadline - now)
            raise RefusedError(
                f"Overloaded: the answer would be late by {late * 1000:.0f} ms.", late
            )
        ticket.items, ticket.left, ticket.lane = items, ticket.count, lane
        ticket.answers = [None] * ticket.count
        lane.join(items)
        self.queued_bytes += ticket.size
        self.queued[ticket.tenant] = self.queued.get(ticket.tenant, 0) + ticket.count

    def next_work(self, now: float) -> tuple[Work | None, list[Ticket]]:
        """Choose what the engine does next, and the requests that ended without it.

        Those are requests that can no longer be in time, with an error, and cascades that are
        answered as they are because others wait.
        """
        ended = self._drop_late(now)
        waiting = [lane for lane in self.lanes if lane.queue]
        if not waiting:
            self._ended = None  # those who waited left: the time until the next job is idle time
            work, flushed = self._rerun(now)
            return work, ended + flushed
        ended += [ticket for lane in self.lanes for ticket in self._flush(lane)]
        lane = min(waiting, key=lambda lane: lane.queue[0].place)
        elsewhere = sum(other.backlog() for other in waiting if other is not lane)
        job = lane.policy.next_job(lane.queue, now, elsewhere)
        assert job is not None
        taken = set(map(id, job.items))
        lane.queue = [item for item in lane.queue if id(item) not in taken]
        for item in job.items:
            self._leave(item)
        self.free_at = now + lane.policy.correction * job.predicted()
        return Work(lane, job, now), ended

    def finish(
        self, work: Work, outputs: Mapping[int, tuple[Any, float] | Exception], now: float
    ) -> list[Ticket]:
        """Note the outputs {id of item: (output, confidence)}; returns requests that are complete.

        An item with an error, or without an output, failed; its request gets an error.
        """
        self.free_at = FREE
        lane, policy = work.lane, work.lane.policy
        # While others wait, the time between two jobs is service time too.
        policy.observe(work.job.predicted(), now - (self._ended or work.started))
        is_idle = not any(other.queue for other in self.lanes)
        self._ended = None if is_idle else now
        complete: list[Ticket] = []
        for group in work.job.groups:
            for item in group.items:
                ticket = item.owner
                if ticket.is_done:  # late or cancelled while it ran
                    continue
                found = outputs.get(id(item), NotFiniteError())
                if isinstance(found, Exception):
                    if id(item) in work.fast:
                        complete += self._note(item, work.fast[id(item)])
                    else:
                        complete += self.end(ticket, found)
                    continue
                output, confidence = found
                answer = Answer(
                    output=output,
                    mode=policy.mode_of(group.mode, len(group.items)),
                    group_size=len(group.items),
                    confidence=confidence,
                    queued=work.started - item.arrival,
                    computed=now - work.started,
                    cascaded=bool(work.fast),
                )
                wants_more = (
                    ticket.cascade
                    and not work.fast
                    and is_idle
                    and policy.is_worth_a_rerun(answer.mode, confidence)
                    and policy.has_slack(item, now)
                )
                if wants_more:
                    ticket.answers[item.row] = answer  # unless a better one comes in time
                    lane.reruns.append((item, answer))
                else:
                    complete += self._note(item, answer)
        return complete

    def end(self, ticket: Ticket, error: Exception | None = None) -> list[Ticket]:
        """End a request early: cancelled, late or failed. Its queued inputs are forgotten."""
        if ticket.is_done:
            return []
        if isinstance(error, TimeoutError) and ticket.answers and all(ticket.answers):
            error = None  # it runs again in slow mode: its fast answers are there
        ticket.error, ticket.is_done = error, True  # the loop may look in between
        lane = ticket.lane
        if lane is None:
            return [ticket]
        if isinstance(error, TimeoutError):
            lane.policy.broke()
        for item in lane.queue:
            if item.owner is ticket:
                self._leave(item)
        lane.queue = [item for item in lane.queue if item.owner is not ticket]
        lane.reruns = [pair for pair in lane.reruns if pair[0].owner is not ticket]
        return [ticket]

    def is_empty(self) -> bool:
        """Tell whether nothing is queued."""
        return not any(lane.queue or lane.reruns for lane in self.lanes)

    def _make_item(self, ticket: Ticket, row: int, now: float) -> Item:
        self._number += 1
        budget = ticket.deadline - now
        return Item(
            arrival=now,
            deadline=ticket.deadline - min(2 * self.overhead, budget / 4),
            limit=ticket.limit,
            least=ticket.least,
            tenant=ticket.tenant,
            shares=ticket.shares,
            alone=ticket.alone,
            priority=ticket.priority,
            number=self._number,
            owner=ticket,
            row=row,
        )

    def _leave(self, item: Item) -> None:
        ticket = item.owner
        self.queued[ticket.tenant] -= 1
        self.queued_bytes -= ticket.size // ticket.count + (
            ticket.size % ticket.count if item.row == 0 else 0
        )

    def _drop_late(self, now: float) -> list[Ticket]:
        """End requests that cannot be in time any more, even if they ran at once."""
        late: list[Ticket] = []
        for lane in self.lanes:
            policy = lane.policy
            soonest = [
                now + policy.correction * mode.time.of(1, mode.active_streams)
                for mode in policy.modes
            ]
            for item in list(lane.queue):
                if soonest[item.mode(policy.fastest)] > item.deadline:
                    late += self.end(item.owner, TimeoutError("The deadline has passed."))
        return late

    def _rerun(self, now: float) -> tuple[Work | None, list[Ticket]]:
        """Cascade, as nothing else waits: run doubtful answers again in the slowest mode."""
        ended: list[Ticket] = []
        for lane in self.lanes:
            policy = lane.policy
            late = [pair for pair in lane.reruns if not policy.has_slack(pair[0], now)]
            lane.reruns = [pair for pair in lane.reruns if policy.has_slack(pair[0], now)]
            ended += self._answer(late)
            if not lane.reruns:
                continue
            for item, _ in lane.reruns:
                item.least = item.limit = 0
            waiting = sorted((item for item, _ in lane.reruns), key=lambda item: item.place)
            job = policy.take(waiting, 0, policy.settings.passes)
            chosen = set(map(id, job.items))
            fast = {id(item): answer for item, answer in lane.reruns if id(item) in chosen}
            lane.reruns = [pair for pair in lane.reruns if id(pair[0]) not in chosen]
            self.free_at = now + policy.correction * job.predicted()
            return Work(lane, job, now, fast), ended
        return None, ended

    def _flush(self, lane: ModelQueue) -> list[Ticket]:
        pairs, lane.reruns = lane.reruns, []
        return self._answer(pairs)

    def _answer(self, pairs: Iterable[tuple[Item, Answer]]) -> list[Ticket]:
        return [ticket for item, answer in pairs for ticket in self._note(item, answer)]

    def _note(self, item: Item, answer: Answer) -> list[Ticket]:
        ticket = item.owner
        ticket.answers[item.row] = answer
        ticket.left -= 1
        if ticket.left:
            return []
        ticket.is_done = True
        if ticket.lane is not None:
            ticket.lane.policy.kept()
        return [ticket]
