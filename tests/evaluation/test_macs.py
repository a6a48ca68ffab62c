import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mimonets import (
    DataMUXConvConfig,
    DataMUXFormerConfig,
    MIMOConv,
    MIMOConvConfig,
    MIMOFormerConfig,
    PerformerConfig,
    TransformerConfig,
    WideIsoNetConfig,
    WideResNetConfig,
)
from mimonets.evaluation import count_macs, count_points
from mimonets.evaluation.layer_macs import Macs, layer_macs
from mimonets.models.registry import model_class_for

MNIST = {
    "depth": 10,
    "width": 1,
    "initial_width": 1,
    "in_channels": 1,
    "num_classes": 10,
    "image_size": 20,
}


def printed(macs, digits):
    return f"{macs / 1e6:.{digits}f}"


@pytest.mark.parametrize(
    ("num_streams", "trunk", "total"),
    [(1, "5329", "5335"), (2, "2664", "2671"), (4, "1332", "1339")],
)
def test_the_papers_cost_table_is_reproduced_to_its_digits(num_streams, trunk, total):
    cost = count_macs(MIMOConvConfig(num_streams=num_streams))
    assert printed(cost["stem"].paper, 2) == "1.97"
    assert printed(cost["binding"].paper, 2) == "4.19"
    assert printed(cost["trunk"].paper, 0) == trunk
    assert printed(cost["unbinding"].paper, 2) == "0.41"
    assert printed(cost["classifier"].paper, 3) == "0.064"
    assert printed(cost.paper, 0) == total


@pytest.mark.parametrize("config", [WideResNetConfig(), WideIsoNetConfig()])
def test_the_baselines_are_within_two_per_mille_of_the_papers_total(config):
    cost = count_macs(config)
    assert printed(cost["stem"].paper, 2) == "0.49"
    assert cost.paper / 1e6 == pytest.approx(5251, rel=0.002)


def test_mnist_is_within_three_percent_and_why_not_closer():
    # The paper prints 5.10 and 0.47. Both cannot hold in its own convention: with s per input and
    # t shared, s + t >= 5.095 and s + t / 16 < 0.475 give s < 0.167, but the stem and the binding
    # alone are more than that. See docs/cost.md.
    one, sixteen = (count_macs(MIMOConvConfig(num_streams=n, **MNIST)) for n in (1, 16))
    assert printed(one.paper, 2) == "4.98"
    assert printed(sixteen.paper, 2) == "0.48"
    assert one.paper / 1e6 == pytest.approx(5.10, rel=0.03)
    assert sixteen.paper / 1e6 == pytest.approx(0.47, rel=0.03)
    assert (one["stem"].paper + one["binding"].paper) / 1e6 > 0.167
    # Its 5.10 is the cost with three input maps and normalised shortcuts.
    colour = MIMOConvConfig(num_streams=1, **{**MNIST, "in_channels": 3}, shortcut_norm=True)
    assert printed(count_macs(colour).paper, 2) == "5.10"


def test_datamux_costs_what_the_paper_prints_if_its_demultiplexing_is_not_shared():
    one, sixteen = (count_macs(DataMUXConvConfig(num_streams=n)) for n in (1, 16))
    assert printed(one.plain, 2) == "0.88"
    # A pass demultiplexes all 16 streams for its 16 inputs: one matrix per input. The paper's 0.65
    # follows if each input pays for all of them. See docs/cost.md.
    assert printed(sixteen.plain, 2) == "0.55"
    assert sixteen["demultiplexing"].plain == 84 * 84
    assert printed(sixteen.plain + 15 * 84 * 84, 2) == "0.65"
    # Activations do not belong to the paper's figure: with them N=1 is too dear already.
    assert printed(one.paper, 2) == "0.90"


