"""Serve an export where PyTorch is not installed, and ask; ``make serve-only`` runs it.

python serve_only.py EXPORT
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import mimonets as mn

ADDRESS = "http://127.0.0.1:8931"


def answer(images, seconds=60):
    """Ask the server that is starting, for one pass."""
    tensor = {"name": "input", "datatype": "FP32", "shape": images.shape}
    question = {"inputs": [tensor | {"data": images.ravel().tolist()}]}
    body = json.dumps(question | {"parameters": {"superpose": True}}).encode()
    while True:
        try:
            with urllib.request.urlopen(f"{ADDRESS}/v2/models/model/infer", body) as response:
                outputs = json.load(response)["outputs"]
                return next(one["data"] for one in outputs if one["name"] == "logits")
        except urllib.error.URLError:
            seconds -= 1
            if seconds < 0:
                raise
            time.sleep(1)


assert find_spec("torch") is None, "this environment has PyTorch"
engine = mn.Engine(sys.argv[1])
images = np.random.default_rng(0).standard_normal((4, *engine.input_spec.shape), np.float32)
expected = engine(images, active_streams=4)
command = ["-m", "mimonets.cli.main", "serve", f"model={sys.argv[1]}", "--port", ADDRESS[-4:]]
with subprocess.Popen([sys.executable, *command]) as server:
    try:
        np.testing.assert_allclose(answer(images), expected.ravel(), rtol=1e-4, atol=1e-5)
    finally:
        server.terminate()
packages = Path(np.__file__).parents[1]
size = sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())
print(f"an export is served without PyTorch, from {size / 1e6:.0f} MB of packages")
