from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimonets.serving.jobs import Backlog, Item
from mimonets.serving.modes import Mode, ServiceTime
from mimonets.serving.policy import Policy, PolicySettings

TIME = ServiceTime(per_call=0.001, per_pass=0.008, per_input=0.0002)
MODES = [Mode(A, TIME, accuracy) for A, accuracy in ((1, 0.997), (2, 0.993), (4, 0.987))]
SLO = 0.1


def waiting(count, *, now=0.0, **settings):
    """Make inputs that just arrived."""
    return [Item(now, now + SLO, number=number, **settings) for number in range(count)]


def ordered(items):
    return sorted(items, key=lambda item: item.place)


@st.composite
def queues(draw, max_size=30):
    items = []
    for number in range(draw(st.integers(1, max_size))):
        arrival = draw(st.floats(-0.1, 0.0))
        items.append(
            Item(
                arrival=arrival,
                deadline=arrival + draw(st.sampled_from((0.05, 0.1, 1.0))),
                limit=draw(st.sampled_from((0, 1, 2, 10**9))),
                tenant=draw(st.sampled_from("abc")),
                shares=draw(st.booleans()),
                alone=draw(st.integers(0, 9)) == 0,
                priority=draw(st.integers(0, 1)),
                number=number,
            )
        )
    return ordered(items)


@given(queues())
def test_something_always_runs_while_something_waits(queue):
    job = Policy(MODES).next_job(queue, now=0.0)
    assert job is not None
    assert len(job.items) >= 1
    assert len(set(map(id, job.items))) == len(job.items)
    assert set(map(id, job.items)) <= set(map(id, queue))
    assert id(queue[0]) in set(map(id, job.items)), "the first in the queue is never left out"


@given(queues())
def test_tenants_share_a_pass_only_if_both_agreed(queue):
    for group in Policy(MODES).next_job(queue, now=0.0).groups:
        tenants = {item.tenant for item in group.items}
        assert len(tenants) == 1 or all(item.shares for item in group.items)


@given(queues())
def test_nobody_runs_in_a_faster_mode_than_allowed(queue):
    for group in Policy(MODES).next_job(queue, now=0.0).groups:
        for item in group.items:
            assert group.mode <= item.limit
            assert len(group.items) <= MODES[group.mode].active_streams
            if item.alone:
                assert group.mode == 0
                assert len(group.items) == 1


@given(queues())
def test_calls_of_the_engine_keep_the_groups_apart(queue):
    """The engine cuts a call into consecutive groups: these must be the policy's."""
    job = Policy(MODES).next_job(queue, now=0.0)
    seen = []
    for mode, items in job.calls():
        size = MODES[mode].active_streams
        for start in range(0, len(items), size):
            seen.append({id(item) for item in items[start : start + size]})
        if any(item.alone for item in items):
            assert len(items) == 1, "a deterministic answer depends on no batch size"
    wanted = [{id(item) for item in group.items} for group in job.groups]
    assert sorted(map(sorted, seen)) == sorted(map(sorted, wanted))


@given(st.integers(1, 60), st.integers(1, 60), st.floats(0.0, 0.08))
def test_a_longer_queue_never_lowers_the_active_streams(short, more, age):
    policy = Policy(MODES)
    items = [Item(-age, SLO - age, number=number) for number in range(short + more)]
    few, many = policy.next_job(items[:short], 0.0), policy.next_job(items, 0.0)
    assert MODES[many.gear].active_streams >= MODES[few.gear].active_streams


@given(st.integers(1, 40))
def test_with_one_mode_it_is_plain_dynamic_batching(count):
    """First come, first served, as many as wait, up to what is in time."""
    policy = Policy(MODES[:1])
    queue = waiting(count)
    job = policy.next_job(queue, 0.0)
    assert [item.number for item in job.items] == list(range(len(job.items)))
    assert len(job.items) == min(count, len(job.items))
    assert len(job.items) >= min(count, 2)
    assert all(group.mode == 0 and len(group.items) == 1 for group in job.groups)


def test_idle_is_slow_and_a_full_queue_is_fast():
    policy = Policy(MODES)
    gears = [policy.next_job(waiting(count), 0.0).gear for count in (1, 5, 9, 11, 16, 40)]
    assert gears[0] == 0
    assert gears[-1] == 2
    assert 1 in gears
    assert gears == sorted(gears)


def test_a_short_deadline_behind_a_long_one_is_seen():
    """The last deadline is far away, but a prefix of the queue is in a hurry."""
    policy = Policy(MODES)
    relaxed = [Item(0.0, 10.0, number=number) for number in range(10)]
    assert policy.next_job(ordered(relaxed), 0.0).gear == 0
    hurried = [Item(0.0, 0.1, number=100 + number) for number in range(9)]
    assert policy.next_job(ordered(relaxed + hurried), 0.0).gear > 0


def test_theta_trades_accuracy_for_reserve():
    queue = waiting(9)
    gears = [
        Policy(MODES, PolicySettings(theta=theta)).next_job(queue, 0.0).gear
        for theta in (0.2, 0.6, 1.0)
    ]
    assert gears == sorted(gears, reverse=True)
    assert gears[0] > gears[-1]


def test_priority_comes_before_deadline():
    late_but_important = Item(0.0, 5.0, priority=0, number=1)
    queue = ordered([*waiting(3, priority=1), late_but_important])
    assert queue[0] is late_but_important


