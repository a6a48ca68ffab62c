import json

import pytest

from mimonets import MIMOConvConfig, WideResNetConfig
from mimonets.evaluation import BenchSettings, Contender, Timing, bench, race, time_shares
from mimonets.evaluation.environment import environment
from mimonets.evaluation.throughput import single_input_alternatives
from mimonets.models import MIMOConv

TINY = MIMOConvConfig(
    depth=10, width=1, initial_width=1, num_streams=2, num_classes=3, image_size=8
)
QUICK = BenchSettings(batch_size=4, rounds=3, warmup=1)


def test_a_race_interleaves_warms_up_and_rotates():
    calls = []
    contenders = [Contender(name, lambda name=name: calls.append(name), 1) for name in "abc"]
    rounds = []
    timings = race(contenders, rounds=3, warmup=1, after_round=lambda: rounds.append(1))
    assert "".join(calls) == "abc" + "bca" + "cab" + "abc"
    assert [len(timing.seconds) for timing in timings] == [3, 3, 3]
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


def test_a_bench_covers_every_mode_and_both_alternatives():
    result = bench(TINY, settings=QUICK)
    names = [timing.name for timing in result.timings]
    assert names == [
        "MIMOConv-10-1 (N=2), 1 active",
        "MIMOConv-10-1 (N=2), 2 active",
        "MIMOConv-10-1 (N=1)",
        "WideResNet-10-1",
    ]
    assert result.baselines == names[2:]
    assert all(timing.inputs_per_second > 0 for timing in result.timings)
    data = json.loads(json.dumps(result.as_dict()))
    assert data["settings"]["batch_size"] == 4
    assert data["contenders"][1]["active_streams"] == 2
    assert set(data["contenders"][0]["speedup"]) == set(names[2:])
    for shares in data["time_shares"].values():
        assert set(shares) == {"stem", "binding", "trunk", "unbinding", "classifier"}


def test_modes_can_be_chosen_and_plain_networks_have_one():
    assert list(bench(TINY, [2], QUICK).modes.values()) == [2]
    plain = bench(WideResNetConfig(depth=10, width=1, image_size=8), settings=QUICK)
    assert [timing.name for timing in plain.timings] == ["WideResNet-10-1, 1 active"]
    assert plain.baselines == []


def test_alternatives_have_the_same_depth_width_and_task():
    one_stream, plain = single_input_alternatives(TINY)
    assert one_stream.num_streams == 1
    assert isinstance(plain, WideResNetConfig)
    for other in (one_stream, plain):
        for name in ("depth", "width", "in_channels", "num_classes", "image_size"):
            assert getattr(other, name) == getattr(TINY, name)


def test_time_shares_add_up_and_leave_no_hooks():
    model = MIMOConv(TINY).eval()
    shares = time_shares(model, model.example_inputs(4), rounds=3, active_streams=2)
    assert sum(shares.values()) == pytest.approx(1, abs=0.2)  # medians of shares
    assert not any(child._forward_hooks or child._forward_pre_hooks for child in model.children())


def test_the_environment_names_code_and_machine():
    found = environment()
    assert found["torch"].count("+") == 0
    assert found["threads"] >= 1
    assert found["cpu"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_four_streams_are_nearly_four_times_as_fast():
    result = bench(MIMOConvConfig(), [4], BenchSettings(rounds=9))
    fast = result.timing("MIMOConv-28-10 (N=4), 4 active")
    one, _, _ = fast.speedup_over(result.timing("MIMOConv-28-10 (N=1)"))
    plain, _, _ = fast.speedup_over(result.timing("WideResNet-28-10"))
    shares = result.time_shares[fast.name]
    assert one >= 3.8
    assert plain >= 3.7
    assert shares["stem"] + shares["binding"] + shares["unbinding"] < 0.04
