import json

import pytest

import mimonets as mn
from mimonets import MIMOConvConfig, MIMOFormerConfig, PerformerConfig, WideResNetConfig
from mimonets.evaluation import BenchSettings, bench
from mimonets.evaluation.bench import model_name, single_input_alternatives

TINY = MIMOConvConfig(
    depth=10, width=1, initial_width=1, num_streams=2, num_classes=3, image_size=8
)
QUICK = BenchSettings(batch_size=4, rounds=3, warmup=1)


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


def test_several_models_race_together_against_one_performer():
    small = {"max_length": 8, "depth": 1, "heads": 1, "head_dim": 4, "dim": 4, "hidden_dim": 4}
    configs = [
        MIMOFormerConfig(**small, grid=(2, 2), superpose=s) for s in ("attention", "attention+mlp")
    ]
    result = bench(configs, [4], QUICK)
    assert [timing.name for timing in result.timings] == [
        "MIMOFormer (2x2, attention), 4 active",
        "MIMOFormer (2x2, attention+mlp), 4 active",
        "Performer",
    ]
    assert result.baselines == ["Performer"]
    (performer,) = single_input_alternatives(configs[0])
    assert performer == PerformerConfig(**small)


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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_mimoformer_is_faster_and_leaner_than_the_performer_on_long_text():
    text = {
        **{"vocab_size": 257, "max_length": 4096, "num_classes": 2, "depth": 2},
        **{"heads": 8, "head_dim": 64, "dim": 512, "hidden_dim": 2048},
    }
    two, four = (MIMOFormerConfig(**text, grid=(n, n), superpose="attention+mlp") for n in (2, 4))
    result = bench([two, four], None, BenchSettings(rounds=5, warmup=1))
    performer = result.timing("Performer")
    for config, active, least in ((two, 4, 1.5), (four, 16, 2.2)):
        name = f"MIMOFormer ({config.grid[0]}x{config.grid[1]}, attention+mlp), {active} active"
        assert result.timing(name).speedup_over(performer)[0] >= least
        assert result.peak_bytes[name] < result.peak_bytes["Performer"]


def test_datamux_races_one_stream_of_itself_or_a_transformer():
    config = mn.DataMUXConvConfig(num_streams=4)
    assert single_input_alternatives(config) == [mn.DataMUXConvConfig(num_streams=1)]
    assert single_input_alternatives(mn.DataMUXConvConfig(num_streams=1)) == []
    former = mn.DataMUXFormerConfig(num_streams=3, demux="slots", depth=1)
    assert single_input_alternatives(former) == [mn.TransformerConfig(depth=1)]
    assert model_name(config) == "DataMUXConv (N=4)"
    assert model_name(former) == "DataMUXFormer (N=3, slots)"
