import json
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from mimonets import MIMOConv, MIMOConvConfig, MIMOFormerConfig, PerformerConfig, WideResNetConfig
from mimonets._device import use_threads
from mimonets.evaluation import BenchSettings, bench
from mimonets.evaluation.bench import Candidate, race_candidates
from mimonets.models import SlimmableWideResNetConfig, find_point

TINY = MIMOConvConfig(
    depth=10, width=1, initial_width=1, num_streams=2, num_classes=3, image_size=8
)
QUICK = BenchSettings(batch_sizes=(4,), rounds=3, warmup=1)


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
    assert data["settings"]["batch_sizes"] == [4]
    assert data["contenders"][1]["active_streams"] == 2
    assert set(data["contenders"][0]["speedup"]) == set(names[2:])
    for shares in data["time_shares"].values():
        assert set(shares) == {"stem", "binding", "trunk", "unbinding", "classifier"}


def test_modes_can_be_chosen_and_plain_networks_have_one():
    assert list(bench(TINY, [2], QUICK).modes.values()) == [2]
    plain = bench(WideResNetConfig(depth=10, width=1, image_size=8), settings=QUICK)
    assert [timing.name for timing in plain.timings] == ["WideResNet-10-1, 1 active"]
    assert plain.baselines == []


def test_networks_of_one_name_are_all_timed():
    tiles = replace(TINY, binding="tiles", stem_stride=2, image_size=16)
    result = bench([tiles, replace(TINY, image_size=16)], [2], QUICK)
    assert list(result.modes) == [
        "MIMOConv-10-1 (N=2), 2 active",
        "MIMOConv-10-1 (N=2) #2, 2 active",
    ]
    assert {"MIMOConv-10-1 (N=1)", "MIMOConv-10-1 (N=1) #2"} <= set(result.baselines)


def test_networks_of_different_inputs_do_not_race():
    with pytest.raises(ValueError, match=r"takes \(3, 8, 8\) and.*one by one"):
        bench([TINY, replace(TINY, image_size=16)], [2], QUICK)


def test_every_gear_is_timed():
    config = SlimmableWideResNetConfig(
        depth=10, width=1, image_size=8, widths=(1.0, 0.5), shrinks=(1, 1)
    )
    assert [name.rpartition(", ")[2] for name in bench(config, settings=QUICK).modes] == [
        "gear 1",
        "gear 2",
    ]


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
    assert result.candidates["Performer"].network == PerformerConfig(**small)


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


class Pairs(nn.Module):
    """A network of somebody else: two inputs share a pass."""

    num_streams = 2
    input_spec = None

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.passes = []

    def forward(self, x, *, active_streams=None):
        active = self.num_streams if active_streams is None else active_streams
        self.passes.append(active)
        return self.body(x)

    def example_inputs(self, batch_size):
        return torch.randn(batch_size, 3)


def test_a_point_runs_with_its_options():
    model = MIMOConv(TINY).eval()
    called = []
    model.register_forward_pre_hook(
        lambda _, inputs, options: called.append((len(inputs[0]), options["active_streams"])),
        with_kwargs=True,
    )
    inputs = model.example_inputs(4)
    both = {str(n): Candidate(model, find_point(model, n), "eager", inputs) for n in (1, 2)}
    race_candidates(both, replace(QUICK, rounds=1, warmup=0))
    assert called == [(4, 1), (4, 2)]


def test_the_number_of_threads_comes_back():
    before = torch.get_num_threads()
    with use_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_networks_of_others_race_too_and_stay_as_they_are():
    mine = Pairs().train()
    result = bench(mine, settings=BenchSettings(batch_sizes=(4,), rounds=2, warmup=0))
    assert [timing.name for timing in result.timings] == ["Pairs, 1 active", "Pairs, 2 active"]
    assert result.time_shares["Pairs, 2 active"] == {"body": 1.0}
    assert mine.training
    assert mine.passes == []  # a copy ran
    with pytest.raises(ValueError, match="Linear cannot be timed: it needs num_streams"):
        bench(nn.Linear(3, 3), settings=QUICK)


def test_memory_is_kept_unless_told_otherwise(monkeypatch):
    asked = []
    module = sys.modules["mimonets.evaluation.bench"]  # the function of that name hides it
    monkeypatch.setattr(module, "keep_freed_memory", lambda: asked.append(1))
    bench(TINY, [2], replace(QUICK, keep_memory=False))
    assert asked == []
    result = bench(TINY, [2], QUICK)
    assert asked == [1]
    assert result.as_dict()["settings"]["keep_memory"] is True
