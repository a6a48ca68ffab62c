"""One process of several: training steps on its part of a batch, each written to a file."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mimonets import MIMOConv, MIMOConvConfig
from mimonets.layers import BatchNorm2d, StreamBatchNorm

KINDS = ("stream", "plain", "mimoconv")


def network(kind):
    """Make the same network in every process."""
    torch.manual_seed(0)
    if kind == "mimoconv":
        config = MIMOConvConfig(depth=10, width=1, initial_width=1, num_classes=3, num_streams=2)
        return MIMOConv(config).double()
    norm = StreamBatchNorm(4, 3) if kind == "stream" else BatchNorm2d(4)
    return nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(1)).double()


def batch():
    """Draw a batch whose halves are distributed differently."""
    generator = torch.Generator().manual_seed(1)
    scale = torch.tensor([1.0] * 8 + [3.0] * 8).view(-1, 1, 1, 1)
    return (scale * torch.randn(16, 3, 6, 6, generator=generator) + scale).double()


def run(kind, x):
    """Run one training step, and give everything that must not depend on the processes."""
    model = network(kind)
    distributed = DistributedDataParallel(model) if dist.is_initialized() else model
    output = distributed(x)
    output.pow(3).mean().backward()
    return {
        "output": output.detach(),
        "gradients": {name: p.grad for name, p in model.named_parameters()},
        "buffers": dict(model.named_buffers()),
    }


def run_as(rank, port, folder):
    """Be one of two processes."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for kind in KINDS:
        torch.save(run(kind, batch()[8 * rank : 8 * rank + 8]), folder / f"{kind}-{rank}.pt")
    dist.destroy_process_group()
