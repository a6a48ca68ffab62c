"""One lifelong thread that runs the network, and the bridge between it and the event loop.

Everything that both share is in a :class:`Batcher` behind one lock. The loop is woken once per job.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from mimonets.serving.batcher import Batcher
from mimonets.serving.jobs import Job, QueuedInput
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.networks import Network, numbers_in
from mimonets.serving.operating_points import Array, ServedPoint
from mimonets.serving.policy import DECAY, MISS_FACTOR

log = logging.getLogger(__name__)
IDLE_WAIT = 0.5  # seconds between signs of life when nothing is to do
LEAST_OVERHEAD = 0.0005  # seconds
FAILED = "The network failed on this input; the server's log says more."
LONGEST_POSTPONEMENT = 0.1  # seconds; then an idle task runs although requests wait

Outputs = dict[int, tuple[Any, float] | Exception]  # output and confidence, by id of input


class Worker:
    """Runs jobs until it is stopped; a job that fails never ends the thread."""

    def __init__(self, batcher: Batcher, clock: Callable[[], float] = time.monotonic) -> None:
        self.batcher, self.clock = batcher, clock
        self.on_job: Callable[[Job, float], None] = lambda job, seconds: None
        self.errors = 0
        self._changed = threading.Condition()
        self._idle_tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._postponed_since = 0.0
        self._stopping = False
        self._beat = clock()
        self._running: Job | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; answers are delivered on this loop."""
        self._loop = loop
        self._thread.start()

    def stop(self, timeout: float = 30.0) -> bool:
        """Finish what is queued, then end the thread; False if that took too long."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def add_queue(self, queue: ModelQueue) -> None:
        """Serve the queue of a new version."""
        with self._changed:
            self.batcher.queues.append(queue)

    def remove_queue(self, queue: ModelQueue) -> bool:
        """Forget the queue of an old version once nothing of it is left; False until then."""
        with self._changed:
            runs = self._running is not None and self._running.queue is queue
            if queue.waiting or queue.reruns or runs:
                return False
            if queue in self.batcher.queues:
                self.batcher.queues.remove(queue)
            return True

    def submit(self, request: InferenceRequest) -> asyncio.TimerHandle:
        """Queue a request (raises RefusedError) and arm the timer of its deadline. On the loop."""
        assert self._loop is not None
        now = self.clock()
        with self._changed:
            self.batcher.offer(request, now)
            self._changed.notify()
        return self._loop.call_later(request.deadline - now, self._expire, request)

    def cancel(self, request: InferenceRequest) -> None:
        """Forget a request whose client left."""
        with self._changed:
            self.batcher.end(request)

    async def measure(self, network: Network) -> list[ServedPoint]:
        """Time a network on the inference thread, one call at a time when nothing waits."""
        steps, points = network.measure(self.clock), None
        while points is None:
            done: Future[list[ServedPoint] | None] = Future()
            with self._changed:
                if not self._idle_tasks:
                    self._postponed_since = self.clock()
                self._idle_tasks.append((done, lambda: next(steps)))
                self._changed.notify()
            points = await asyncio.wrap_future(done)
        return points

    @property
    def is_busy(self) -> bool:
        """Tell whether something is queued or runs."""
        return self._running is not None or not self.batcher.is_empty()

    def is_live(self, limit: float = 2.0) -> bool:
        """Tell whether queued work progresses: the thread lives and its job is not overdue."""
        if not self._thread.is_alive():
            return False
        job = self._running
        if job is None and self.batcher.is_empty():
            return True  # nothing waits; measuring a new version may take as long as it likes
        expected = 0.0
        if job is not None:
            expected = 10 * job.predicted() * job.queue.policy.correction
        return self.clock() - self._beat < limit + expected

    def _expire(self, request: InferenceRequest) -> None:
        with self._changed:
            ended = self.batcher.end(request, TimeoutError("The deadline has passed."))
        resolve(ended)

    def _run(self) -> None:
        while True:
            try:
                if not self._step():
                    return
            except Exception:  # supervised: whatever happens, the next request is served
                log.exception("the inference thread goes on after an error")
                self.errors += 1

    def _step(self) -> bool:
        """Do one job, one idle task or one wait; False at the end."""
        with self._changed:
            self._beat = self.clock()
            postponed = self._beat - self._postponed_since if self._idle_tasks else 0.0
            job, ended = None, list[InferenceRequest]()
            if postponed <= LONGEST_POSTPONEMENT:
                job, ended = self.batcher.next_job(self._beat)
            idle_task = None
            if job is None and self._idle_tasks:
                idle_task, self._postponed_since = self._idle_tasks.popleft(), self._beat
            self._running = job
            if job is None and idle_task is None and not ended:
                if self._stopping and self.batcher.is_empty():
                    return False
                self._changed.wait(IDLE_WAIT)
                return True
        self._deliver(ended)
        if idle_task is not None:
            _run_idle_task(*idle_task)
        if job is not None:
            self._do(job)
        return True

    def _do(self, job: Job) -> None:
        outputs: Outputs = {}
        try:
            outputs = self._execute(job)
        except Exception:
            log.exception("a job failed")
            self.errors += 1
            outputs = {id(queued): RuntimeError(FAILED) for queued in job.inputs}
        finally:
            now = self.clock()
            with self._changed:
                self._running, self._beat = None, now
                done = self.batcher.finish(job, outputs, now)
            self._deliver(done)
        self.on_job(job, now - job.started)

    def _deliver(self, requests: Sequence[InferenceRequest]) -> None:
        if requests and self._loop is not None and not self._loop.is_closed():
            now = self.clock()
            for request in requests:
                request.answered_at = now
            self._loop.call_soon_threadsafe(resolve, requests)

    def learn_delivery_time(self, request: InferenceRequest) -> None:
        """Learn the 99th percentile of the time from the engine to the coroutine that waits."""
        known = max(self.batcher.overhead, LEAST_OVERHEAD)
        factor = MISS_FACTOR if self.clock() - request.answered_at > known else DECAY
        self.batcher.overhead = max(known * factor, LEAST_OVERHEAD)

    def _execute(self, job: Job) -> Outputs:
        """Run all calls of a job; members of a group without a finite answer run again alone."""
        queue, found = job.queue, Outputs()
        for chosen, inputs in job.calls():
            point = queue.policy.point_for(chosen, len(inputs))
            try:
                outputs = point.answer(_side_by_side(inputs))
            except Exception:
                log.exception("%s failed on a batch of %d", queue.name, len(inputs))
                self.errors += 1
                outputs = np.full((len(inputs), 1), np.nan)
            fine = np.asarray(np.isfinite(numbers_in(outputs)).all(axis=1))
            sure = confidence(outputs)
            for start in range(0, len(inputs), point.inputs_per_pass):
                rows = range(start, min(start + point.inputs_per_pass, len(inputs)))
                if fine[rows.start : rows.stop].all():
                    found |= {id(inputs[row]): (outputs[row], float(sure[row])) for row in rows}
                else:
                    for row in rows:
                        found |= self._alone(queue, inputs[row])
        return found

    def _alone(self, queue: ModelQueue, queued: QueuedInput) -> Outputs:
        """Run one input by itself at the slowest point; nothing if even that is not finite."""
        try:
            output = queue.policy.points[0].answer(_side_by_side([queued]))
        except Exception:
            return {id(queued): RuntimeError(FAILED)}
        if not np.isfinite(numbers_in(output)).all():
            return {}
        return {id(queued): (output[0], float(confidence(output)[0]))}


def _side_by_side(inputs: Sequence[QueuedInput]) -> Array:
    return np.stack([queued.request.inputs[queued.row] for queued in inputs])


def _run_idle_task(done: Future[Any], task: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(task())
    except Exception as error:
        done.set_exception(error)


def confidence(outputs: Array) -> Array:
    """Give the largest probability of every row of logits (b, classes).

    >>> confidence(np.array([[0.0, 0.0], [0.0, 100.0]]))
    array([0.5, 1. ])
    """
    rows = numbers_in(outputs)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(1 / np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1))


def resolve(requests: Sequence[InferenceRequest]) -> None:
    """Deliver on the loop; a future whose client left is done already."""
    for request in requests:
        if request.future is not None and not request.future.done():
            request.future.set_result(request)