def test_admission_keeps_the_promises_to_those_who_wait():
    policy = Policy(MODES)
    queue = []
    for number in range(200):
        new = Item(0.0, SLO, number=number)
        if policy.lateness(queue, [new], 0.0) <= 0:
            queue.append(new)
    # 0.1 s: 12 passes of 4 take 0.1056 s with calls and inputs; 11 take less.
    assert 40 <= len(queue) <= 48
    backlog = Backlog(MODES, 2, policy.settings.max_passes)
    for item in queue:
        assert backlog.add(item) <= item.deadline
    urgent = Item(0.0, 0.02, number=999)
    assert policy.lateness(queue, [urgent], 0.0) > 0, "it would push out those who were promised"
    assert policy.lateness([], [urgent], 0.0) <= 0


def test_admission_waits_for_the_running_job_and_for_other_models():
    policy, new = Policy(MODES), [Item(0.0, 0.05)]
    assert policy.lateness([], new, 0.0) <= 0
    assert policy.lateness([], new, 0.0, free_at=0.045) > 0
    assert policy.lateness([], new, 0.0, elsewhere=0.045) > 0


@given(st.lists(st.sampled_from((1, 2, 4)), min_size=1, max_size=40))
def test_a_backlog_takes_as_long_as_its_jobs(limits):
    """Oracle: form the groups one by one, put full ones into jobs, and add up all calls."""
    index = {1: 0, 2: 1, 4: 2}
    items = [Item(0.0, 1.0, limit=index[limit], number=n) for n, limit in enumerate(limits)]
    backlog = Backlog(MODES, point=2, passes=3)
    longest = 0.0
    for count in range(1, len(items) + 1):
        seconds = 0.0
        for mode, point in enumerate(MODES):
            members = sum(item.limit == mode for item in items[:count])
            full, rest = divmod(members, point.active_streams)
            jobs = -(-full // 3)
            seconds += (jobs + (rest > 0)) * TIME.per_call
            seconds += (full + (rest > 0)) * TIME.per_pass + members * TIME.per_input
        longest = max(longest, seconds)
        assert backlog.add(items[count - 1]) == pytest.approx(longest)


def test_the_safety_factor_settles_at_the_99th_percentile():
    import numpy as np

    rng, policy = np.random.default_rng(0), Policy(MODES)
    ratios = np.exp(rng.normal(0.0, 0.2, size=20_000))
    factors = []
    for ratio in ratios:
        policy.observe(1.0, float(ratio))
        factors.append(policy.factor)
    exceeded = np.mean(ratios[2000:] > np.array(factors[1999:-1]))
    assert 0.005 < exceeded < 0.02


def test_a_slower_machine_is_noticed():
    policy = Policy(MODES)
    for _ in range(200):
        policy.observe(0.01, 0.02)
    assert policy.correction == pytest.approx(2.0, rel=0.01)
    assert policy.next_job(waiting(5), 0.0).gear > Policy(MODES).next_job(waiting(5), 0.0).gear


def test_a_big_and_a_small_network_are_two_modes():
    big = Mode(1, TIME, 0.99, name="big")
    small = Mode(1, replace(TIME, per_pass=0.002), 0.95, name="small")
    policy = Policy([big, small])
    assert policy.next_job(waiting(1), 0.0).gear == 0
    assert policy.next_job(waiting(20), 0.0).gear == 1


def test_requests_choose_how_fast_is_too_fast():
    policy = Policy(MODES)
    assert policy.limit() == 2
    assert policy.limit(max_active=3) == 1
    assert policy.limit(min_accuracy=0.99) == 1
    with pytest.raises(ValueError, match=r"min_accuracy=0.999.*1 active: 0.9970, 2 active"):
        policy.limit(min_accuracy=0.999)


def test_settings_refuse_nonsense():
    with pytest.raises(ValueError, match="theta=0 must be above 0"):
        PolicySettings(theta=0)
    with pytest.raises(ValueError, match="max_passes=0"):
        PolicySettings(max_passes=0)


def test_refusals_make_it_fast_and_calm_makes_it_accurate_again():
    policy, queue = Policy(MODES), waiting(4)
    assert policy.next_job(queue, now=0.0).gear == 0
    for _ in range(4):
        policy.refused(0.0, SLO)
    assert policy.theta(0.0) < 0.01
    assert policy.next_job(queue, now=0.0).gear == policy.fastest, "nothing is left for accuracy"
    later = [policy.theta(seconds) for seconds in (1.0, 60.0, 1e4, 1e9)]
    assert later == sorted(later)
    assert later[-1] == policy.settings.theta
    assert policy.next_job(waiting(4, now=1e4), now=1e4).gear == 0


@pytest.mark.parametrize(("per_call", "passes"), [(0.0, 2), (0.2, 2), (1.2, 3), (3.0, 8), (50, 8)])
def test_jobs_are_as_small_as_cheap_calls_allow(per_call, passes):
    """With c seconds per call and p per pass, c / (passes p) stays below a twentieth."""
    mode = Mode(4, ServiceTime(per_call=per_call / 1000, per_pass=0.008), 0.98)
    policy = Policy([mode])
    assert policy.largest_job == passes
    job = policy.next_job(waiting(200), now=0.0)
    assert len(job.groups) <= passes
