"""Run exported graphs with ONNX Runtime: small, quick to start, needs no PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np

from mimonets._extras import need
from mimonets._inputs import Array
from mimonets.inference.engine import Run
from mimonets.inference.manifest import Manifest, find_graphs

CUDA = "CUDAExecutionProvider"
PIECE = 8  # inputs per thread that a large network answers at once: more leave the cache

# These would bake a mode's own numbers into copies of the large weights, which all modes share.
_FUSIONS_THAT_COPY = [
    "ConvAddFusion",
    "ConvBNFusion",
    "ConvMulFusion",
    "MatMulBNFusion",
    "MatMulAddFusion",
    "MatMulScaleFusion",
]


class OnnxRuntimeBackend:
    """One session per mode; all of them map the same file of weights."""

    def __init__(
        self, name: str, folder: Path, manifest: Manifest, threads: int, device: str = "cpu"
    ) -> None:
        self.name = name
        self.device = device
        self.folder = folder
        self.int8 = name.endswith("int8")
        self.graphs = find_graphs(name, "onnx-int8" if self.int8 else "onnx", manifest, folder)
        self.manifest = manifest
        self.threads = threads
        self.runtime = need("onnxruntime", extra="onnxruntime", what="This backend")
        # Copies of few weights cost nothing, and let ONNX Runtime fuse and lay out as it likes.
        small = self.graphs.is_small(folder)
        self.share_weights = not (self.int8 or small) and device == "cpu"
        if device != "cpu":
            self._check_cuda()

    def open(self, active_streams: int, *, masked: bool) -> Run:
        """Make the session of one mode."""
        path = self.folder / self.graphs.graph(active_streams, masked=masked)
        session = self._session(path)

        def run(inputs: Array, mask: Array | None) -> list[Array]:
            feeds = {"inputs": inputs} if mask is None else {"inputs": inputs, "mask": mask}
            outputs: list[Array] = session.run(None, feeds)
            return outputs

        group = self.manifest.answers_per_group(active_streams)
        size = max(1, PIECE * self.threads // group) * group  # whole groups

        def run_in_pieces(inputs: Array, mask: Array | None) -> list[Array]:
            if len(inputs) <= size:
                return run(inputs, mask)
            pieces = [slice(start, start + size) for start in range(0, len(inputs), size)]
            found = [run(inputs[rows], None if mask is None else mask[rows]) for rows in pieces]
            return list(map(np.concatenate, zip(*found, strict=True)))

        return run_in_pieces if self.share_weights else run

    def _session(self, path: Path) -> Any:
        options = self.runtime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors are raised, and said once
        # Waiting threads sleep: spinning ones steal time from whoever else works here.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        disabled = []
        if self.share_weights:
            options.add_session_config_entry("session.disable_prepacking", "1")
            # The blocked layout of convolutions would be a copy of their weights per mode.
            levels = self.runtime.GraphOptimizationLevel
            options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
            disabled = _FUSIONS_THAT_COPY
        providers: list[Any] = ["CPUExecutionProvider"]
        if self.device != "cpu":
            number = int(self.device.partition(":")[2] or 0)
            providers.insert(0, (CUDA, {"device_id": number}))
        session = self.runtime.InferenceSession(
            str(path), options, providers=providers, disabled_optimizers=disabled
        )
        if self.device != "cpu" and CUDA not in session.get_providers():  # it falls back silently
            raise ValueError(
                f"ONNX Runtime could not use device={self.device!r} and would run on the CPU: "
                f"check that CUDA and cuDNN fit onnxruntime-gpu {self.runtime.__version__}, or "
                f"choose device='cpu'."
            )
        return session

    def _check_cuda(self) -> None:
        """Refuse a package without CUDA, and say which one has it."""
        there = self.runtime.get_available_providers()
        if CUDA not in there:
            raise ValueError(
                f"device={self.device!r} needs ONNX Runtime with CUDA, and the one installed has "
                f"{', '.join(there)}: pip install onnxruntime-gpu in place of onnxruntime, or "
                f"choose device='cpu' or backend='torch'."
            )
