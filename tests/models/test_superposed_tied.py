"""superpose(binding="tied"): every input in a lane of a trunk whose weights are tied."""

import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mimonets as mn
from mimonets.evaluation import count_macs
from mimonets.layers import TiedConv2d, TiedLinear
from mimonets.layers.tying import tie
from mimonets.training import TrainConfig
from mimonets.training.schedule import decay_groups
from models.own_networks import Residual, Twice

IMAGES = torch.randn(8, 1, 8, 8)
TIED = {"num_streams": 4, "bind_after": "1", "unbind_before": "9", "binding": "tied"}


def network(bias=True):
    """Layers of every kind that can be tied."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, (3, 1), 2, padding=(1, 0), bias=bias),
        nn.BatchNorm2d(16),
        nn.PReLU(16),
        nn.Conv2d(16, 16, 3, padding="same", groups=16),
        nn.GroupNorm(8, 16),
        nn.Flatten(),
        nn.Linear(256, 12, bias=bias),
        nn.Linear(12, 5),
    )


def tied(net, **settings):
    model = mn.superpose(net, example=IMAGES[:1], **{**TIED, **settings})
    with torch.no_grad():  # norms that do something, and differ from feature to feature
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def test_rotating_the_inputs_of_a_group_rotates_its_answers():
    model = tied(network()).double()
    groups = torch.randn(2, 4, 1, 8, 8, dtype=torch.float64)
    answers = model(groups.flatten(0, 1)).unflatten(0, (2, 4))
    assert not torch.allclose(answers[:, 0], answers[:, 1])
    for turn in (1, 2, 3):
        turned = model(groups.roll(turn, dims=1).flatten(0, 1)).unflatten(0, (2, 4))
        assert_close(turned, answers.roll(turn, dims=1))


def test_a_trunk_without_ties_between_lanes_is_the_narrow_network_on_each_input():
    model = tied(network())
    inner = model.network
    with torch.no_grad():
        for layer in (inner[2], inner[8]):
            layer.cross.zero_()
    narrow = nn.Conv2d(2, 4, (3, 1), 2, padding=(1, 0))
    narrow.load_state_dict({"weight": inner[2].own, "bias": inner[2].bias})
    last = nn.Linear(64, 3)
    last.load_state_dict({"weight": inner[8].own, "bias": inner[8].bias})
    x = inner[1].binding.narrow(inner[1].module(inner[0](IMAGES)))
    with mn.layers.running(4):
        x = inner[4](inner[3](narrow(x)))
    x = last(inner[6](inner[5](x)).flatten(1))
    wanted = inner[9].module(inner[9].unbinding.widen(x))
    assert_close(model(IMAGES), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("active", [1, 2, 3, 4])
def test_as_many_answers_as_inputs_and_groups_keep_to_themselves(active):
    model = tied(network())
    other = IMAGES.clone()
    other[0] = 0
    answers, changed = (model(images, active_streams=active) for images in (IMAGES, other))
    assert answers.shape == (8, 5)
    assert_close(changed[active:], answers[active:])
    assert not torch.allclose(changed[0], answers[0])
    alone = model(IMAGES[:active], active_streams=active)
    assert_close(alone, answers[:active], rtol=1e-5, atol=1e-5)


def test_a_pass_costs_what_the_dense_network_costs():
    model = tied(network())
    dense = 16 * 8 * 3 * 16 + 16 * 9 * 16 + 256 * 12  # at 4x4 positions
    found = {active: count_macs(model, active)["trunk"].plain for active in (1, 4)}
    assert (4 * found[4], found[1]) == (dense, dense)


@pytest.mark.parametrize("bias", [True, False])
def test_lanes_are_trained_saved_and_loaded_like_keys(bias, tmp_path):
    model = tied(network(bias))
    model.train()(torch.randn(8, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    found = mn.load(mn.save(model, tmp_path / "x"), network=network(bias))
    for active in (1, 2, 3, 4):
        wanted = model(IMAGES, active_streams=active)
        assert torch.equal(found(IMAGES, active_streams=active), wanted)
    assert float(model.stream_key_penalty()) == 0
    assert "weights tied between lanes" in model.summary


def test_weights_between_lanes_have_a_decay_of_their_own():
    model = tied(network())
    config = TrainConfig(cross_decay=0.5, weight_decay=0.1)
    groups = {g["weight_decay"]: g["params"] for g in decay_groups(model, config)}
    wanted = [model.network[2].cross, model.network[8].cross]
    assert {id(p) for p in groups[0.5]} == {id(p) for p in wanted}


@pytest.mark.parametrize("kind", [Residual, Twice])
def test_skip_connections_and_blocks_that_run_twice(kind):
    where = {"bind_after": "stem", "unbind_before": "head", "num_streams": 2}
    if kind is Residual:
        model = tied(kind(), **where)
        assert model(IMAGES).shape == (8, 5)
        with pytest.raises(ValueError, match="a skip connection or a side input crosses"):
            tied(kind(), **{**where, "bind_after": "first"})
    else:
        assert tied(kind(), **where)(IMAGES[:5]).shape == (5, 5)


def test_tied_layers_start_with_the_first_lane_of_the_dense_ones():
    dense = nn.Conv2d(4, 8, 3)
    layer = tie(dense, 2, "conv")
    assert_close(layer.own, dense.weight[:4, :2])
    assert_close(layer.cross[0], dense.weight[4:, :2])
    linear = nn.Linear(6, 9).double()
    found = tie(linear, 3, "linear")
    assert isinstance(found, TiedLinear)
    assert isinstance(layer, TiedConv2d)
    assert_close(found.weight[:, :2], linear.weight[:, :2])
    assert_close(found.bias, linear.bias[:3])
    norm = tie(nn.LayerNorm((8, 3, 3)), 4, "norm")
    assert norm(torch.randn(5, 2, 3, 3)).shape == (5, 2, 3, 3)
    relu, slope = nn.ReLU(), nn.PReLU()
    assert (tie(relu, 4, "relu"), tie(slope, 4, "prelu")) == (relu, slope)


@pytest.mark.slow
def test_every_mode_of_lanes_exports(tmp_path):
    pytest.importorskip("onnxruntime")
    model = tied(network(), num_streams=2)
    mn.export(model, tmp_path / "out", measure=False)
    engine = mn.Engine(tmp_path / "out", backend="onnxruntime")
    for active in (1, 2):
        answers = torch.as_tensor(engine(IMAGES[:5].numpy(), active_streams=active))
        assert_close(answers, model(IMAGES[:5], active_streams=active), rtol=1e-4, atol=1e-4)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        ([nn.Conv2d(8, 10, 3), nn.Conv2d(10, 8, 3)], {}, "'1' has 10 maps out, which do not"),
        ([nn.Conv2d(8, 10, 3)], {}, "'2' takes 10 features, which do not divide into 4 lanes"),
        ([nn.GroupNorm(2, 8)], {}, "'1' has 2 groups, which do not divide into 4 lanes"),
        ([Scaled()], {}, "'1' is a Scaled with other weights: name modules that leave it out"),
        ([nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")], {}, "'1' is a Conv2d with"),
        ([nn.Conv2d(8, 8, 3)], {"num_streams": 3}, "'0' gives 8 features, which do not divide"),
        ([nn.Conv2d(8, 8, 3)], {"unbinding": "matrix"}, "is for keys, and binding='tied' has none"),
        ([nn.Flatten(2)], {"unbind_before": "2"}, "'2' takes (12, 8, 64): name modules that see"),
    ],
)
def test_wrong_use_of_lanes_fails_at_construction_with_a_sentence(layers, settings, message):
    net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *layers, nn.Identity())
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        tied(net, **{"bind_after": "0", "unbind_before": str(len(net) - 1), **settings})
    assert "\n" not in str(error.value)