CONFIGS = [
    MIMOConvConfig(depth=10, width=2, num_streams=3, image_size=11),
    MIMOConvConfig(
        depth=16, width=1, num_streams=4, image_size=9, binding="matrix", shortcut_norm=True
    ),
    MIMOConvConfig(depth=10, width=1, num_streams=1, activation="srelu", skip_init=True),
    WideResNetConfig(depth=10, width=1, image_size=13),
    DataMUXConvConfig(num_streams=3, in_channels=2, mux_maps=5, image_size=23),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_plain_macs_agree_with_the_operator_counter(config):
    model = model_class_for(config)(config).eval()
    for cost in count_points(config):
        images = model.example_inputs(2 * cost.active_streams)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(images, active_streams=cost.active_streams)
        assert cost.plain * len(images) == pytest.approx(counter.get_total_flops() / 2, rel=1e-12)


def test_a_model_costs_what_its_config_says():
    config = CONFIGS[0]
    assert count_macs(MIMOConv(config)) == count_macs(config)


def test_batch_norm_counts_two_and_an_activation_one_per_element():
    cost = count_macs(WideResNetConfig(depth=10, width=1, image_size=8))
    assert cost["stem"].paper - cost["stem"].plain == 3 * 16 * 8 * 8


def test_only_the_shared_parts_get_cheaper_with_more_active_streams():
    slow, *_, fast = count_points(MIMOConvConfig(depth=10, width=1))
    for part in ("stem", "binding", "classifier"):
        assert fast[part] == slow[part]
    for part in ("trunk", "unbinding"):
        assert fast[part].plain == pytest.approx(slow[part].plain / 4)


def test_modes_that_do_not_exist_and_things_that_are_no_models_are_refused():
    with pytest.raises(ValueError, match="active_streams=5 does not fit 4"):
        count_macs(MIMOConvConfig(), 5)
    with pytest.raises(ValueError, match="int describes no model.*MIMOConvConfig"):
        count_macs(3)


# Sequence models

TEXT = {
    **{"vocab_size": 257, "max_length": 4096, "num_classes": 2, "depth": 6},
    **{"heads": 8, "head_dim": 64, "dim": 512, "hidden_dim": 2048},
}


def grid(side, superpose):
    return MIMOFormerConfig(**TEXT, grid=(side, side), superpose=superpose)


@pytest.mark.parametrize(
    ("config", "paper"),
    [
        (PerformerConfig(**TEXT), 90.5),
        (grid(2, "attention"), 84.1),
        (grid(2, "attention+mlp"), 55.0),
        (grid(4, "attention"), 80.8),
        (grid(4, "attention+mlp"), 37.2),
    ],
)
def test_the_papers_text_table_is_reproduced_within_half_a_percent(config, paper):
    cost = count_macs(config)
    assert cost.paper / 1e9 == pytest.approx(paper, rel=0.005)
    assert cost["K/Q/V"].paper / 1e9 == pytest.approx(19.34, rel=0.005)
    assert [part.name for part in cost.parts if part.name != "binding"] == [
        *("K/Q/V", "attention", "MLPs", "readout")
    ]


def test_the_transformer_costs_more_than_the_paper_prints_and_why():
    cost = count_macs(TransformerConfig(**TEXT))
    one_product = 4096 * 4096 * 512 * 6
    # The paper's 58.80 holds one of the two L x L products beside the output projection.
    output = 512 * 512 * 4096 * 6
    assert (one_product + output) / 1e9 == pytest.approx(58.80, rel=0.015)
    assert cost["attention"].plain == 2 * one_product + output
    assert cost.plain / 1e9 == pytest.approx(180.4, rel=0.001)


def test_superposing_the_projections_divides_them_by_n():
    mlp, qkv = count_macs(grid(4, "attention+mlp")), count_macs(grid(4, "attention+mlp+qkv"))
    assert qkv["K/Q/V"].plain == pytest.approx(mlp["K/Q/V"].plain / 4)
    assert qkv["attention"].plain == mlp["attention"].plain
    assert qkv.paper / 1e9 == pytest.approx(22.7, rel=0.005)


SMALL = {
    **{"vocab_size": 11, "max_length": 37, "num_classes": 3, "depth": 2},
    **{"heads": 2, "head_dim": 5, "dim": 6, "hidden_dim": 7, "num_features": 13},
}
EXTENTS = ["attention", "attention+mlp", "attention+mlp+qkv"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("features", ["relu", "softmax", "dpfp"])
@pytest.mark.parametrize("superpose", [None, *EXTENTS])
def test_plain_macs_of_sequence_models_agree_with_the_operator_counter(superpose, features, causal):
    options = {**SMALL, "features": features, "causal": causal}
    if superpose is None:
        config = PerformerConfig(**options)
    else:
        config = MIMOFormerConfig(**options, grid=(2, 3), superpose=superpose)
    model = model_class_for(config)(config).eval()
    for active in {1, model.num_streams}:
        cost = count_macs(config, active)
        tokens = model.example_inputs(2 * active)
        with FlopCounterMode(display=False) as counter:  # without gradients there is a shorter way
            model(tokens, active_streams=active)
        assert cost.plain * len(tokens) == pytest.approx(counter.get_total_flops() / 2, rel=1e-12)


@pytest.mark.parametrize("settings", [{}, {"causal": True}, {"pooling": "cls"}, {"head": "pair"}])
@pytest.mark.parametrize("demux", ["index", "slots"])
def test_plain_macs_of_datamux_agree_with_the_operator_counter(demux, settings):
    options = {name: value for name, value in SMALL.items() if name != "num_features"}
    config = DataMUXFormerConfig(**options, demux=demux, num_streams=3, **settings)
    model = model_class_for(config)(config).eval()
    for cost in count_points(config):
        tokens = model.example_inputs(6)
        # The counter does not know fused attention: let PyTorch spell it out.
        math = sdpa_kernel(SDPBackend.MATH)
        with torch.no_grad(), math, FlopCounterMode(display=False) as counter:
            model(tokens, active_streams=cost.active_streams)
        assert cost.plain * len(tokens) == pytest.approx(counter.get_total_flops() / 2, rel=1e-12)


def test_datamux_shares_all_but_its_ends():
    options = {**SMALL, "depth": 3, "num_streams": 2}
    del options["num_features"]
    slots = DataMUXFormerConfig(**options, demux="slots")
    slow, fast = count_points(slots)
    plain = TransformerConfig(**{name: options[name] for name in options if name != "num_streams"})
    for part in ("K/Q/V", "attention", "MLPs"):
        assert slow[part].plain == count_macs(plain)[part].plain == 2 * fast[part].plain
    tokens, dim = SMALL["max_length"], SMALL["dim"]
    assert fast["binding"].paper == tokens * dim
    assert fast["demultiplexing"].plain == 2 * tokens * dim * dim  # its own layer, the shared one
    # The prefix is two tokens more for the trunk.
    index = count_macs(DataMUXFormerConfig(**options, demux="index"))
    assert index["K/Q/V"].plain == pytest.approx(fast["K/Q/V"].plain * (tokens + 2) / tokens)


def test_pairs_cost_two_encodings():
    single, pair = (
        count_macs(PerformerConfig(**SMALL, head=head)) for head in ("classify", "pair")
    )
    assert pair["attention"].plain == 2 * single["attention"].plain


# Third-party networks


class Gate(nn.Module):
    """A layer that no table knows."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))

    def forward(self, x):
        return torch.einsum("bc,cd->bd", x, self.weight).sigmoid()


class SmallCNN(nn.Module):
    """Fifteen lines that know nothing of this package, a matrix product between layers included."""

    num_streams = 1

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, groups=1)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.Sequential(nn.Conv2d(8, 4, 3, groups=2), nn.ReLU(), nn.Dropout(0.1))
        self.gate = Gate()
        self.mix = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        x = self.deep(self.norm(self.conv(x)))
        pooled = x.mean(dim=(2, 3)) @ self.mix
        return self.gate(pooled)

    def example_inputs(self, batch_size):
        return torch.randn(batch_size, 3, 17, 19)


def operator_count(model, inputs, **arguments):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(inputs, **arguments)
    return counter.get_total_flops() / 2 / len(inputs)


def test_a_network_of_others_costs_what_the_operator_counter_says():
    model = SmallCNN()
    cost = count_macs(model)
    assert cost.plain == pytest.approx(operator_count(model, model.example_inputs(6)), rel=1e-12)
    assert [part.name for part in cost.parts] == ["other", "conv", "norm", "deep", "gate"]
    assert cost["other"].plain == 4 * 4
    assert cost["gate"].plain == 4 * 5
    assert cost["conv"].plain == 8 * 9 * 8 * 27
    assert cost["norm"].paper == 2 * 8 * 8 * 9
    assert cost["deep"].paper - cost["deep"].plain == 4 * 6 * 7
    assert all(not parameter.is_meta for parameter in model.parameters())
    assert not model.conv._forward_hooks


class Attending(nn.Module):
    """Two streams that share one layer of attention."""

    num_streams = 2
    cost_parts = ("heads",)

    def __init__(self, batch_first):
        super().__init__()
        self.heads = nn.MultiheadAttention(6, 2, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, x, *, active_streams=None):
        active = self.num_streams if active_streams is None else active_streams
        group = x.unflatten(0, (-1, active)).sum(dim=1)
        group = group if self.batch_first else group.transpose(0, 1)
        return self.heads(group, group, group)[0]

    def example_inputs(self, batch_size):
        return torch.randn(batch_size, 5, 6)


@pytest.mark.parametrize("batch_first", [True, False])
def test_attention_of_others_is_shared_by_the_active_streams(batch_first):
    model = Attending(batch_first).train()
    slow, fast = count_points(model)
    for cost in (slow, fast):
        inputs = model.example_inputs(2)
        # In training mode PyTorch spells the fused attention out, which its counter can see.
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.train()(inputs, active_streams=cost.active_streams)
        assert cost.plain * 2 == counter.get_total_flops() / 2
    assert slow.paper == 2 * fast.paper
    assert model.training


def test_a_module_that_does_not_know_its_inputs_is_told_so():
    with pytest.raises(ValueError, match="Linear.*what its inputs look like"):
        count_macs(nn.Linear(2, 3))


def test_the_table_of_layers_can_be_extended():
    class Doubling(nn.Module):
        num_streams = 1

        def forward(self, x):
            return x + x

        def example_inputs(self, batch_size):
            return torch.zeros(batch_size, 7)

    layer_macs.register(Doubling, lambda layer, inputs, output: Macs(elements=output.numel()))
    assert count_macs(Doubling()).paper == 7
