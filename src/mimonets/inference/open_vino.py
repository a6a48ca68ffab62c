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
        # Knowing the shapes saves a third of the time of a small network's group, which needs
        # weights of its own for it.
        self.one_group = self.graphs.is_small(folder) and manifest.input_spec.kind != "tokens"
        self.manifest = manifest
        openvino = need("openvino", extra="openvino", what="This backend")
        self.core, self.convert = openvino.Core(), openvino.convert_model
        self.properties = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # Without this OpenVINO rounds to bf16 by itself where the CPU has it.
            "INFERENCE_PRECISION_HINT": "bf16" if name.endswith("bf16") else "f32",
        }

    def open(self, active_streams: int, *, masked: bool) -> Run:
        """Compile the graph of one mode; of a small network, once more for a single group."""
        path = self.folder / self.graphs.graph(active_streams, masked=masked)
        # Of ONNX graphs for small networks only convert_model finds the PReLUs again; it takes a
        # path with a comma for several.
        convert = path.suffix == ".onnx" and "," not in str(path)
        read = self.convert if convert else self.core.read_model
        run = self._compile(read(str(path)))
        if not self.one_group:
            return run
        group = self.manifest.answers_per_group(active_streams)
        model = read(str(path))
        model.reshape({"inputs": [group, *self.manifest.input_spec.shape]})
        run_group = self._compile(model)
        return lambda inputs, mask: (run_group if len(inputs) == group else run)(inputs, mask)

    def _compile(self, model: Any) -> Run:
        compiled = self.core.compile_model(model, "CPU", self.properties)
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
