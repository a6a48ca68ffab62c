"""Run exported graphs with OpenVINO: the fastest engine for large networks on a CPU."""

import threading
from pathlib import Path
from typing import Any

from mimonets._extras import need
from mimonets._inputs import Array
from mimonets.inference.cpu import cpu_features
from mimonets.inference.engine import Run
from mimonets.inference.manifest import Manifest, find_graphs


class OpenVinoBackend:
    """One compiled model per mode, with the precision that its name says."""

    def __init__(self, name: str, folder: Path, manifest: Manifest, threads: int) -> None:
        self.name = name
        self.folder = folder
        # Its own format where it was written; else it reads ONNX as well.
        own = name if name.endswith("int8") else "openvino"
        if own == "openvino" and own not in manifest.formats:
            own = "onnx"
        self.graphs = find_graphs(name, own, manifest, folder)
        if name.endswith("bf16") and not cpu_features()["bf16"]:
            raise ValueError(
                f"backend={name!r} needs a CPU with bf16 instructions, and this one emulates them "
                f"many times slower: use openvino or openvino-int8."
            )
        self.core = need("openvino", extra="openvino", what="This backend").Core()
        self.properties = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # Without this OpenVINO rounds to bf16 by itself where the CPU has it.
            "INFERENCE_PRECISION_HINT": "bf16" if name.endswith("bf16") else "f32",
        }

    def open(self, active_streams: int, *, masked: bool) -> Run:
        """Compile the graph of one mode."""
        path = self.folder / self.graphs.graph(active_streams, masked=masked)
        compiled = self.core.compile_model(str(path), "CPU", self.properties)
        requests = threading.local()  # a request answers one caller at a time

        def run(inputs: Array, mask: Array | None) -> list[Array]:
            if not hasattr(requests, "mine"):
                requests.mine = compiled.create_infer_request()
            request: Any = requests.mine
            feeds = {"inputs": inputs} if mask is None else {"inputs": inputs, "mask": mask}
            request.infer(feeds, share_inputs=True)
            return [
                request.get_output_tensor(number).data.copy()
                for number in range(len(compiled.outputs))
            ]

        return run
