# %% [markdown]
# # mimonets: several inputs in one pass
#
# **Keys**, the paper's method: every input is bound to a key, the bound inputs are *added up*, the
# network runs once on the sum, and unbinding recovers each answer. **Tiles**, ours: inputs are
# shrunk and placed *side by side*; nothing is added up. This notebook runs networks of both kinds,
# which ship with the package, on handwritten digits that come with scikit-learn.

# %%
import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("mimonets") is None:  # in Colab: upload the wheel of `make wheel` first
    wheel = next(Path().glob("mimonets-*.whl"))
    subprocess.run([sys.executable, "-m", "pip", "install", f"{wheel}[data,plot]"], check=True)

# %%
import time
import timeit

import matplotlib.pyplot as plt
import torch

import mimonets as mn
from mimonets.data import DataConfig, load_data
from mimonets.evaluation import count_macs

digits = load_data(DataConfig(name="digits-writers")).test  # by writers not trained on
_, axes = plt.subplots(1, 8, figsize=(8, 1))
for axis, image, label in zip(axes, digits.images, digits.labels, strict=False):
    axis.imshow(image[0].numpy(), cmap="gray")
    axis.set(title=int(label), xticks=[], yticks=[])

# %% [markdown]
# One set of weights has several operating points: four digits per pass (fast), or one (slow). The
# plain network takes one digit per pass and costs as much as keys at the fast point. Each network
# was trained once; time is the fastest of five runs over all 297 digits.

# %%
rows = []
for name, kind in {"digits-keys": "keys", "digits": "tiles", "digits-plain": "plain"}.items():
    network = mn.create(name, pretrained=True)
    images = torch.from_numpy(network.input_spec.prepare(digits.images.numpy()))
    for active in (1, 2, 4) if kind != "plain" else (1,):
        run = lambda: network(images, active_streams=active)
        accuracy = float((run().argmax(dim=1) == digits.labels).float().mean())
        timer = timeit.Timer(run, timer=time.process_time)
        speed = len(images) / min(timer.repeat(5, number=1))
        rows.append((kind, active, accuracy, count_macs(network, active).plain / 1e6, speed))

_, axis = plt.subplots()
for kind, colour in {"keys": "#ef8a1d", "tiles": "#69c08a", "plain": "#34558b"}.items():
    found = [(row[4], 100 * row[2]) for row in rows if row[0] == kind]
    axis.plot(*zip(*found, strict=True), "o-", color=colour, label=kind)
axis.set(xlabel="digits per CPU second", ylabel="accuracy, %")
axis.legend()
for row in rows:
    axis.annotate(f" {row[1]} per pass", (row[4], 100 * row[2]))
print("network  digits per pass  accuracy  MMAC per digit  digits per CPU second")
for row in rows:
    print("{:7} {:16} {:9.1%} {:15.2f} {:22,.0f}".format(*row))
print("On digits this small the plain network beats keys. docs/when-it-pays.md has larger ones.")
