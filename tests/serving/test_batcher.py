from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mimonets.serving.batcher import Batcher, RefusedError
from mimonets.serving.model_queue import ModelQueue, Ticket
from mimonets.serving.modes import Mode, ServiceTime
from mimonets.serving.policy import Policy

TIME = ServiceTime(per_pass=0.0099)
MODES = [
    Mode(A, TIME, accuracy, confidence=0.9) for A, accuracy in ((1, 0.997), (2, 0.993), (4, 0.987))
]


def make(**limits):
    batcher = Batcher(**limits)
    lane = ModelQueue("model", Policy(MODES))
    batcher.lanes.append(lane)
    return batcher, lane


def ticket(now=0.0, slo=0.2, count=1, **settings):
    return Ticket([None] * count, count, now, now + slo, **settings)


def run(batcher, now, confidence=1.0, seconds=0.01):
    """Run one job; returns what ended before and after it."""
    work, ended = batcher.next_work(now)
    if work is None:
        return ended
    outputs = {id(item): (item.row, confidence) for item in work.job.items}
    return ended + batcher.finish(work, outputs, now + seconds)


class Server(RuleBasedStateMachine):
    """Requests come, are cancelled, run, fail and get late in any order."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.batcher, _ = make()
        self.batcher.lanes.append(ModelQueue("other", Policy(MODES[:1])))
        self.lanes = self.batcher.lanes
        self.admitted, self.ended = [], []

    @rule(
        which=st.integers(0, 1),
        count=st.integers(1, 6),
        slo=st.sampled_from((0.03, 0.2, 1.0)),
        tenant=st.sampled_from("ab"),
        cascade=st.booleans(),
    )
    def arrive(self, which, count, slo, tenant, cascade):
        one = ticket(self.now, slo, count, tenant=tenant, cascade=cascade, size=10 * count + 1)
        try:
            self.batcher.offer(self.lanes[which], one, self.now)
        except RefusedError:
            return
        self.admitted.append(one)

    @rule(seconds=st.sampled_from((0.001, 0.01, 0.5)), confidence=st.sampled_from((0.5, 1.0)))
    def run_a_job(self, seconds, confidence):
        work, ended = self.batcher.next_work(self.now)
        self.ended += ended
        self.now += seconds
        if work is None:
            return
        outputs = {id(item): (item.row, confidence) for item in work.job.items}
        self.ended += self.batcher.finish(work, outputs, self.now)

    @rule(number=st.integers(0, 1000))
    def cancel(self, number):
        if self.admitted:
            self.ended += self.batcher.end(self.admitted[number % len(self.admitted)])

    @rule()
    def fail(self):
        work, ended = self.batcher.next_work(self.now)
        self.ended += ended
        if work is not None:
            self.ended += self.batcher.finish(work, {}, self.now + 0.01)
            self.now += 0.01

    @invariant()
    def everything_is_counted(self):
        queued = [item for lane in self.lanes for item in lane.queue]
        assert sum(self.batcher.queued.values()) == len(queued)
        assert (self.batcher.queued_bytes == 0) == (not queued)
        assert not any(item.owner.is_done for item in queued)
        for lane in self.lanes:
            assert lane.queue == sorted(lane.queue, key=lambda item: item.place)

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
    batcher, lane = make()
    one = ticket(count=7, slo=1.0)
    batcher.offer(lane, one, 0.0)
    ended, now = [], 0.0
    while not batcher.is_empty():
        ended += run(batcher, now)
        now += 0.01
    assert ended == [one]
    assert [answer.output for answer in one.answers] == list(range(7))


def test_a_cancelled_request_leaves_before_it_runs_and_does_not_disturb_its_neighbours():
    batcher, lane = make()
    gone, stays = ticket(), ticket()
    batcher.offer(lane, gone, 0.0)
    batcher.offer(lane, stays, 0.0)
    assert batcher.end(gone) == [gone]
    work, _ = batcher.next_work(0.0)
    assert [item.owner for item in work.job.items] == [stays]


def test_a_request_that_is_cancelled_while_it_runs_is_not_answered_again():
    batcher, lane = make()
    one = ticket()
    batcher.offer(lane, one, 0.0)
    work, _ = batcher.next_work(0.0)
    batcher.end(one)
    outputs = {id(item): (0, 1.0) for item in work.job.items}
    assert batcher.finish(work, outputs, 0.01) == []


def test_what_can_no_longer_be_in_time_is_not_computed():
    batcher, lane = make()
    one = ticket(slo=0.05)
    batcher.offer(lane, one, 0.0)
    work, ended = batcher.next_work(0.045)  # a pass takes 0.0099
    assert work is None
    assert ended == [one]
    assert isinstance(one.error, TimeoutError)


def test_overload_is_refused_at_once_with_a_time_to_come_back():
    batcher, lane = make()
    for _ in range(80):  # 20 passes of 4 in 0.2 s
        batcher.offer(lane, ticket(), 0.0)
    with pytest.raises(RefusedError, match=r"late by \d+ ms") as refused:
        batcher.offer(lane, ticket(), 0.0)
    assert refused.value.retry_after > 0


def test_a_deadline_that_nobody_could_meet_changes_nothing_for_others():
    batcher, lane = make()
    theta = lane.policy.theta(0.0)
    for impossible in (ticket(slo=0.005), ticket(slo=0.1, count=20, limit=0)):
        with pytest.raises(RefusedError, match=r"answers \d+ inputs in \d+ ms") as refused:
            batcher.offer(lane, impossible, 0.0)
        assert refused.value.retry_after is None
    assert lane.policy.theta(0.0) == theta


def test_a_refusal_with_hours_of_time_is_forgotten_in_minutes():
    batcher, lane = make()
    for _ in range(80):
        batcher.offer(lane, ticket(priority=1), 0.0)
    with pytest.raises(RefusedError, match="Overloaded"):
        batcher.offer(lane, ticket(slo=3600.0, count=8), 0.0)
    assert lane.policy.theta(0.0) < lane.policy.settings.theta
    assert lane.policy.theta(600.0) == lane.policy.settings.theta


def test_time_to_deliver_is_kept_free_before_every_deadline():
    batcher, lane = make()
    batcher.overhead = 0.02
    one = ticket(slo=0.2)
    batcher.offer(lane, one, 0.0)
    assert one.items[0].deadline == pytest.approx(0.16), "the way in and the way out"
    batcher.overhead = 10.0
    another = ticket(slo=0.2)
    batcher.offer(lane, another, 0.0)
    assert another.items[0].deadline == pytest.approx(0.15), "at most a quarter of the budget"


def test_inputs_count_not_requests():
    batcher, lane = make()
    with pytest.raises(RefusedError):
        batcher.offer(lane, ticket(count=81), 0.0)
    batcher.offer(lane, ticket(count=80), 0.0)
    with pytest.raises(RefusedError):
        batcher.offer(lane, ticket(), 0.0)


def test_quotas_and_bytes_are_limits():
    batcher, lane = make(max_bytes=100, quotas={"a": 3})
    batcher.offer(lane, ticket(count=3, tenant="a", size=40), 0.0)
    with pytest.raises(RefusedError, match="quota of 3"):
        batcher.offer(lane, ticket(tenant="a", size=1), 0.0)
    with pytest.raises(RefusedError, match="40 bytes are queued"):
        batcher.offer(lane, ticket(tenant="b", size=61), 0.0)
    for one, message in (
        (ticket(count=4, tenant="a", size=1), "4 inputs in one request; the quota is 3"),
        (ticket(tenant="b", size=101), "101 bytes of inputs in one request; at most 100"),
    ):
        with pytest.raises(RefusedError, match=message) as caught:
            batcher.offer(lane, one, 0.0)
        assert caught.value.retry_after is None


def test_doubtful_answers_are_run_again_in_slow_mode_when_nothing_else_waits():
    batcher, lane = make()
    tickets = [ticket(cascade=True) for _ in range(4)]
    for one in tickets:
        batcher.offer(lane, one, 0.0)
    work, _ = batcher.next_work(0.0)
    work.job = lane.policy.take(work.job.items + lane.queue, 2, 1)  # as under load
    lane.queue = []
    doubtful = work.job.items[1]
    outputs = {id(item): ("fast", 0.5 if item is doubtful else 0.95) for item in work.job.items}
    done = batcher.finish(work, outputs, 0.01)
    assert len(done) == 3
    again, ended = batcher.next_work(0.01)
    assert not ended
    assert again.job.items == [doubtful]
    assert again.job.groups[0].mode == 0
    (last,) = batcher.finish(again, {id(doubtful): ("slow", 0.9)}, 0.02)
    assert last.answers[0].output == "slow"
    assert last.answers[0].cascaded
    assert batcher.is_empty()


def test_a_doubtful_answer_is_sent_as_it_is_when_others_wait():
    batcher, lane = make()
    tickets = [ticket(cascade=True) for _ in range(4)]
    for one in tickets:
        batcher.offer(lane, one, 0.0)
    work, _ = batcher.next_work(0.0)
    work.job = lane.policy.take(work.job.items + lane.queue, 2, 1)
    lane.queue = []
    outputs = {id(item): ("fast", 0.5) for item in work.job.items}
    assert batcher.finish(work, outputs, 0.01) == [], "all four hope for a rerun"
    batcher.offer(lane, ticket(now=0.011), 0.011)
    work, ended = batcher.next_work(0.011)
    assert set(ended) == set(tickets)
    assert all(one.answers[0].output == "fast" for one in tickets)


@given(st.integers(1, 4))
def test_a_short_group_reports_the_mode_of_its_number(members):
    batcher, lane = make()
    tickets = [ticket() for _ in range(members)]
    for one in tickets:
        batcher.offer(lane, one, 0.0)
    work, _ = batcher.next_work(0.0)
    work.job = lane.policy.take([t.items[0] for t in tickets], 2, 1)
    lane.queue = []
    batcher.finish(work, {id(t.items[0]): (0, 1.0) for t in tickets}, 0.01)
    mode = lane.policy.modes[tickets[0].answers[0].mode]
    assert mode.active_streams == {1: 1, 2: 2, 3: 4, 4: 4}[members]


def test_what_waits_for_another_model_counts_as_slow_as_it_must_run():
    for limit, passes in ((0, 9), (2, 3)):
        batcher, lane = make()
        other = ModelQueue("other", Policy(MODES))
        batcher.lanes.append(other)
        for _ in range(9):
            batcher.offer(other, ticket(slo=0.1, limit=limit), 0.0)
        admitted = 0
        with suppress(RefusedError):
            while admitted < 100:
                batcher.offer(lane, ticket(slo=0.11), 0.0)
                admitted += 1
        assert 0 < admitted <= 4 * (11 - passes)
        now, late = 0.0, []
        while not batcher.is_empty():
            late += [one for one in run(batcher, now, seconds=0.0099) if one.error is not None]
            now += 0.0099
        assert late == []


def test_the_model_whose_request_is_most_urgent_runs_first():
    batcher, lane = make()
    other = ModelQueue("other", Policy(MODES))
    batcher.lanes.append(other)
    batcher.offer(lane, ticket(slo=0.5), 0.0)
    batcher.offer(other, ticket(slo=0.1), 0.0)
    assert batcher.next_work(0.0)[0].lane is other


def test_time_between_two_jobs_counts_as_service_time_while_others_wait():
    """Else a server that needs long between jobs admits more than it can answer in time."""
    batcher, lane = make()
    now, gap = 0.0, 0.01
    for _ in range(200):
        while len(lane.queue) < 12:
            batcher.offer(lane, ticket(now, slo=60.0), now)
        work, _ = batcher.next_work(now)
        seconds = work.job.predicted()
        batcher.finish(work, {id(item): (0, 1.0) for item in work.job.items}, now + seconds)
        now += seconds + gap
    # Jobs of 2 passes of 9.9 ms, and 10 ms between them.
    assert lane.policy.correction == pytest.approx(1 + gap / (2 * 0.0099), rel=0.05)


def test_time_without_work_is_no_service_time():
    batcher, lane = make()
    for number in range(50):
        batcher.offer(lane, ticket(10.0 * number), 10.0 * number)
        run(batcher, 10.0 * number, seconds=0.0099)
    assert lane.policy.correction == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from((0.05, 0.2)), st.booleans())))
@settings(max_examples=50)
def test_a_queue_that_remembers_its_length_admits_as_one_that_is_counted_each_time(requests):
    """Also after jobs, cancellations and requests that go ahead of others."""
    batcher, lane = make()
    now, waiting = 0.0, []
    for count, slo, runs in requests:
        now += 0.003
        one = ticket(now, slo, count, tenant="ab"[count % 2])
        items = [batcher._make_item(one, row, now) for row in range(count)]
        counted = lane.policy.lateness(lane.queue, items, now, batcher.free_at)
        assert lane.lateness(items, now, batcher.free_at, 0.0) == pytest.approx(counted, abs=1e-12)
        try:
            batcher.offer(lane, one, now)
            waiting.append(one)
        except RefusedError:
            assert counted > 0
        places = [item.place for item in lane.queue]
        assert places == sorted(places)
        if runs:
            batcher.next_work(now)
        elif waiting and count == 5:
            batcher.end(waiting.pop(0))


def test_time_in_which_nobody_waits_is_no_service_time_when_those_who_waited_left():
    batcher, lane = make()
    for start in (0.0, 60.0, 120.0):
        one, other = ticket(start), ticket(start)
        batcher.offer(lane, one, start)
        work, _ = batcher.next_work(start)
        batcher.offer(lane, other, start)
        batcher.finish(work, {id(item): (0, 1.0) for item in work.job.items}, start + 0.0099)
        batcher.end(other)
        assert batcher.next_work(start + 0.01) == (None, [])
    assert lane.policy.correction == pytest.approx(1.0)


def test_a_rerun_that_is_overtaken_by_the_deadline_leaves_the_fast_answer():
    batcher, lane = make()
    tickets = [ticket(cascade=True, least=2) for _ in range(4)]
    for one in tickets:
        batcher.offer(lane, one, 0.0)
    assert run(batcher, 0.0, confidence=0.5) == []
    work, _ = batcher.next_work(0.01)
    runs, waits = work.job.items[0].owner, lane.reruns[0][0].owner
    for one in (runs, waits):  # the machine pauses
        assert batcher.end(one, TimeoutError("late")) == [one]
        assert one.error is None
        assert [answer.mode for answer in one.answers] == [2]
    outputs = {id(item): ("slow", 1.0) for item in work.job.items}
    assert runs not in batcher.finish(work, outputs, 0.3)
    assert runs.answers[0].output != "slow"
