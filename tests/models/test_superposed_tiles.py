"""superpose(binding="tiles"): inputs side by side on a canvas of the size of one."""

import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import mimonets as mn
from mimonets.evaluation import count_macs

IMAGES = torch.randn(8, 1, 8, 8)
TILES = {"num_streams": 4, "bind_after": "1", "unbind_before": "5", "binding": "tiles"}


def network(kernel=1, stride=1):
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 12, kernel, stride, padding=kernel // 2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


def tiled(net, **settings):
    return mn.superpose(net, example=IMAGES[:1], **{**TILES, **settings}).eval()


def seen_smaller(net, images, factor):
    """The plain network, whose trunk sees maps that are averaged down."""
    return net[2:](F.avg_pool2d(net[:2](images), factor))


@pytest.mark.parametrize(
    ("active", "factor"), [(1, (1, 1)), (2, (1, 2)), (3, (2, 2)), (4, (2, 2)), (None, (2, 2))]
)
def test_where_positions_never_mix_every_stream_answers_like_the_plain_network(active, factor):
    net = network().eval()
    count = 6 if active == 3 else 8
    wanted = seen_smaller(net, IMAGES[:count], factor)
    model = tiled(net)
    assert_close(model(IMAGES[:count], active_streams=active), wanted, rtol=1e-5, atol=1e-5)


def test_with_one_input_per_pass_it_is_the_network_that_it_was():
    net = network(kernel=3, stride=2).eval()
    wanted = net(IMAGES)
    assert torch.equal(tiled(net)(IMAGES, active_streams=1), wanted)


def test_a_trunk_that_looks_around_sees_neighbours_only_across_the_borders_of_its_tile():
    model = tiled(network(kernel=3))
    other = IMAGES.clone()
    other[1, :, :, 4:] = 0  # far from the border that the second of four shares with the first
    answers, changed = (model(images) for images in (IMAGES, other))
    assert_close(changed[0], answers[0])
    assert_close(changed[4:], answers[4:])
    assert not torch.allclose(changed[1], answers[1])


def test_a_pass_costs_the_same_with_one_input_and_with_four():
    model = tiled(network(kernel=3))
    trunk = {active: count_macs(model, active)["trunk"].plain for active in (1, 2, 4)}
    assert trunk[1] == 2 * trunk[2] == 4 * trunk[4] > 0
    assert count_macs(model)["stem"].plain == count_macs(model, 1)["stem"].plain


def test_tiles_are_saved_loaded_trained_and_exported_like_keys(tmp_path):
    model = tiled(network(kernel=3))
    model.train()(torch.randn(8, 1, 8, 8)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    assert model.state_dict().keys() == {
        *(f"network.{name}" for name in ("0.weight", "0.bias", "2.weight", "2.bias")),
        *(f"network.3.{name}" for name in ("weight", "bias", "running_mean", "running_var")),
        *("network.3.batches_seen", "network.7.weight", "network.7.bias"),
    }
    found = mn.load(mn.save(model, tmp_path / "x"), network=network(kernel=3))
    for active in (1, 2, 3, 4):
        wanted = model(IMAGES, active_streams=active)
        assert torch.equal(found(IMAGES, active_streams=active), wanted)
    assert float(model.stream_key_penalty()) == 0


@pytest.mark.slow
def test_every_mode_of_tiles_exports(tmp_path):
    pytest.importorskip("onnxruntime")
    model = tiled(network(kernel=3, stride=2), num_streams=2)
    mn.export(model, tmp_path / "out", measure=False)
    engine = mn.Engine(tmp_path / "out", backend="onnxruntime")
    for active in (1, 2):
        answers = torch.as_tensor(engine(IMAGES[:5].numpy(), active_streams=active))
        assert_close(answers, model(IMAGES[:5], active_streams=active), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unbind_before": "7"}, "'7' takes (12, 12): name modules that see maps"),
        ({"num_streams": 9}, "The maps at '1' have 8x8 positions"),
        ({"num_streams": 6}, "do not divide into 1x3 tiles, as 3 active streams have"),
        ({"readout": "stream"}, "readout='stream' is for binding='hrr', 'matrix' and 'hadamard'"),
        ({"identity_start": True}, "leave it out with binding='tiles'"),
    ],
)
def test_wrong_use_of_tiles_fails_at_construction_with_a_sentence(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        tiled(network(), **settings)
    assert "\n" not in str(error.value)


def test_a_trunk_that_leaves_no_whole_tiles_is_refused():
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.Conv2d(6, 6, 4), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    where = {"bind_after": "0", "unbind_before": "2"}
    with pytest.raises(ValueError, match="The maps at '2' have 5x5 positions") as error:
        tiled(net, **where)
    assert "\n" not in str(error.value)
