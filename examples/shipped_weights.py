"""Classify sixteen handwritten digits with the keys network that ships with mimonets."""

import torch

import mimonets as mn
from mimonets.data import DataConfig, load_data

network = mn.create("digits-keys", pretrained=True)  # adds up as many as four digits per pass
digits = load_data(DataConfig(name="digits-writers")).test  # by writers it was not trained on
images = torch.from_numpy(network.input_spec.prepare(digits.images[:16].numpy()))
fast = network(images).argmax(dim=1)  # four passes of four digits
slow = network(images, active_streams=1).argmax(dim=1)  # sixteen passes of one
for name, answers in {"labels": digits.labels[:16], "fast": fast, "slow": slow}.items():
    print(f"{name:6}", *answers.tolist())
right = [int((answers == digits.labels[:16]).sum()) for answers in (fast, slow)]
print("Of 16 digits, fast mode read {} right in 4 passes, slow mode {} in 16.".format(*right))
