"""Requests from admission to answer: queues, jobs, cancellation, cascade. Pure bookkeeping.

No clock, no thread, no engine: `now` is an argument, and whoever calls holds a lock. The server's
inference thread and the simulator drive the same object.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from math import inf
from typing import Any

from mimonets.serving.errors import RefusedError
from mimonets.serving.jobs import Answer, Job, QueuedInput
from mimonets.serving.limits import Budget
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.policy import CLOSE_BLOCKS

FREE = -inf


class NotFiniteError(ValueError):
    """The network gave NaN or infinity, even for the input alone."""

    def __init__(self) -> None:
        super().__init__("The network gave no finite answer.")


class Batcher:
    """All queues of a server, one for each model, and one engine that serves them in turn."""

    def __init__(
        self,
        *,
        max_inputs: float = inf,
        max_bytes: float = inf,
        quotas: Mapping[str, int] | None = None,
        share: float = 1.0,
    ) -> None:
        self.queues: list[ModelQueue] = []
        self.inputs = Budget("inputs", "queued", max_inputs, share, quotas)
        self.bytes = Budget("bytes", "queued", max_bytes, share)
        self.share = share  # of the time to answer, too
        # Seconds from an answer to its delivery. The way in is as long: twice as much is kept free.
        self.overhead = 0.0
        self.free_at = FREE  # when the running job is expected to end
        self._ended: float | None = None  # end of the last job, if others waited for the engine
        self._number = 0

    def offer(self, request: InferenceRequest, now: float) -> None:
        """Queue a request, or raise RefusedError at once if it could not be answered in time."""
        queue, tenant = request.queue, request.tenant
        self.inputs.check(tenant, request.count)
        self.bytes.check(tenant, request.size)
        inputs = [self._queued_input(request, row, now) for row in range(request.count)]
        elsewhere = sum(other.backlog() for other in self.queues if other is not queue)
        late = queue.lateness(inputs, now, self.free_at, elsewhere)
        if late > 0:
            if queue.policy.lateness((), inputs, now) > 0:
                raise RefusedError(
                    f"No mode that it allows answers {request.count} inputs in "
                    f"{(request.deadline - now) * 1000:.0f} ms, even on an idle server: "
                    f"give it more time, or fewer inputs.",
                    None,
                )
            queue.policy.refused(now, request.deadline - now)
            raise RefusedError(
                f"Overloaded: the answer would be late by {late * 1000:.0f} ms.", late
            )
        if self.share < 1:
            late = queue.tenant_lateness(inputs, self.share)
            if late > 0:
                raise RefusedError(
                    f"What this tenant has queued takes more than {self.share:.0%} of the time to "
                    f"answer.",
                    late,
                )
        request.answers, request.left = [None] * request.count, request.count
        queue.join(inputs)
        self.inputs.add(tenant, request.count)
        self.bytes.add(tenant, request.size)

    def next_job(self, now: float) -> tuple[Job | None, list[InferenceRequest]]:
        """Choose what the engine does next, and the requests that ended without it.

        Those are requests that can no longer be in time, with an error, and cascades that are
        answered as they are because others wait.
        """
        ended = self._drop_late(now)
        busy = [queue for queue in self.queues if queue.waiting]
        if not busy:
            self._ended = None  # those who waited left: the time until the next job is idle time
            rerun, flushed = self._rerun(now)
            return rerun, ended + flushed
        for queue in self.queues:
            ended += self._answer(queue.reruns)
            queue.reruns = []
        queue = min(busy, key=lambda queue: queue.waiting[0].place)
        elsewhere = sum(other.backlog() for other in busy if other is not queue)
        job = queue.policy.next_job(queue.waiting, now, elsewhere)
        assert job is not None
        for queued in queue.take(job.inputs):
            self._leave(queued)
        self._start(job, queue, now)
        return job, ended

    def finish(
        self, job: Job, outputs: Mapping[int, tuple[Any, float] | Exception], now: float
    ) -> list[InferenceRequest]:
        """Note the outputs {id of input: (output, confidence)}; returns requests that are complete.

        An input with an error, or without an output, failed; its request gets an error.
        """
        self.free_at = FREE
        queue, policy = job.queue, job.queue.policy
        # While others wait, the time between two jobs is service time too.
        policy.observe(job.predicted(), now - (self._ended or job.started))
        is_idle = not any(other.waiting for other in self.queues)
        self._ended = None if is_idle else now
        complete: list[InferenceRequest] = []
        for group in job.groups:
            for queued in group.inputs:
                request = queued.request
                if request.is_done:  # late or cancelled while it ran
                    continue
                found = outputs.get(id(queued), NotFiniteError())
                if isinstance(found, Exception):
                    if id(queued) in job.fast_answers:
                        complete += self._note(queued, job.fast_answers[id(queued)])
                    else:
                        complete += self.end(request, found)
                    continue
                output, confidence = found
                answer = Answer(
                    output=output,
                    point=policy.point_for(group.point, len(group.inputs)),
                    group_size=len(group.inputs),
                    confidence=confidence,
                    queued=job.started - queued.arrival,
                    computed=now - job.started,
                    cascaded=bool(job.fast_answers),
                )
                wants_more = (
                    request.cascade
                    and not job.fast_answers
                    and is_idle
                    and policy.is_worth_a_rerun(answer.point, confidence)
                    and policy.has_slack(queued, now)
                )
                if wants_more:
                    request.answers[queued.row] = answer  # unless a better one comes in time
                    queue.reruns.append((queued, answer))
                else:
                    complete += self._note(queued, answer)
        return complete

    def end(
        self, request: InferenceRequest, error: Exception | None = None
    ) -> list[InferenceRequest]:
        """End a request early: cancelled, late or failed. Its queued inputs are forgotten."""
        if request.is_done:
            return []
        if isinstance(error, TimeoutError) and request.answers and all(request.answers):
            error = None  # it runs again in slow mode: its fast answers are there
        request.error, request.is_done = error, True  # the loop may look in between
        queue = request.queue
        if isinstance(error, TimeoutError):
            queue.policy.missed_deadline()
        for queued in queue.leave(request):
            self._leave(queued)
        queue.reruns = [pair for pair in queue.reruns if pair[0].request is not request]
        return [request]

    def is_empty(self) -> bool:
        """Tell whether nothing is queued."""
        return not any(queue.waiting or queue.reruns for queue in self.queues)

    def _queued_input(self, request: InferenceRequest, row: int, now: float) -> QueuedInput:
        self._number += 1
        budget = request.deadline - now
        return QueuedInput(
            arrival=now,
            deadline=request.deadline - min(2 * self.overhead, budget / 4),
            fastest=request.fastest,
            slowest=request.slowest,
            tenant=request.tenant,
            shares=request.shares,
            alone=request.alone,
            priority=request.priority,
            number=self._number,
            request=request,
            row=row,
        )

    def _leave(self, queued: QueuedInput) -> None:
        request = queued.request
        rest = request.size % request.count if queued.row == 0 else 0
        self.inputs.add(request.tenant, -1)
        self.bytes.add(request.tenant, -(request.size // request.count + rest))

    def _start(self, job: Job, queue: ModelQueue, now: float) -> None:
        job.started = now
        self.free_at = now + queue.policy.correction * job.predicted()

    def _drop_late(self, now: float) -> list[InferenceRequest]:
        """End requests that cannot be in time any more, even if they ran at once."""
        late: list[InferenceRequest] = []
        for queue in self.queues:
            policy = queue.policy
            soonest = [now + policy.correction * point.seconds(1) for point in policy.points]
            urgent = (block for block in queue.waiting.blocks if block.earliest < max(soonest))
            for block in list(islice(urgent, CLOSE_BLOCKS)):  # the others' timers end them too
                for queued in block.inputs:
                    if soonest[queued.nearest_allowed(policy.fastest)] > queued.deadline:
                        late += self.end(queued.request, TimeoutError("The deadline has passed."))
        return late

    def _rerun(self, now: float) -> tuple[Job | None, list[InferenceRequest]]:
        """Cascade, as nothing else waits: run doubtful answers again at the slowest point."""
        ended: list[InferenceRequest] = []
        for queue in self.queues:
            policy = queue.policy
            ended += self._answer(
                pair for pair in queue.reruns if not policy.has_slack(pair[0], now)
            )
            queue.reruns = [pair for pair in queue.reruns if policy.has_slack(pair[0], now)]
            if not queue.reruns:
                continue
            for queued, _ in queue.reruns:
                queued.slowest = queued.fastest = 0
            waiting = sorted((queued for queued, _ in queue.reruns), key=lambda one: one.place)
            job = policy.take(waiting, 0, policy.settings.passes)
            chosen = set(map(id, job.inputs))
            job.fast_answers = {id(one): fast for one, fast in queue.reruns if id(one) in chosen}
            queue.reruns = [pair for pair in queue.reruns if id(pair[0]) not in chosen]
            self._start(job, queue, now)
            return job, ended
        return None, ended

    def _answer(self, pairs: Iterable[tuple[QueuedInput, Answer]]) -> list[InferenceRequest]:
        return [request for queued, answer in pairs for request in self._note(queued, answer)]

    def _note(self, queued: QueuedInput, answer: Answer) -> list[InferenceRequest]:
        """Note the last answer to an input; returns its request if it is complete."""
        request: InferenceRequest = queued.request
        request.answers[queued.row] = answer
        request.left -= 1
        if request.left:
            return []
        request.is_done = True
        request.queue.policy.met_deadline()
        return [request]
