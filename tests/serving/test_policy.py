from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimonets.serving.jobs import Backlog, QueuedInput
from mimonets.serving.operating_points import ServiceTime
from mimonets.serving.policy import Policy, PolicySettings
from serving.fakes import make_point

TIME = ServiceTime(per_call=0.001, per_pass=0.008, per_input=0.0002)
POINTS = [make_point(A, TIME, accuracy) for A, accuracy in ((1, 0.997), (2, 0.993), (4, 0.987))]
SLO = 0.1


def waiting(count, *, now=0.0, **settings):
    """Make inputs that just arrived."""
    return [QueuedInput(now, now + SLO, number=number, **settings) for number in range(count)]


def ordered(inputs):
    return sorted(inputs, key=lambda queued: queued.place)


@st.composite
def queues(draw, max_size=30):
    inputs = []
    for number in range(draw(st.integers(1, max_size))):
        arrival = draw(st.floats(-0.1, 0.0))
        inputs.append(
            QueuedInput(
                arrival=arrival,
                deadline=arrival + draw(st.sampled_from((0.05, 0.1, 1.0))),
                fastest=draw(st.sampled_from((0, 1, 2, 10**9))),
                tenant=draw(st.sampled_from("abc")),
                shares=draw(st.booleans()),
                alone=draw(st.integers(0, 9)) == 0,
                priority=draw(st.integers(0, 1)),
                number=number,
            )
        )
    return ordered(inputs)


@given(queues())
def test_something_always_runs_while_something_waits(queue):
    job = Policy(POINTS).next_job(queue, now=0.0)
    assert job is not None
    assert len(job.inputs) >= 1
    assert len(set(map(id, job.inputs))) == len(job.inputs)
    assert set(map(id, job.inputs)) <= set(map(id, queue))
    assert id(queue[0]) in set(map(id, job.inputs)), "the first in the queue is never left out"


@given(queues())
def test_tenants_share_a_pass_only_if_both_agreed(queue):
    for group in Policy(POINTS).next_job(queue, now=0.0).groups:
        tenants = {queued.tenant for queued in group.inputs}
        assert len(tenants) == 1 or all(queued.shares for queued in group.inputs)


@given(queues())
def test_nobody_runs_at_a_faster_point_than_allowed(queue):
    for group in Policy(POINTS).next_job(queue, now=0.0).groups:
        for queued in group.inputs:
            assert group.point.number <= POINTS[min(queued.fastest, 2)].number
            assert len(group.inputs) <= group.point.inputs_per_pass
            if queued.alone:
                assert group.point is POINTS[0]
                assert len(group.inputs) == 1


@given(queues())
def test_calls_of_the_engine_keep_the_groups_apart(queue):
    """The engine cuts a call into consecutive groups: these must be the policy's."""
    job = Policy(POINTS).next_job(queue, now=0.0)
    seen = []
    for point, inputs in job.calls():
        size = point.inputs_per_pass
        for start in range(0, len(inputs), size):
            seen.append({id(queued) for queued in inputs[start : start + size]})
        if any(queued.alone for queued in inputs):
            assert len(inputs) == 1, "a deterministic answer depends on no batch size"
    wanted = [{id(queued) for queued in group.inputs} for group in job.groups]
    assert sorted(map(sorted, seen)) == sorted(map(sorted, wanted))


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.0, 0.08))
def test_a_longer_queue_never_lowers_the_active_streams(short, more, age):
    policy = Policy(POINTS)
    inputs = [QueuedInput(-age, SLO - age, number=number) for number in range(short + more)]
    few, many = policy.next_job(inputs[:short], 0.0), policy.next_job(inputs, 0.0)
    assert many.point.inputs_per_pass >= few.point.inputs_per_pass


@given(st.integers(1, 40))
def test_with_one_point_it_is_plain_dynamic_batching(count):
    """First come, first served, as many as wait, up to what is in time."""
    policy = Policy(POINTS[:1])
    queue = waiting(count)
    job = policy.next_job(queue, 0.0)
    assert [queued.number for queued in job.inputs] == list(range(len(job.inputs)))
    assert len(job.inputs) == min(count, len(job.inputs))
    assert len(job.inputs) >= min(count, 2)
    assert all(group.point is POINTS[0] and len(group.inputs) == 1 for group in job.groups)


def test_idle_is_slow_and_a_full_queue_is_fast():
    policy = Policy(POINTS)
    jobs = [policy.next_job(waiting(count), 0.0) for count in (1, 5, 9, 11, 16, 40)]
    active = [job.point.inputs_per_pass for job in jobs]
    assert active[0] == 1
    assert active[-1] == 4
    assert 2 in active
    assert active == sorted(active)


def test_a_short_deadline_behind_a_long_one_is_seen():
    """The last deadline is far away, but a prefix of the queue is in a hurry."""
    policy = Policy(POINTS)
    relaxed = [QueuedInput(0.0, 10.0, number=number) for number in range(10)]
    assert policy.next_job(ordered(relaxed), 0.0).point is POINTS[0]
    hurried = [QueuedInput(0.0, 0.1, number=100 + number) for number in range(9)]
    assert policy.next_job(ordered(relaxed + hurried), 0.0).point is not POINTS[0]


