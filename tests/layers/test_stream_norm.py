import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from mimonets.layers import StreamBatchNorm, keep_mode, recalibrate, running, untrained_modes


def scaled(active, seed=0):
    """Draw activations whose spread depends on the mode, as those of a superposition do."""
    generator = torch.Generator().manual_seed(seed)
    return active * torch.randn(16, 3, 5, 4, generator=generator) + active


def normalised(norm, x, active):
    with running(active):
        return norm(x)


def test_each_mode_behaves_like_a_batch_norm_of_its_own():
    norm = StreamBatchNorm(3, num_streams=2)
    plain = {1: nn.BatchNorm2d(3), 2: nn.BatchNorm2d(3)}
    for step in range(5):
        for active in (2, 1, 2):
            x = scaled(active, seed=step)
            assert_close(normalised(norm, x, active), plain[active](x))
    norm.eval()
    for active, reference in plain.items():
        assert_close(norm.running_mean[active - 1], reference.running_mean)
        assert_close(norm.running_var[active - 1], reference.running_var)
        assert_close(normalised(norm, scaled(active), active), reference.eval()(scaled(active)))


def test_affine_weights_are_shared_and_gradients_match():
    norm, plain = StreamBatchNorm(3, num_streams=4).double(), nn.BatchNorm2d(3).double()
    x = scaled(2).double()
    for layer in (norm, plain):
        out = normalised(layer, x, 3) if layer is norm else layer(x)
        out.pow(3).sum().backward()
    assert norm.weight.shape == (3,)
    assert_close(norm.weight.grad, plain.weight.grad)
    assert_close(norm.bias.grad, plain.bias.grad)


def test_an_untrained_mode_borrows_from_the_nearest_trained_one():
    norm = StreamBatchNorm(3, num_streams=6)
    normalised(norm, scaled(1), 1)
    normalised(norm, scaled(5), 5)
    assert untrained_modes(norm) == [2, 3, 4, 6]
    norm.eval()
    means = norm.running_mean[:, 0]
    assert means[1] == means[0]
    assert means[2] == means[3] == means[5] == means[4]  # 3 is as near to 1 as to 5: the faster
    assert untrained_modes(norm) == [2, 3, 4, 6]  # borrowed, not owned


def test_a_fresh_layer_stays_neutral_in_evaluation_mode():
    norm = StreamBatchNorm(3, num_streams=2).eval()
    x = scaled(1)
    assert_close(normalised(norm, x, 1), x / (1 + norm.epsilon) ** 0.5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = StreamBatchNorm(3, num_streams=4)
        self.dropout = nn.Dropout(0.5)
        self.second = StreamBatchNorm(3, num_streams=4)

    def forward(self, x, active_streams):
        with running(active_streams):
            return self.second(self.dropout(self.first(active_streams * x)))


def test_recalibration_measures_untrained_modes_and_changes_nothing_else():
    net = Net()
    for active in (1, 4):
        net(scaled(1), active)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    batches = [scaled(1, seed) for seed in range(3)]
    net.first.eval()  # flags come back as they were, whatever they were
    assert recalibrate(net, batches) == [2, 3]
    assert net.training
    assert net.second.training
    assert not net.first.training
    assert untrained_modes(net) == []

    after = net.state_dict()
    for name in after:
        rows = (
            after[name] == before[name]
            if after[name].ndim < 2
            else (after[name] == before[name]).all(1)
        )
        if name.endswith(("running_mean", "running_var", "batches_seen")):
            assert rows[[0, 3]].all()
        else:
            assert rows.all()
    mean = torch.stack([(2 * x).mean(dim=(0, 2, 3)) for x in batches]).mean(dim=0)
    var = torch.stack([(2 * x).transpose(0, 1).flatten(1).var(dim=1) for x in batches]).mean(dim=0)
    assert_close(net.first.running_mean[1], mean)
    assert_close(net.first.running_var[1], var)


def test_recalibration_starts_afresh_each_time():
    net = Net()
    batches = [scaled(1)]
    recalibrate(net, [scaled(7)], active_streams=[2])
    recalibrate(net, batches, active_streams=[2])
    assert_close(net.first.running_mean[1], (2 * batches[0]).mean(dim=(0, 2, 3)))


@pytest.mark.parametrize(
    ("batches", "modes", "message"),
    [
        ([], None, "at least one batch"),
        ([scaled(1)], [5], "active_streams=5 does not fit 4"),
        ([scaled(1)[:3]], [4], "batch of 3 does not fill a group of 4.*at least 4"),
        (scaled(1), None, r"one tensor: pass a list of batches, such as \[inputs\]"),
    ],
)
def test_recalibration_refuses_what_it_cannot_measure(batches, modes, message):
    with pytest.raises(ValueError, match=message):
        recalibrate(Net(), batches, active_streams=modes)


def test_a_recalibration_that_fails_leaves_the_statistics_as_they_were():
    net = Net()
    for active in (1, 4):
        net(scaled(active), active)
    net.eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises((RuntimeError, ValueError)):
        recalibrate(net, [scaled(1), torch.randn(8, 5, 2, 2)], active_streams=4)
    assert untrained_modes(net) == [2, 3]
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_threads_run_different_modes_of_one_layer_at_once():
    norm = StreamBatchNorm(3, num_streams=4)
    nn.init.uniform_(norm.running_mean)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    norm.batches_seen.fill_(1)
    norm.eval()
    x = scaled(1)
    wanted = {active: normalised(norm, x, active) for active in (1, 2, 3, 4)}
    together = threading.Barrier(4)

    def many(active):
        with running(active):
            together.wait()  # all four modes are running now
            return all(torch.equal(norm(x), wanted[active]) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, wanted))
    assert torch.equal(norm(x), wanted[4])  # outside, all streams are busy


