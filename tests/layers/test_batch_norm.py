"""Two processes with half a batch each normalise like one with the whole batch."""

import socket

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from layers import normalise_apart
from mimonets.layers import BatchNorm2d, StreamBatchNorm, running
from mimonets.layers.batch_norm import normalise_together


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_two_processes_equal_one_with_the_doubled_batch(processes, tmp_path):
    port = free_port()
    arguments = [(rank, port, tmp_path) for rank in range(2)]
    started = [processes.Process(target=normalise_apart.run_as, args=a) for a in arguments]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    for kind in normalise_apart.KINDS:
        halves = [torch.load(tmp_path / f"{kind}-{rank}.pt") for rank in range(2)]
        whole = normalise_apart.run(kind, normalise_apart.batch())
        assert_close(torch.cat([half["output"] for half in halves]), whole["output"])
        for half in halves:
            assert_close(half["gradients"], whole["gradients"])  # DDP has averaged them
            assert_close(half["buffers"], whole["buffers"])


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4), (2, 3, 5, 4), (2, 3, 2, 3, 2)])
def test_plain_operations_equal_pytorchs_batch_norm(shape):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    y, batch = normalise_together(x, weight, bias, 1e-5)
    wanted = nn.functional.batch_norm(x, None, None, weight, bias, training=True)
    assert_close(y, wanted)
    found = torch.autograd.grad(y.pow(3).sum(), (x, weight, bias))
    assert_close(found, torch.autograd.grad(wanted.pow(3).sum(), (x, weight, bias)))
    assert int(batch.count) == x.numel() // 3


def test_a_large_mean_costs_no_digits():
    x = torch.randn(1000, 2) + 10_000
    y, batch = normalise_together(x, None, None, 0.0)
    assert_close(batch.var, x.double().var(dim=0, correction=0).float(), rtol=1e-3, atol=0)
    assert_close(y.std(dim=0, correction=0), torch.ones(2), rtol=1e-3, atol=0)


def test_a_single_process_runs_pytorchs_own_batch_norm():
    x = torch.randn(6, 3, 4, 4)
    found, wanted = BatchNorm2d(3), nn.BatchNorm2d(3)
    assert torch.equal(found(x), wanted(x))
    assert found.state_dict().keys() == wanted.state_dict().keys()
    assert_close(found.state_dict(), wanted.state_dict(), rtol=0, atol=0)


def test_momentum_none_averages_all_batches_like_pytorch():
    found, wanted = StreamBatchNorm(3, momentum=None), nn.BatchNorm2d(3, momentum=None)
    for scale in (1, 2, 3):
        x = scale * torch.randn(6, 3, 4, 4)
        with running(1):
            assert_close(found(x), wanted(x))
    assert_close(found.running_mean[0], wanted.running_mean)
    assert_close(found.running_var[0], wanted.running_var)
