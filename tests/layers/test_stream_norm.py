import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mimonets.layers import StreamBatchNorm2d, recalibrate, untrained_modes


def scaled(active, seed=0):
    """Draw activations whose spread depends on the mode, as those of a superposition do."""
    generator = torch.Generator().manual_seed(seed)
    return active * torch.randn(16, 3, 5, 4, generator=generator) + active


def test_each_mode_behaves_like_a_batch_norm_of_its_own():
    norm = StreamBatchNorm2d(3, num_streams=2)
    plain = {1: nn.BatchNorm2d(3), 2: nn.BatchNorm2d(3)}
    for step in range(5):
        for active in (2, 1, 2):
            x = scaled(active, seed=step)
            assert_close(norm(x, active), plain[active](x))
    norm.eval()
    for active, reference in plain.items():
        assert_close(norm.running_mean[active - 1], reference.running_mean)
        assert_close(norm.running_var[active - 1], reference.running_var)
        assert_close(norm(scaled(active), active), reference.eval()(scaled(active)))


def test_affine_weights_are_shared_and_gradients_match():
    norm, plain = StreamBatchNorm2d(3, num_streams=4).double(), nn.BatchNorm2d(3).double()
    x = scaled(2).double()
    for layer in (norm, plain):
        out = layer(x, 3) if layer is norm else layer(x)
        out.pow(3).sum().backward()
    assert norm.weight.shape == (3,)
    assert_close(norm.weight.grad, plain.weight.grad)
    assert_close(norm.bias.grad, plain.bias.grad)


def test_an_untrained_mode_borrows_from_the_nearest_trained_one():
    norm = StreamBatchNorm2d(3, num_streams=6)
    norm(scaled(1), 1)
    norm(scaled(5), 5)
    assert untrained_modes(norm) == [2, 3, 4, 6]
    norm.eval()
    means = norm.running_mean[:, 0]
    assert means[1] == means[0]
    assert means[2] == means[3] == means[5] == means[4]  # 3 is as near to 1 as to 5: the faster
    assert untrained_modes(norm) == [2, 3, 4, 6]  # borrowed, not owned


def test_a_fresh_layer_stays_neutral_in_evaluation_mode():
    norm = StreamBatchNorm2d(3, num_streams=2).eval()
    x = scaled(1)
    assert_close(norm(x, 1), x / (1 + norm.epsilon) ** 0.5)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = StreamBatchNorm2d(3, num_streams=4)
        self.dropout = nn.Dropout(0.5)
        self.second = StreamBatchNorm2d(3, num_streams=4)

    def forward(self, x, active_streams):
        return self.second(
            self.dropout(self.first(active_streams * x, active_streams)), active_streams
        )


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
    ],
)
def test_recalibration_refuses_what_it_cannot_measure(batches, modes, message):
    with pytest.raises(ValueError, match=message):
        recalibrate(Net(), batches, active_streams=modes)
