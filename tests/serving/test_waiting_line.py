"""A long queue costs no more time than a short one, and promises no more."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimonets.serving import model_queue, policy, waiting_line
from mimonets.serving.batcher import Batcher
from mimonets.serving.errors import RefusedError
from mimonets.serving.jobs import Backlog, QueuedInput
from mimonets.serving.model_queue import InferenceRequest, ModelQueue
from mimonets.serving.operating_points import ServiceTime
from mimonets.serving.policy import Policy
from mimonets.serving.waiting_line import Block, WaitingLine
from serving.fakes import make_point

TIME = ServiceTime(per_call=0.001, per_pass=0.008, per_input=0.0002)
POINTS = [make_point(A, TIME, accuracy) for A, accuracy in ((1, 0.997), (2, 0.993), (4, 0.987))]
FAST = [
    make_point(A, ServiceTime(per_call=1e-4, per_pass=6e-4), accuracy)
    for A, accuracy in ((1, 0.997), (2, 0.993), (3, 0.99), (4, 0.987))
]


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(waiting_line, "MOST", 4)
    monkeypatch.setattr(model_queue, "MOST", 4)
    monkeypatch.setattr(policy, "FEW", 0)


runs = st.tuples(
    st.integers(1, 9),  # inputs
    st.sampled_from((0.05, 0.1, 0.5, 3.0)),  # seconds to answer
    st.sampled_from((0, 1, 2, 10**9)),  # fastest point
    st.sampled_from("ab"),
    st.booleans(),  # shares
    st.integers(0, 9).map(lambda number: number == 0),  # alone
    st.integers(0, 1),  # priority
)


def inputs_of(run, number, now=0.0):
    count, slo, fastest, tenant, shares, alone, priority = run
    return [
        QueuedInput(
            now, now + slo, fastest, 0, tenant, shares, alone, priority, number + row, run, row
        )
        for row in range(count)
    ]


def fill(line, wanted):
    """Add runs of inputs; returns what waits, in order."""
    waiting = []
    for position, run in enumerate(wanted):
        made = inputs_of(run, 100 * position)
        line.add(made)
        waiting += made
    return sorted(waiting, key=lambda queued: queued.place)


@pytest.mark.usefixtures("small_blocks")
@given(st.lists(runs, max_size=12), st.data())
def test_a_line_is_a_sorted_list(wanted, data):
    line = WaitingLine()
    waiting = fill(line, wanted)
    while True:
        assert list(line) == waiting
        assert len(line) == len(waiting)
        assert all(0 < len(block.inputs) <= 4 for block in line.blocks)
        if not waiting:
            break
        assert (line[0], line[-1]) == (waiting[0], waiting[-1])
        first, last = sorted(data.draw(st.integers(0, len(waiting) - 1)) for _ in range(2))
        bounds = waiting[first].place, waiting[last].place
        chosen = {id(queued) for queued in waiting[first : last + 1 : data.draw(st.integers(1, 2))]}
        gone = line.remove(lambda one: id(one) in chosen, *bounds)  # noqa: B023
        assert {id(queued) for queued in gone} == chosen
        waiting = [queued for queued in waiting if id(queued) not in chosen]


@given(st.lists(runs, min_size=1, max_size=6), st.integers(0, 2), st.integers(1, 3))
def test_the_bound_of_a_block_is_no_less_than_its_backlog(wanted, index, passes):
    waiting = fill(WaitingLine(), wanted)
    backlog = Backlog(POINTS, index, passes)
    longest = max(backlog.add(queued) for queued in waiting)
    assert Block(waiting).bound(POINTS, index, passes, None) >= longest - 1e-12
    own = Block(waiting).bound(POINTS, index, passes, "a")
    assert own <= Block(waiting).bound(POINTS, index, passes, None) + 1e-12


@pytest.mark.usefixtures("small_blocks")
@given(st.lists(runs, min_size=1, max_size=12), runs)
def test_what_a_line_of_blocks_promises_a_list_would_promise_too(wanted, new):
    queue = ModelQueue("model", Policy(POINTS))
    waiting = fill(queue.waiting, wanted)
    inputs = inputs_of(new, 10_000)
    exact = queue.policy.lateness(waiting, inputs, 0.0)
    assert queue.lateness(inputs, 0.0, 0.0, 0.0) >= exact - 1e-9
    for index, passes in ((0, 2), (1, 2), (2, 4)):
        if queue.policy._drains(queue.waiting, index, passes, 0.0, 0.0):
            backlog, theta = Backlog(POINTS, index, passes), queue.policy.theta(0.0)
            for queued in waiting:
                assert backlog.add(queued) <= theta * queued.deadline + 1e-9


def offer(batcher, queue, count=1, slo=3600.0, now=0.0, **settings):
    request = InferenceRequest(queue, [None] * count, count, now, now + slo, **settings)
    batcher.offer(request, now)
    return request


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 250])
def test_at_100_000_queued_inputs_choosing_and_admitting_take_less_than_a_millisecond(size):
    """Of CPU: the shortest of several, since the machine does other things too."""
    batcher = Batcher(share=0.5)
    queue = ModelQueue("model", Policy(FAST))
    batcher.queues.append(queue)
    for number in range(100_000 // size):  # past admission, which would take its time each time
        until = 3500 + number * size / 1000
        request = InferenceRequest(queue, None, size, 0.0, until, tenant="crowd")
        request.answers, request.left = [None] * size, size
        queue.join([batcher._queued_input(request, row, 0.0) for row in range(size)])
    batcher.inputs.add("crowd", len(queue.waiting))
    queue._backlog = None
    taken = {"admit first": [], "admit last": [], "admit between": [], "choose": [], "leave": []}
    slos = {"admit first": 0.1, "admit last": 3620.0, "admit between": 3555.0}

    def measure(name, call):
        started = time.thread_time()
        found = call()
        taken[name].append(time.thread_time() - started)
        return found

    now = 0.0
    for _ in range(7):
        for name, slo in slos.items():
            request = measure(name, lambda: offer(batcher, queue, slo=slo, now=now, tenant="b"))  # noqa: B023
            if name == "admit between":
                measure("leave", lambda: batcher.end(request))  # noqa: B023
        job, _ = measure("choose", lambda: batcher.next_job(now))  # noqa: B023
        outputs = {id(queued): (0, 1.0) for queued in job.inputs}
        now += 0.001
        batcher.finish(job, outputs, now)
    least = {name: min(seconds) for name, seconds in taken.items()}
    assert all(seconds < 0.001 for seconds in least.values()), least


def test_the_queue_is_bounded_in_all_and_for_each_tenant():
    batcher = Batcher(max_inputs=100, share=0.5, quotas={"big": 70})
    queue = ModelQueue("model", Policy(FAST))
    batcher.queues.append(queue)
    offer(batcher, queue, 50, tenant="a")
    with pytest.raises(RefusedError, match="50 inputs queued; its limit is 50"):
        offer(batcher, queue, tenant="a")
    with pytest.raises(RefusedError, match="101 inputs in one request; the limit is 100"):
        offer(batcher, queue, 101, tenant="b")
    with pytest.raises(RefusedError, match="50 inputs are queued already"):
        offer(batcher, queue, 60, tenant="big")
    offer(batcher, queue, 50, tenant="big")


def test_a_tenant_that_floods_the_server_leaves_time_for_others():
    batcher = Batcher(share=0.5)
    queue = ModelQueue("model", Policy(FAST))
    batcher.queues.append(queue)

    def flood(now):
        for admitted in range(1000):
            try:
                offer(batcher, queue, slo=0.1, now=now, tenant="flood")
            except RefusedError as error:
                return admitted, error
        raise AssertionError("everything was admitted")

    now = 0.0
    admitted, refused = flood(now)
    assert 200 < admitted < 400  # 0.05 s: about 80 passes of 4
    assert "more than 50%" in str(refused)
    assert refused.retry_after > 0
    others = [offer(batcher, queue, slo=0.1, now=now, tenant="good")]
    while not batcher.is_empty() and now < 1:
        job, ended = batcher.next_job(now)
        assert not ended
        now += job.predicted()
        batcher.finish(job, {id(queued): (0, 1.0) for queued in job.inputs}, now)
        if now < 0.3:
            flood(now)
            others.append(offer(batcher, queue, slo=0.1, now=now, tenant="good"))
    assert len(others) > 20
    assert all(one.is_done and one.error is None for one in others)


def test_one_large_request_may_take_all_of_its_time():
    batcher = Batcher(share=0.5)
    queue = ModelQueue("model", Policy(FAST))
    batcher.queues.append(queue)
    offer(batcher, queue, 500, slo=0.1, tenant="a")


@settings(max_examples=20, deadline=None)
@given(st.lists(runs, max_size=12))
def test_a_line_whose_blocks_shrink_has_few_of_them(wanted):
    line = WaitingLine()
    waiting = fill(line, wanted * 5)
    for queued in waiting[1::2]:
        line.remove(lambda one: one is queued, queued.place, queued.place)  # noqa: B023
    assert len(line.blocks) <= 1 + len(waiting) // 32