def test_theta_trades_accuracy_for_reserve():
    queue = waiting(9)
    active = [
        Policy(POINTS, PolicySettings(theta=theta)).next_job(queue, 0.0).point.inputs_per_pass
        for theta in (0.2, 0.6, 1.0)
    ]
    assert active == sorted(active, reverse=True)
    assert active[0] > active[-1]


def test_priority_comes_before_deadline():
    late_but_important = QueuedInput(0.0, 5.0, priority=0, number=1)
    queue = ordered([*waiting(3, priority=1), late_but_important])
    assert queue[0] is late_but_important


def test_admission_keeps_the_promises_to_those_who_wait():
    policy = Policy(POINTS)
    queue = []
    for number in range(200):
        new = QueuedInput(0.0, SLO, number=number)
        if policy.lateness(queue, [new], 0.0) <= 0:
            queue.append(new)
    # 0.1 s: 12 passes of 4 take 0.1056 s with calls and inputs; 11 take less.
    assert 40 <= len(queue) <= 48
    backlog = Backlog(POINTS, 2, policy.settings.max_passes)
    for queued in queue:
        assert backlog.add(queued) <= queued.deadline
    urgent = QueuedInput(0.0, 0.02, number=999)
    assert policy.lateness(queue, [urgent], 0.0) > 0, "it would push out those who were promised"
    assert policy.lateness([], [urgent], 0.0) <= 0


def test_admission_waits_for_the_running_job_and_for_other_models():
    policy, new = Policy(POINTS), [QueuedInput(0.0, 0.05)]
    assert policy.lateness([], new, 0.0) <= 0
    assert policy.lateness([], new, 0.0, free_at=0.045) > 0
    assert policy.lateness([], new, 0.0, elsewhere=0.045) > 0


@given(st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=40))
def test_a_backlog_takes_as_long_as_its_jobs(limits):
    """Oracle: form the groups one by one, put full ones into jobs, and add up all calls."""
    index = {1: 0, 2: 1, 4: 2}
    inputs = [QueuedInput(0.0, 1.0, fastest=index[A], number=n) for n, A in enumerate(limits)]
    backlog = Backlog(POINTS, index=2, passes=3)
    longest = 0.0
    for count in range(1, len(inputs) + 1):
        seconds = 0.0
        for number, point in enumerate(POINTS):
            members = sum(queued.fastest == number for queued in inputs[:count])
            full, rest = divmod(members, point.inputs_per_pass)
            jobs = -(-full // 3)
            seconds += (jobs + (rest > 0)) * TIME.per_call
            seconds += (full + (rest > 0)) * TIME.per_pass + members * TIME.per_input
        longest = max(longest, seconds)
        assert backlog.add(inputs[count - 1]) == pytest.approx(longest)


def test_the_safety_factor_settles_at_the_99th_percentile():
    import numpy as np

    rng, policy = np.random.default_rng(0), Policy(POINTS)
    ratios = np.exp(rng.normal(0.0, 0.2, size=20_000))
    factors = []
    for ratio in ratios:
        policy.observe(1.0, float(ratio))
        factors.append(policy.factor)
    exceeded = np.mean(ratios[2000:] > np.array(factors[1999:-1]))
    assert 0.005 < exceeded < 0.02


def test_a_slower_machine_is_noticed():
    policy = Policy(POINTS)
    for _ in range(200):
        policy.observe(0.01, 0.02)
    assert policy.correction == pytest.approx(2.0, rel=0.01)
    before, now = (one.next_job(waiting(5), 0.0).point for one in (Policy(POINTS), policy))
    assert now.inputs_per_pass > before.inputs_per_pass


def test_a_big_and_a_small_network_are_two_points():
    big = make_point(1, TIME, 0.99, name="big")
    small = make_point(1, replace(TIME, per_pass=0.002), 0.95, name="small", number=2)
    policy = Policy([big, small])
    assert policy.next_job(waiting(1), 0.0).point is big
    assert policy.next_job(waiting(20), 0.0).point is small


def test_settings_refuse_nonsense():
    with pytest.raises(ValueError, match="theta=0 must be a number > 0"):
        PolicySettings(theta=0)
    with pytest.raises(ValueError, match="max_passes=0"):
        PolicySettings(max_passes=0)


def test_refusals_make_it_fast_and_calm_makes_it_accurate_again():
    policy, queue = Policy(POINTS), waiting(4)
    assert policy.next_job(queue, now=0.0).point is POINTS[0]
    for _ in range(4):
        policy.refused(0.0, SLO)
    assert policy.theta(0.0) < 0.01
    fastest = policy.next_job(queue, now=0.0).point
    assert fastest is POINTS[-1], "nothing is left for accuracy"
    later = [policy.theta(seconds) for seconds in (1.0, 60.0, 1e4, 1e9)]
    assert later == sorted(later)
    assert later[-1] == policy.settings.theta
    assert policy.next_job(waiting(4, now=1e4), now=1e4).point is POINTS[0]


@pytest.mark.parametrize(("per_call", "passes"), [(0.0, 2), (0.2, 2), (1.2, 3), (3.0, 8), (50, 8)])
def test_jobs_are_as_small_as_cheap_calls_allow(per_call, passes):
    """With c seconds per call and p per pass, c / (passes p) stays below a twentieth."""
    point = make_point(4, ServiceTime(per_call=per_call / 1000, per_pass=0.008), 0.98)
    policy = Policy([point])
    assert policy.most_passes == passes
    job = policy.next_job(waiting(200), now=0.0)
    assert len(job.groups) <= passes
