"""One lifelong thread that runs the network, and the bridge between it and the event loop.

Everything shared stands in a :class:`Batcher` behind one lock. The loop is woken once per job.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mimonets.serving.batcher import Batcher, Work
from mimonets.serving.jobs import Item
from mimonets.serving.model_queue import ModelQueue, Ticket
from mimonets.serving.networks import Array, Network
from mimonets.serving.policy import DECAY, MISS_FACTOR

log = logging.getLogger(__name__)
IDLE_WAIT = 0.5  # seconds between signs of life when nothing is to do
LEAST_OVERHEAD = 0.0005  # seconds
FAILED = "The network failed on this input; the server's log says more."
PATIENCE = 2.0  # seconds until an idle task (a warm-up step) may run although requests wait


class Worker:
    """Runs jobs until it is stopped; a job that fails never ends the thread."""

    def __init__(self, batcher: Batcher, clock: Callable[[], float] = time.monotonic) -> None:
        self.batcher, self.clock = batcher, clock
        self.networks: dict[int, Network] = {}  # by id of the lane
        self.on_job: Callable[[Work, float], None] = lambda work, seconds: None
        self.errors = 0
        self._changed = threading.Condition()
        self._idle: deque[Callable[[], None]] = deque()
        self._idle_since = 0.0
        self._slabs: dict[int, Array] = {}
        self._stopping = False
        self._beat = clock()
        self._running: Work | None = None
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

    def add_lane(self, lane: ModelQueue, network: Network) -> None:
        """Open a queue for a network."""
        with self._changed:
            self.batcher.lanes.append(lane)
            self.networks[id(lane)] = network

    def drop_lane(self, lane: ModelQueue) -> bool:
        """Close the queue of an old version once nothing of it is left; False until then."""
        with self._changed:
            runs = self._running is not None and self._running.lane is lane
            if lane.queue or lane.reruns or runs:
                return False
            if lane in self.batcher.lanes:
                self.batcher.lanes.remove(lane)
            self.networks.pop(id(lane), None)
            self._slabs.pop(id(lane), None)
            return True

    def submit(self, lane: ModelQueue, ticket: Ticket) -> asyncio.TimerHandle:
        """Queue a request (raises RefusedError) and arm the timer of its deadline. On the loop."""
        assert self._loop is not None
        now = self.clock()
        with self._changed:
            self.batcher.offer(lane, ticket, now)
            self._changed.notify()
        return self._loop.call_later(ticket.deadline - now, self._expire, ticket)

    def cancel(self, ticket: Ticket) -> None:
        """Forget a request whose client left."""
        with self._changed:
            self.batcher.end(ticket)

    def when_idle(self, task: Callable[[], None]) -> None:
        """Run something on the inference thread when nothing waits, at the latest in a while."""
        with self._changed:
            if not self._idle:
                self._idle_since = self.clock()
            self._idle.append(task)
            self._changed.notify()

    def is_live(self, limit: float = 2.0) -> bool:
        """Tell whether queued work progresses: the thread lives and its job is not overdue."""
        if not self._thread.is_alive():
            return False
        work = self._running
        if work is None and self.batcher.is_empty():
            return True  # nothing waits; a warm-up step may take as long as it likes
        expected = 0.0
        if work is not None:
            expected = 10 * work.job.predicted() * work.lane.policy.correction
        return self.clock() - self._beat < limit + expected

    def _expire(self, ticket: Ticket) -> None:
        with self._changed:
            ended = self.batcher.end(ticket, TimeoutError("The deadline has passed."))
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
            overdue = bool(self._idle) and self._beat - self._idle_since > PATIENCE
            work, ended = (None, []) if overdue else self.batcher.next_work(self._beat)
            task = None
            if work is None and self._idle:
                task, self._idle_since = self._idle.popleft(), self._beat
            self._running = work
            if work is None and task is None and not ended:
                if self._stopping and self.batcher.is_empty():
                    return False
                self._changed.wait(IDLE_WAIT)
                return True
        self._deliver(ended)
        if task is not None:
            task()
        if work is not None:
            self._do(work)
        return True

    def _do(self, work: Work) -> None:
        outputs: dict[int, tuple[Any, float] | Exception] = {}
        try:
            outputs = self._execute(work)
        except Exception:
            log.exception("a job failed")
            self.errors += 1
            outputs = {id(item): RuntimeError(FAILED) for item in work.job.items}
        finally:
            now = self.clock()
            with self._changed:
                self._running, self._beat = None, now
                done = self.batcher.finish(work, outputs, now)
            self._deliver(done)
        self.on_job(work, now - work.started)

    def _deliver(self, tickets: Sequence[Ticket]) -> None:
        if tickets and self._loop is not None and not self._loop.is_closed():
            now = self.clock()
            for ticket in tickets:
                ticket.answered_at = now
            self._loop.call_soon_threadsafe(resolve, tickets)

    def delivered(self, ticket: Ticket) -> None:
        """Learn the 99th percentile of the time from the engine to whoever waits on the loop."""
        known = max(self.batcher.overhead, LEAST_OVERHEAD)
        factor = MISS_FACTOR if self.clock() - ticket.answered_at > known else DECAY
        self.batcher.overhead = max(known * factor, LEAST_OVERHEAD)

    def _execute(self, work: Work) -> dict[int, tuple[Any, float] | Exception]:
        """Run all calls of a job; members of a group without a finite answer run again alone."""
        network = self.networks[id(work.lane)]
        found: dict[int, tuple[Any, float] | Exception] = {}
        for index, items in work.job.calls():
            policy = work.lane.policy
            mode = policy.modes[index]
            if len(items) < mode.active_streams:
                mode = policy.modes[policy.mode_of(index, len(items))]
            try:
                outputs = network.run(mode, self._gather(work.lane, network, items))
            except Exception:
                log.exception("%s failed on a batch of %d", network.name, len(items))
                self.errors += 1
                outputs = np.full((len(items), 1), np.nan)
            fine = np.asarray(np.isfinite(outputs.reshape(len(items), -1)).all(axis=1))
            sure = confidence(outputs)
            for start in range(0, len(items), mode.active_streams):
                rows = range(start, min(start + mode.active_streams, len(items)))
                if fine[rows.start : rows.stop].all():
                    found.update({id(items[row]): (outputs[row], float(sure[row])) for row in rows})
                else:
                    for row in rows:
                        found.update(self._alone(work.lane, network, items[row]))
        return found

    def _alone(
        self, lane: ModelQueue, network: Network, item: Item
    ) -> dict[int, tuple[Any, float] | Exception]:
        """Run one input by itself in the slowest mode; nothing if even that is not finite."""
        try:
            output = network.run(lane.policy.modes[0], self._gather(lane, network, [item]))
        except Exception:
            return {id(item): RuntimeError(FAILED)}
        if not np.isfinite(output).all():
            return {}
        return {id(item): (output[0], float(confidence(output)[0]))}

    def _gather(self, lane: ModelQueue, network: Network, items: Sequence[Item]) -> Array:
        """Copy inputs side by side into memory that is kept."""
        slab = self._slabs.get(id(lane))
        if slab is None or len(slab) < len(items):
            slab = network.example(1).repeat(max(len(items), 64), axis=0)
            self._slabs[id(lane)] = slab
        for place, item in enumerate(items):
            slab[place] = item.owner.inputs[item.row]
        return slab[: len(items)]


def confidence(outputs: Array) -> Array:
    """Give the largest probability of every row of logits (b, classes).

    >>> confidence(np.array([[0.0, 0.0], [0.0, 100.0]]))
    array([0.5, 1. ])
    """
    rows = outputs.reshape(len(outputs), -1)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(1 / np.exp(rows - rows.max(axis=1, keepdims=True)).sum(axis=1))


def resolve(tickets: Sequence[Ticket]) -> None:
    """Deliver on the loop; a future whose client left is done already."""
    for ticket in tickets:
        if ticket.future is not None and not ticket.future.done():
            ticket.future.set_result(ticket)
