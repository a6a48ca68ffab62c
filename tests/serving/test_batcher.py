from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mimonets.serving.batcher import Batcher
from mimonets.serving.errors import RefusedError
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.operating_points import ServiceTime
from mimonets.serving.policy import Policy
from mimonets.serving.waiting_line import WaitingLine
from serving.fakes import make_point

TIME = ServiceTime(per_pass=0.0099)
POINTS = [
    make_point(A, TIME, accuracy, confidence=0.9)
    for A, accuracy in ((1, 0.997), (2, 0.993), (4, 0.987))
]


def make(**limits):
    batcher = Batcher(**limits)
    queue = ModelQueue("model", Policy(POINTS))
    batcher.queues.append(queue)
    return batcher, queue


def request(queue, now=0.0, slo=0.2, count=1, **settings):
    return InferenceRequest(queue, [None] * count, count, now, now + slo, **settings)


def run(batcher, now, confidence=1.0, seconds=0.01):
    """Run one job; returns what ended before and after it."""
    job, ended = batcher.next_job(now)
    if job is None:
        return ended
    outputs = {id(queued): (queued.row, confidence) for queued in job.inputs}
    return ended + batcher.finish(job, outputs, now + seconds)


class Server(RuleBasedStateMachine):
    """Requests come, are cancelled, run, fail and get late in any order."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.batcher, _ = make()
        self.batcher.queues.append(ModelQueue("other", Policy(POINTS[:1])))
        self.queues = self.batcher.queues
        self.admitted, self.ended = [], []

    @rule(
        which=st.integers(0, 1),
        count=st.integers(1, 6),
        slo=st.sampled_from((0.03, 0.2, 1.0)),
        tenant=st.sampled_from("ab"),
        cascade=st.booleans(),
    )
    def arrive(self, which, count, slo, tenant, cascade):
        settings = {"tenant": tenant, "cascade": cascade, "size": 10 * count + 1}
        one = request(self.queues[which], self.now, slo, count, **settings)
        try:
            self.batcher.offer(one, self.now)
        except RefusedError:
            return
        self.admitted.append(one)

    @rule(seconds=st.sampled_from((0.001, 0.01, 0.5)), confidence=st.sampled_from((0.5, 1.0)))
    def run_a_job(self, seconds, confidence):
        job, ended = self.batcher.next_job(self.now)
        self.ended += ended
        self.now += seconds
        if job is None:
            return
        outputs = {id(queued): (queued.row, confidence) for queued in job.inputs}
        self.ended += self.batcher.finish(job, outputs, self.now)

    @rule(number=st.integers(0, 1000))
    def cancel(self, number):
        if self.admitted:
            self.ended += self.batcher.end(self.admitted[number % len(self.admitted)])

    @rule()
    def fail(self):
        job, ended = self.batcher.next_job(self.now)
        self.ended += ended
        if job is not None:
            self.ended += self.batcher.finish(job, {}, self.now + 0.01)
            self.now += 0.01

    @invariant()
    def everything_is_counted(self):
        waiting = [queued for queue in self.queues for queued in queue.waiting]
        assert sum(self.batcher.inputs.by_tenant.values()) == len(waiting)
        assert (self.batcher.bytes.held == 0) == (not waiting)
        assert not any(queued.request.is_done for queued in waiting)
        for queue in self.queues:
            assert list(queue.waiting) == sorted(queue.waiting, key=lambda queued: queued.place)

    def teardown(self):
        for _ in range(1000):
            if self.batcher.is_empty():
                break
            self.run_a_job(0.01, 1.0)
        assert self.batcher.is_empty()
        assert len(self.ended) == len(set(map(id, self.ended))), "ended twice"
        assert set(map(id, self.ended)) == set(map(id, self.admitted)), "one answer for each"
        for one in self.ended:
            if one.error is None and one.left == 0:
                assert [answer.output for answer in one.answers] == list(range(one.count))


TestServer = Server.TestCase
TestServer.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_request_of_many_inputs_is_answered_once_and_in_order():
    batcher, queue = make()
    one = request(queue, count=7, slo=1.0)
    batcher.offer(one, 0.0)
    ended, now = [], 0.0
    while not batcher.is_empty():
        ended += run(batcher, now)
        now += 0.01
    assert ended == [one]
    assert [answer.output for answer in one.answers] == list(range(7))


def test_a_cancelled_request_leaves_before_it_runs_and_does_not_disturb_its_neighbours():
    batcher, queue = make()
    gone, stays = request(queue), request(queue)
    batcher.offer(gone, 0.0)
    batcher.offer(stays, 0.0)
    assert batcher.end(gone) == [gone]
    job, _ = batcher.next_job(0.0)
    assert [queued.request for queued in job.inputs] == [stays]


def test_a_request_that_is_cancelled_while_it_runs_is_not_answered_again():
    batcher, queue = make()
    one = request(queue)
    batcher.offer(one, 0.0)
    job, _ = batcher.next_job(0.0)
    batcher.end(one)
    outputs = {id(queued): (0, 1.0) for queued in job.inputs}
    assert batcher.finish(job, outputs, 0.01) == []


def test_what_can_no_longer_be_in_time_is_not_computed():
    batcher, queue = make()
    one = request(queue, slo=0.05)
    batcher.offer(one, 0.0)
    job, ended = batcher.next_job(0.045)  # a pass takes 0.0099
    assert job is None
    assert ended == [one]
    assert isinstance(one.error, TimeoutError)


def test_overload_is_refused_at_once_with_a_time_to_come_back():
    batcher, queue = make()
    for _ in range(80):  # 20 passes of 4 in 0.2 s
        batcher.offer(request(queue), 0.0)
    with pytest.raises(RefusedError, match=r"late by \d+ ms") as refused:
        batcher.offer(request(queue), 0.0)
    assert refused.value.retry_after > 0


def test_a_deadline_that_nobody_could_meet_changes_nothing_for_others():
    batcher, queue = make()
    theta = queue.policy.theta(0.0)
    for impossible in (request(queue, slo=0.005), request(queue, slo=0.1, count=20, fastest=0)):
        with pytest.raises(RefusedError, match=r"answers \d+ inputs in \d+ ms") as refused:
            batcher.offer(impossible, 0.0)
        assert refused.value.retry_after is None
    assert queue.policy.theta(0.0) == theta


def test_a_refusal_with_hours_of_time_is_forgotten_in_minutes():
    batcher, queue = make()
    for _ in range(80):
        batcher.offer(request(queue, priority=1), 0.0)
    with pytest.raises(RefusedError, match="Overloaded"):
        batcher.offer(request(queue, slo=3600.0, count=8), 0.0)
    assert queue.policy.theta(0.0) < queue.policy.settings.theta
    assert queue.policy.theta(600.0) == queue.policy.settings.theta


def test_time_to_deliver_is_kept_free_before_every_deadline():
    batcher, queue = make()
    batcher.overhead = 0.02
    one = request(queue, slo=0.2)
    batcher.offer(one, 0.0)
    assert queue.waiting[0].deadline == pytest.approx(0.16), "the way in and the way out"
    batcher.overhead = 10.0
    another = request(queue, slo=0.2)
    batcher.offer(another, 0.0)
    assert queue.waiting[0].deadline == pytest.approx(0.15), "at most a quarter of the budget"


def test_inputs_count_not_requests():
    batcher, queue = make()
    with pytest.raises(RefusedError):
        batcher.offer(request(queue, count=81), 0.0)
    batcher.offer(request(queue, count=80), 0.0)
    with pytest.raises(RefusedError):
        batcher.offer(request(queue), 0.0)


def test_quotas_and_bytes_are_limits():
    batcher, queue = make(max_bytes=100, quotas={"a": 3})
    batcher.offer(request(queue, count=3, tenant="a", size=40), 0.0)
    with pytest.raises(RefusedError, match="quota is 3"):
        batcher.offer(request(queue, tenant="a", size=1), 0.0)
    with pytest.raises(RefusedError, match="40 bytes are queued"):
        batcher.offer(request(queue, tenant="b", size=61), 0.0)
    for one, message in (
        (request(queue, count=4, tenant="a", size=1), "4 inputs in one request; the quota is 3"),
        (request(queue, tenant="b", size=101), "101 bytes in one request; the limit is 100"),
    ):
        with pytest.raises(RefusedError, match=message) as caught:
            batcher.offer(one, 0.0)
        assert caught.value.retry_after is None


def test_doubtful_answers_are_run_again_in_slow_mode_when_nothing_else_waits():
    batcher, queue = make()
    requests = [request(queue, cascade=True) for _ in range(4)]
    for one in requests:
        batcher.offer(one, 0.0)
    job, _ = batcher.next_job(0.0)
    job = queue.policy.take([*job.inputs, *queue.waiting], 2, 1)  # as under load
    queue.waiting = WaitingLine()
    doubtful = job.inputs[1]
    outputs = {id(queued): ("fast", 0.5 if queued is doubtful else 0.95) for queued in job.inputs}
    done = batcher.finish(job, outputs, 0.01)
    assert len(done) == 3
    again, ended = batcher.next_job(0.01)
    assert not ended
    assert again.inputs == [doubtful]
    assert again.groups[0].point is POINTS[0]
    (last,) = batcher.finish(again, {id(doubtful): ("slow", 0.9)}, 0.02)
    assert last.answers[0].output == "slow"
    assert last.answers[0].cascaded
    assert batcher.is_empty()


def test_a_doubtful_answer_is_sent_as_it_is_when_others_wait():
    batcher, queue = make()
    requests = [request(queue, cascade=True) for _ in range(4)]
    for one in requests:
        batcher.offer(one, 0.0)
    job, _ = batcher.next_job(0.0)
    job = queue.policy.take([*job.inputs, *queue.waiting], 2, 1)
    queue.waiting = WaitingLine()
    outputs = {id(queued): ("fast", 0.5) for queued in job.inputs}
    assert batcher.finish(job, outputs, 0.01) == [], "all four hope for a rerun"
    batcher.offer(request(queue, now=0.011), 0.011)
    job, ended = batcher.next_job(0.011)
    assert set(ended) == set(requests)
    assert all(one.answers[0].output == "fast" for one in requests)


@given(st.integers(1, 4))
def test_a_short_group_reports_the_point_of_its_number(members):
    batcher, queue = make()
    requests = [request(queue) for _ in range(members)]
    for one in requests:
        batcher.offer(one, 0.0)
    waiting = list(queue.waiting)
    batcher.next_job(0.0)
    job = queue.policy.take(waiting, 2, 1)
    queue.waiting = WaitingLine()
    batcher.finish(job, {id(queued): (0, 1.0) for queued in job.inputs}, 0.01)
    point = requests[0].answers[0].point
    assert point.inputs_per_pass == {1: 1, 2: 2, 3: 4, 4: 4}[members]


def test_what_waits_for_another_model_counts_as_slow_as_it_must_run():
    for fastest, passes in ((0, 9), (2, 3)):
        batcher, queue = make()
        other = ModelQueue("other", Policy(POINTS))
        batcher.queues.append(other)
        for _ in range(9):
            batcher.offer(request(other, slo=0.1, fastest=fastest), 0.0)
        admitted = 0
        with suppress(RefusedError):
            while admitted < 100:
                batcher.offer(request(queue, slo=0.11), 0.0)
                admitted += 1
        assert 0 < admitted <= 4 * (11 - passes)
        now, late = 0.0, []
        while not batcher.is_empty():
            late += [one for one in run(batcher, now, seconds=0.0099) if one.error is not None]
            now += 0.0099
        assert late == []


def test_the_model_whose_request_is_most_urgent_runs_first():
    batcher, queue = make()
    other = ModelQueue("other", Policy(POINTS))
    batcher.queues.append(other)
    batcher.offer(request(queue, slo=0.5), 0.0)
    batcher.offer(request(other, slo=0.1), 0.0)
    assert batcher.next_job(0.0)[0].queue is other


def test_time_between_two_jobs_counts_as_service_time_while_others_wait():
    """Else a server that needs long between jobs admits more than it can answer in time."""
    batcher, queue = make()
    now, gap = 0.0, 0.01
    for _ in range(200):
        while len(queue.waiting) < 12:
            batcher.offer(request(queue, now, slo=60.0), now)
        job, _ = batcher.next_job(now)
        seconds = job.predicted()
        batcher.finish(job, {id(queued): (0, 1.0) for queued in job.inputs}, now + seconds)
        now += seconds + gap
    # Jobs of 2 passes of 9.9 ms, and 10 ms between them.
    assert queue.policy.correction == pytest.approx(1 + gap / (2 * 0.0099), rel=0.05)


def test_time_without_work_is_no_service_time():
    batcher, queue = make()
    for number in range(50):
        batcher.offer(request(queue, 10.0 * number), 10.0 * number)
        run(batcher, 10.0 * number, seconds=0.0099)
    assert queue.policy.correction == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from((0.05, 0.2)), st.booleans())))
@settings(max_examples=50)
def test_a_queue_that_remembers_its_length_admits_as_one_that_is_counted_each_time(requests):
    """Also after jobs, cancellations and requests that go ahead of others."""
    batcher, queue = make()
    now, waiting = 0.0, []
    for count, slo, runs in requests:
        now += 0.003
        one = request(queue, now, slo, count, tenant="ab"[count % 2])
        inputs = [batcher._queued_input(one, row, now) for row in range(count)]
        counted = queue.policy.lateness(list(queue.waiting), inputs, now, batcher.free_at)
        assert queue.lateness(inputs, now, batcher.free_at, 0.0) == pytest.approx(
            counted, abs=1e-12
        )
        try:
            batcher.offer(one, now)
            waiting.append(one)
        except RefusedError:
            assert counted > 0
        places = [queued.place for queued in queue.waiting]
        assert places == sorted(places)
        if runs:
            batcher.next_job(now)
        elif waiting and count == 5:
            batcher.end(waiting.pop(0))


def test_time_in_which_nobody_waits_is_no_service_time_when_those_who_waited_left():
    batcher, queue = make()
    for start in (0.0, 60.0, 120.0):
        one, other = request(queue, start), request(queue, start)
        batcher.offer(one, start)
        job, _ = batcher.next_job(start)
        batcher.offer(other, start)
        batcher.finish(job, {id(queued): (0, 1.0) for queued in job.inputs}, start + 0.0099)
        batcher.end(other)
        assert batcher.next_job(start + 0.01) == (None, [])
    assert queue.policy.correction == pytest.approx(1.0)


def test_a_rerun_that_is_overtaken_by_the_deadline_leaves_the_fast_answer():
    batcher, queue = make()
    requests = [request(queue, cascade=True, slowest=2) for _ in range(4)]
    for one in requests:
        batcher.offer(one, 0.0)
    assert run(batcher, 0.0, confidence=0.5) == []
    job, _ = batcher.next_job(0.01)
    runs, waits = job.inputs[0].request, queue.reruns[0][0].request
    for one in (runs, waits):  # the machine pauses
        assert batcher.end(one, TimeoutError("late")) == [one]
        assert one.error is None
        assert [answer.point for answer in one.answers] == [POINTS[2]]
    outputs = {id(queued): ("slow", 1.0) for queued in job.inputs}
    assert runs not in batcher.finish(job, outputs, 0.3)
    assert runs.answers[0].output != "slow"
