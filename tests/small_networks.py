"""Networks small enough to export in a test."""

import torch
from torch import nn

from mimonets import MIMOConv, MIMOConvConfig


def small(**settings):
    """Describe a MIMOConv with four streams, or what else the settings say."""
    usual = {"depth": 10, "width": 1, "initial_width": 1, "num_classes": 5, "num_streams": 4}
    return MIMOConvConfig(**(usual | settings))


def lived_in(config):
    """Make a MIMOConv whose statistics differ between modes, as those of a trained one do."""
    return randomise(MIMOConv(config))


def randomise(model):
    """Give batch norms statistics that differ by mode, as training does."""
    for name, value in model.state_dict().items():
        if name.endswith("running_mean"):
            value.copy_(0.1 * torch.randn_like(value))
        elif name.endswith("running_var"):
            value.copy_(1 + 0.3 * torch.rand_like(value))
        elif name.endswith("batches_seen"):
            value.fill_(1)
    return model.eval()


class ForeignCNN(nn.Module):
    """Not one of ours: adds up what its inputs become, and reads all answers from the sum."""

    def __init__(self, num_streams=2):
        super().__init__()
        self.num_streams = num_streams
        self.first = nn.Conv2d(2, 6, 3, padding=1)
        self.signs = nn.Parameter(torch.randn(num_streams, 6, 1, 1))
        self.last = nn.Linear(6, num_streams * 4)

    def example_inputs(self, batch_size):
        return torch.randn(batch_size, 2, 5, 5)

    def forward(self, x, active_streams=None):
        active = active_streams or self.num_streams
        x = self.first(x).relu().unflatten(0, (-1, active))
        total = (x * self.signs[:active]).sum(dim=1)
        answers = self.last(total.mean(dim=(2, 3))).unflatten(1, (self.num_streams, 4))
        return answers[:, :active].flatten(0, 1)


class UNet(nn.Module):
    """Answers for every pixel, with a connection around its inner layers."""

    def __init__(self, maps=16):
        super().__init__()
        self.stem = nn.Conv2d(1, maps, 3, padding=1)
        self.enc1 = nn.Conv2d(maps, maps, 3, padding=1)
        self.enc2 = nn.Conv2d(maps, 2 * maps, 3, 2, 1)
        self.middle = nn.Conv2d(2 * maps, 2 * maps, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * maps, maps, 2, 2)
        self.dec1 = nn.Conv2d(2 * maps, maps, 3, padding=1)
        self.out = nn.Conv2d(maps, 1, 1)

    def forward(self, x):
        skip = torch.relu(self.enc1(torch.relu(self.stem(x))))
        deep = torch.relu(self.middle(torch.relu(self.enc2(skip))))
        joined = torch.cat([skip, self.up(deep)], dim=1)
        return self.out(torch.relu(self.dec1(joined)))
