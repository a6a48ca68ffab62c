import pytest

from mimonets import MIMOConvConfig
from mimonets.evaluation import Contender, Timing, race, time_shares
from mimonets.models import MIMOConv

TINY = MIMOConvConfig(
    depth=10, width=1, initial_width=1, num_streams=2, num_classes=3, image_size=8
)


def test_a_race_interleaves_warms_up_and_rotates():
    calls = []
    contenders = [Contender(name, lambda name=name: calls.append(name), 1) for name in "abc"]
    rounds = []
    timings = race(contenders, rounds=3, warmup=1, after_round=lambda: rounds.append(1))
    assert "".join(calls) == "abc" + "bca" + "cab" + "abc"
    assert [len(timing.seconds) for timing in timings] == [3, 3, 3]
    assert [len(timing.cpu_seconds) for timing in timings] == [3, 3, 3]
    assert len(rounds) == 4


def test_medians_quartiles_and_speedups():
    fast = Timing("fast", 10, (1.0, 2.0, 3.0, 4.0, 100.0))
    slow = Timing("slow", 5, (1.0, 2.0, 3.0, 4.0, 100.0))
    assert fast.inputs_per_second == pytest.approx(10 / 3)
    assert fast.spread == (10 / 4, 10 / 2)
    assert fast.speedup_over(slow) == (2, 2, 2)  # round by round: a slow round slows both
    assert Timing("once", 6, (2.0,)).spread == (3, 3)


@pytest.mark.parametrize("settings", [{"rounds": 0}, {"warmup": -1}])
def test_a_race_without_rounds_is_refused(settings):
    with pytest.raises(ValueError, match="Cannot race 1 contenders"):
        race([Contender("a", lambda: None, 1)], **settings)


def test_time_shares_add_up_and_leave_no_hooks():
    model = MIMOConv(TINY).eval()
    shares = time_shares(model, model.example_inputs(4), rounds=9, active_streams=2)
    assert 0.5 < sum(shares.values()) < 1.5  # medians of shares, on a machine that may be busy
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in model.children())
