"""Classify sixteen handwritten digits with the network that ships with mimonets, fast and slow."""

import torch

import mimonets as mn
from mimonets.data import DataConfig, load_data

network = mn.create("digits", pretrained=True)  # takes up to four digits in one pass
digits = load_data(DataConfig(name="digits-writers")).test  # by writers it was not trained on
images = torch.from_numpy(network.input_spec.prepare(digits.images[:16].numpy()))
with torch.inference_mode():
    fast = network(images).argmax(dim=1)  # four passes of four digits
    slow = network(images, active_streams=1).argmax(dim=1)  # sixteen passes of one
for name, answers in {"labels": digits.labels[:16], "fast": fast, "slow": slow}.items():
    print(f"{name:6}", *answers.tolist())