def test_modes_nest_and_come_back_after_an_error():
    norm = StreamBatchNorm(3, num_streams=2)
    with running(1):
        with pytest.raises(KeyError), running(2):
            raise KeyError
        norm(scaled(1))
    assert norm.batches_seen.tolist() == [1, 0]


def make_network():
    shared = nn.BatchNorm1d(4)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.Sequential(nn.BatchNorm2d(4, eps=1e-3, momentum=0.3), nn.ReLU()),
        nn.Conv2d(4, 4, 2),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Flatten(2),
        shared,
        shared,
    )


def test_convert_replaces_every_batch_norm_and_keeps_what_it_was():
    network = make_network()
    x = scaled(1)
    network(x)
    plain = copy.deepcopy(network).eval()
    weight = network[1][0].weight
    assert StreamBatchNorm.convert(network, num_streams=3) is network
    first, second, untracked, shared = network[1][0], network[3], network[4], network[6]
    assert [type(norm) for norm in (first, second, shared)] == [StreamBatchNorm] * 3
    assert type(untracked) is nn.BatchNorm2d
    assert shared is network[7]
    assert first.weight is weight
    assert (first.epsilon, first.momentum, first.training) == (1e-3, 0.3, True)
    assert second.weight is None
    assert untrained_modes(network) == [1, 2, 3]
    network.eval()
    for active in (1, 2, 3):
        assert_close(normalised(network, x, active), plain(x))


def test_converted_networks_learn_each_mode_by_itself():
    norm = StreamBatchNorm.convert(nn.BatchNorm3d(3), num_streams=2)
    x = torch.randn(4, 3, 2, 5, 4) + 5
    normalised(norm, x, 2)
    assert untrained_modes(norm) == [1]
    assert norm.running_mean[0].eq(0).all()
    assert (norm.running_mean[1] > 0.4).all()


def test_a_converted_layer_of_one_stream_is_the_batch_norm_it_was():
    plain = nn.BatchNorm2d(3)
    plain(scaled(2))
    norm = StreamBatchNorm.convert(copy.deepcopy(plain), num_streams=1)
    assert untrained_modes(norm) == []
    assert_close(norm.eval()(scaled(1)), plain.eval()(scaled(1)))


def test_instance_norm_is_left_alone():
    assert type(StreamBatchNorm.convert(nn.InstanceNorm2d(3), 2)) is nn.InstanceNorm2d


@pytest.mark.parametrize("momentum", [0.1, None])
def test_gradient_checkpointing_trains_the_mode_that_ran_and_once(momentum):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 3, 3), StreamBatchNorm(3, 4, momentum=momentum))
    saving = copy.deepcopy(plain)
    for active in (2, 4, 1):
        with running(active):
            answers = plain(scaled(active))
            again = checkpoint(saving, scaled(active), use_reentrant=False, context_fn=keep_mode)
        assert_close(again, answers)
        for y in (answers, again):  # backward runs outside of the mode
            y.pow(3).sum().backward()
    assert saving[1].batches_seen.tolist() == [1, 1, 0, 1]
    for found, wanted in zip(saving.buffers(), plain.buffers(), strict=True):
        assert_close(found, wanted, rtol=0, atol=0)
    for found, wanted in zip(saving.parameters(), plain.parameters(), strict=True):
        assert_close(found.grad, wanted.grad)
