"""A network of your own takes four inputs per pass: a plain CNN on digits, in a minute."""

import sys
import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import mimonets as mn
from mimonets.evaluation import count_macs
from mimonets.evaluation.accuracy import evaluate
from mimonets.training import TrainConfig, train


class CNN(nn.Sequential):
    """Four convolutions, as one writes them for one image at a time."""

    def __init__(self, maps: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, maps, 3, padding=1), nn.ReLU())
        for name, stride in (("conv1", 1), ("conv2", 2), ("conv3", 1)):
            layers = nn.Conv2d(maps, maps, 3, stride, 1), nn.BatchNorm2d(maps), nn.ReLU()
            self.add_module(name, nn.Sequential(*layers))
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(maps, 10)


FOUR = {"num_streams": 4, "bind_after": "stem", "unbind_before": "head"}
NETWORKS = {  # what makes it, and how several digits share a pass
    "CNN": (CNN, {"num_streams": 1}),
    "CNN in superposition": (CNN, FOUR),
    "CNN with 36 maps": (lambda: CNN(36), {"num_streams": 1}),  # at the cost of the one before
}


def main(epochs: int = 40, seed: int = 0, networks=NETWORKS) -> list[tuple[str, int, float, float]]:
    """Train it with one and four digits per pass, and a smaller one of about the same cost."""
    torch.manual_seed(seed)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    training, test = random_split(TensorDataset(images, torch.tensor(digits.target)), [1500, 297])
    models = {
        name: mn.superpose(make(), example=images[:1], **settings)
        for name, (make, settings) in networks.items()
    }
    config = TrainConfig(  # every fifth batch runs with one digit per pass
        **{"epochs": epochs, "batch_size": 64, "per_stream": False, "fast_share": 0.8},
        **{"lr": 0.05, "mixup": 0.0, "seed": seed},
    )
    loader, rows = DataLoader(training, 64, shuffle=True, drop_last=True), []
    for name, model in models.items():
        with tempfile.TemporaryDirectory() as folder:
            train(model, loader, config, run_dir=f"{folder}/run")
        modes = sorted({1, model.num_streams})
        for active, found in evaluate(model, DataLoader(test, 99), modes).items():
            rows.append((name, active, found.accuracy, count_macs(model, active).plain / 1e6))
            print("{}, {} per pass: {:.1%}, {:.2f} million MACs each".format(*rows[-1]))
    return rows


if __name__ == "__main__":
    *rows, four, small = main(*map(int, sys.argv[1:]))
    print(f"At {four[3]:.1f} MMAC: {four[2]:.1%} superposed, {small[2]:.1%} by a small CNN.")
