"""Pick a backend by a short measurement on this machine."""

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mimonets._inputs import Array, InputSpec
from mimonets.inference.engine import Backend, open_backend
from mimonets.inference.manifest import Manifest

# What each reads, and its package.
# "compiled" takes half a minute to start and bf16 rounds: both are chosen by name only.
CANDIDATES = {
    "onnxruntime": ({"onnx"}, "onnxruntime"),
    "openvino": ({"onnx", "openvino"}, "openvino"),
    "onnxruntime-int8": ({"onnx-int8"}, "onnxruntime"),
    "openvino-int8": ({"openvino-int8"}, "openvino"),
}


def choose(
    source: Any, folder: Path | None, manifest: Manifest, threads: int
) -> tuple[Backend, str]:
    """Time one pass of the fastest mode in each backend that is there; the winner and the times."""
    names = [
        name
        for name, (formats, package) in CANDIDATES.items()
        if formats & manifest.formats.keys() and find_spec(package) is not None
    ]
    if folder is None or not names:
        backend = open_backend("torch", source, folder, manifest, threads)
        return backend, "torch: nothing else is there to choose from"
    seconds: dict[str, float] = {}
    backends = {}
    mode = manifest.modes[-1].active_streams
    example = example_inputs(manifest.input_spec, manifest.answers_per_group(mode))
    for name in names:
        backends[name] = open_backend(name, source, folder, manifest, threads)
        seconds[name] = median_seconds(backends[name].open(mode, masked=False), example)
    best = min(seconds, key=seconds.__getitem__)
    times = ", ".join(f"{name} {1000 * seconds[name]:.3g} ms" for name in names)
    return backends[best], f"{best}: a group of {mode} took {times}"


def median_seconds(run: Any, inputs: Array, *, rounds: int = 5, budget: float = 1.0) -> float:
    """Time a call after one to warm up: the median of a few, fewer if they take long."""
    run(inputs, None)
    seconds: list[float] = []
    while len(seconds) < rounds and sum(seconds) < budget:
        start = time.perf_counter()
        run(inputs, None)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def example_inputs(spec: InputSpec, batch_size: int) -> Array:
    """Make random inputs that fit a description."""
    draw = np.random.default_rng(0)
    shape = (batch_size, *spec.shape)
    if spec.kind == "tokens":
        return draw.integers(spec.vocab_size or 2, size=shape)
    return draw.standard_normal(shape, dtype=np.float32)
