"""Write int8 graphs for ONNX Runtime and OpenVINO: static, per channel.

Products of 8-bit numbers are added up in 16 bits on CPUs without VNNI, and saturate: there weights
get 7 bits. A fraction of the layers, those that int8 hurts most, can stay in float.
"""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mimonets._extras import need
from mimonets._inputs import Array
from mimonets.inference.cpu import cpu_features
from mimonets.inference.manifest import Manifest
from mimonets.inference.trace import SharedWeights, plain_products, quiet

Feeds = dict[str, Array]


class Int8Writer:
    """Writes the int8 graphs of an export, mode by mode; shared by both runtimes.

    Args:
        folder: the export, with the ONNX graphs that ``manifest`` names.
        calibration: batches of inputs, or of (inputs, labels) or (tokens, mask, labels).
    """

    name = ""  # of the format, and of its folder
    suffix = ""
    more: tuple[str, ...] = ()  # files beside the graphs

    def __init__(self, folder: Path, manifest: Manifest, calibration: Iterable[Any]) -> None:
        self.export = folder
        self.manifest = manifest
        self.batches = [_inputs_and_mask(batch) for batch in calibration]
        self.graphs: dict[str, dict[str, str]] = {}  # active streams -> its graphs
        self.left_in_float: dict[str, list[str]] = {}  # active streams -> layers
        self.folder = folder / self.name
        self.folder.mkdir()
        self.vnni = cpu_features()["vnni"]

    def write_mode(self, active_streams: int, fraction: float) -> None:
        """Write the graphs of one mode with a fraction of its layers, the worst, in float."""
        skipped: list[str] = []
        mode = str(active_streams)
        self.graphs[mode] = {}
        for which, source in self.manifest.formats["onnx"].modes[mode].items():
            path = f"{self.name}/{Path(source).stem}{self.suffix}"
            feeds = list(self._feeds(active_streams, masked=which == "masked"))
            with quiet():
                skipped += self.write(self.export / source, self.export / path, feeds, fraction)
            self.graphs[mode][which] = path
        self.left_in_float[mode] = sorted(set(skipped))

    def notes(self) -> dict[str, Any]:
        """Say how it was quantised, for the manifest."""
        return {
            "calibration_inputs": sum(len(inputs) for inputs, _ in self.batches),
            "weights": "per channel",
            "reduced_range": not self.vnni,
            "left_in_float": {mode: names for mode, names in self.left_in_float.items() if names},
        }

    def write(self, source: Path, path: Path, feeds: list[Feeds], fraction: float) -> list[str]:
        """Quantise one graph; returns the layers that stay in float."""
        raise NotImplementedError

    def _feeds(self, active_streams: int, *, masked: bool) -> Iterator[Feeds]:
        """Cut calibration batches into whole groups."""
        size = self.manifest.answers_per_group(active_streams)
        for inputs, mask in self.batches:
            feeds = {"inputs": inputs}
            if masked:
                feeds["mask"] = np.ones(inputs.shape, dtype=bool) if mask is None else mask
            rows = np.arange(-(-len(inputs) // size) * size) % len(inputs)
            yield {name: part[rows] for name, part in feeds.items()}


class OnnxInt8Writer(Int8Writer):
    """For ONNX Runtime, by its own quantiser."""

    name, suffix = "onnx-int8", ".onnx"
    more = ("onnx-int8/weights.bin",)

    def __init__(self, folder: Path, manifest: Manifest, calibration: Iterable[Any]) -> None:
        super().__init__(folder, manifest, calibration)
        self.weights = SharedWeights(self.folder / "weights.bin")

    def write(self, source: Path, path: Path, feeds: list[Feeds], fraction: float) -> list[str]:
        """Quantise one graph."""
        import onnx
        import onnx_ir as ir
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        ready, plain = path.with_suffix(".ready"), path.with_suffix(".plain")
        _fold_batch_norm(source, ready)
        layers = {
            node.name: node.output[0]
            for node in onnx.load(ready).graph.node
            if node.op_type in ("Conv", "Gemm", "MatMul")
        }

        def run(skipped: list[str]) -> None:
            quantize_static(
                ready,
                plain,
                _Reader(feeds),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                reduce_range=not self.vnni,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                op_types_to_quantize=["Conv", "Gemm", "MatMul", "Add"],
                nodes_to_exclude=skipped,
            )

        run([])
        skipped: list[str] = []
        if fraction:
            known = {name for node in onnx.load(plain).graph.node for name in node.output}
            shared = {name: output for name, output in layers.items() if output in known}
            worst = worst_layers(*(_outputs(file, shared, feeds[0]) for file in (ready, plain)))
            skipped = worst[: max(1, round(fraction * len(layers)))]
            run(skipped)
        self.weights.write(ir.load(plain), path)
        ready.unlink()
        plain.unlink()
        return skipped


def _fold_batch_norm(source: Path, path: Path) -> None:
    """Write a graph as one file, with what ONNX Runtime can compute beforehand done."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3  # no word about constants that nothing needs any more
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    whole = plain_products(source)
    shorten_prelus(whole.graph)
    serialized = whole.SerializeToString()
    onnxruntime.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
    folded = onnx.load(path)
    give_each_layer_its_own_bias(folded.graph)
    onnx.save(folded, path)


def shorten_prelus(graph: Any) -> None:
    r"""Write PReLUs as :math:`\max(x, b x)` where no slope b is above 1.

    Two operations for five.
    """
    from onnx import numpy_helper

    values = {value.name: value for value in graph.initializer}
    nodes = {node.output[0]: node for node in graph.node}
    for last in [node for node in graph.node if node.name.endswith(".prelu")]:
        above, scaled = (nodes[name] for name in last.input)
        slopes = values.get(scaled.input[1])
        if slopes is not None and numpy_helper.to_array(slopes).max() <= 1:
            below, x = nodes[scaled.input[0]], above.input[0]
            for node in (above, below, nodes[below.input[0]]):
                graph.node.remove(node)
            last.op_type, last.input[0], scaled.input[0] = "Max", x, x


def give_each_layer_its_own_bias(graph: Any) -> None:
    """Copy a bias that several layers share, under the name of each.

    ONNX Runtime's quantiser would copy it too, but under a name that may be taken already.
    """
    shared = {value.name: value for value in graph.initializer}
    seen: set[str] = set()
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm") or len(node.input) < 3:
            continue
        bias = node.input[2]
        if bias in seen and bias in shared:
            copy = graph.initializer.add()
            copy.CopyFrom(shared[bias])
            copy.name = node.input[2] = f"{node.name}.own_bias"
        seen.add(bias)


def _outputs(path: Path, names: dict[str, str], feeds: Feeds) -> dict[str, Array]:
    """Run an ONNX graph and collect what its layers give: layer -> output."""
    import onnx
    import onnxruntime

    graph = onnx.load(path)
    there = {output.name for output in graph.graph.output}
    graph.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in names.values()
        if name not in there
    )
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    return dict(zip(names, session.run(list(names.values()), feeds), strict=True))


def worst_layers(exact: dict[str, Array], rounded: dict[str, Array]) -> list[str]:
    r"""Order layers by the relative error that int8 adds in them, the worst first.

    .. math:: e_l - e_{l-1}, \qquad e_l = \|\hat y_l - y_l\|^2 / \|y_l\|^2

    >>> exact = {"a": np.array([1.0]), "b": np.array([1.0]), "c": np.array([1.0])}
    >>> rounded = {"a": np.array([1.1]), "b": np.array([1.3]), "c": np.array([1.3])}
    >>> worst_layers(exact, rounded)
    ['b', 'a', 'c']
    """
    added: dict[str, float] = {}
    before = 0.0
    for name, wanted in exact.items():
        scale = float(np.square(wanted).mean()) or 1.0
        error = float(np.square(rounded[name] - wanted).mean()) / scale
        added[name] = error - before  # errors are handed on: only what comes on top is its own
        before = error
    return sorted(added, key=lambda name: -added[name])


class _Reader:
    """Calibration inputs as ONNX Runtime asks for them."""

    def __init__(self, feeds: list[Feeds]) -> None:
        self.feeds = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self.feeds, None)


class OpenVinoInt8Writer(Int8Writer):
    """For OpenVINO, by NNCF."""

    name, suffix = "openvino-int8", ".xml"

    def write(self, source: Path, path: Path, feeds: list[Feeds], fraction: float) -> list[str]:
        """Quantise one graph."""
        import onnx

        nncf, openvino = (need(name, extra="export") for name in ("nncf", "openvino"))
        core = openvino.Core()
        # Unlike read_model, this folds batch norm, which saves roundings and passes. Layers that
        # it joins get names by chance: clones keep them.
        with tempfile.TemporaryDirectory() as folder:  # it takes no path with a comma
            plain = Path(folder) / "plain.onnx"
            onnx.save(plain_products(source), plain)
            model = openvino.convert_model(str(plain))
        layers = [
            op.get_friendly_name()
            for op in model.get_ordered_ops()
            if op.get_type_name() in ("Convolution", "MatMul")
        ]
        tokens = self.manifest.input_spec.kind == "tokens"
        fix = nncf.OverflowFix.DISABLE if self.vnni else nncf.OverflowFix.ENABLE

        def run(skipped: list[str]) -> Any:
            return nncf.quantize(
                model.clone(),
                nncf.Dataset(feeds),
                preset=nncf.QuantizationPreset.MIXED,
                subset_size=len(feeds),
                model_type=nncf.ModelType.TRANSFORMER if tokens else None,
                ignored_scope=nncf.IgnoredScope(names=skipped) if skipped else None,
                advanced_parameters=nncf.AdvancedQuantizationParameters(overflow_fix=fix),
            )

        quantised, skipped = run([]), []
        if fraction:
            exact, rounded = (
                self._outputs(core, model.clone(), layers, feeds[0]),
                self._outputs(core, quantised, layers, feeds[0]),
            )
            shared = {name: exact[name] for name in layers if name in exact and name in rounded}
            skipped = worst_layers(shared, rounded)[: max(1, round(fraction * len(layers)))]
            quantised = run(skipped)
        openvino.save_model(quantised, str(path), compress_to_fp16=False)
        return skipped

    def _outputs(self, core: Any, model: Any, layers: list[str], feeds: Feeds) -> dict[str, Array]:
        """Run an OpenVINO model and collect what its layers give: layer -> output."""
        found = [op for op in model.get_ordered_ops() if op.get_friendly_name() in layers]
        first = len(model.outputs)
        model.add_outputs([op.output(0) for op in found])
        request = core.compile_model(model, "CPU").create_infer_request()
        request.infer(feeds)
        return {
            op.get_friendly_name(): request.get_output_tensor(first + place).data.copy()
            for place, op in enumerate(found)
        }


INT8_WRITERS: dict[str, type[Int8Writer]] = {
    "onnxruntime": OnnxInt8Writer,
    "openvino": OpenVinoInt8Writer,
}


def _inputs_and_mask(batch: Any) -> tuple[Array, Any]:
    """Take the inputs, and the mask if there is one, out of a calibration batch."""
    if isinstance(batch, tuple | list):
        mask = np.asarray(batch[1]) if len(batch) == 3 else None
        return np.asarray(batch[0]), mask
    return np.asarray(batch), None
