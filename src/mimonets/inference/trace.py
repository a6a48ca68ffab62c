"""Write the modes of a network as ONNX graphs that share one file of weights.

Every mode is traced by itself, with as many groups as one likes. What depends on weights alone is
computed once, here. Tensors that are equal in several modes are written once, and all graphs point
at the same place of ``weights.bin``.
"""

import hashlib
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from mimonets._messages import first_line
from mimonets.inference.manifest import SMALL, Manifest
from mimonets.inference.torch_runtime import OneMode

LARGE = 1024  # bytes from which on a tensor moves out of the graph
PAGE = 4096  # large tensors start at a page, so that they can be mapped


def trace(
    model: nn.Module,
    manifest: Manifest,
    active_streams: int,
    example: Tensor,
    *,
    masked: bool,
    form: str | None = None,
) -> ExportedProgram:
    """Trace one mode with any number of groups, and any length of sequences.

    ``form`` asks the network for a form that engines run faster, if it has one: "stacked" for all,
    "grouped" for OpenVINO.
    """
    size = manifest.answers_per_group(active_streams)
    inputs = example[: 3 * size]
    shape: dict[int, Any] = {0: size * Dim("groups") if size > 1 else Dim("groups")}
    longest = manifest.input_spec.shape[-1]
    if manifest.input_spec.kind == "tokens" and min(longest, example.shape[-1]) > 2:
        shape[example.ndim - 1] = Dim("tokens", min=2, max=longest)
    shapes: dict[str, Any] = {"inputs": shape}
    arguments: tuple[Tensor, ...] = (inputs,)
    if masked:
        arguments = (inputs, torch.ones_like(inputs, dtype=torch.bool))
        shapes["mask"] = shape
    take: Any = getattr(model, "exported_as", nullcontext) if form else nullcontext
    with quiet(), torch.no_grad(), take(form):  # networks may have shortcuts for inference
        try:
            return torch.export.export(
                OneMode(model, manifest.options(active_streams), size),
                arguments,
                dynamic_shapes=shapes,
            )
        except Exception as error:  # whatever the network does that cannot be traced
            raise ValueError(
                f"{manifest.model} cannot be exported with {active_streams} active: "
                f"{first_line(error)}"
            ) from error


def to_onnx(program: ExportedProgram, name: str) -> Any:
    """Turn a traced mode into an ONNX graph (onnx_ir), with all that is constant folded."""
    import onnx_ir as ir
    import onnx_ir.passes.common as passes
    from onnxscript.optimizer import fold_constants

    inputs = ["inputs", "mask"][: len(program.graph_signature.user_inputs)]
    with quiet():
        try:
            converted = torch.onnx.export(
                program,
                (),
                dynamo=True,
                optimize=False,  # it would fold batch norm into copies of the weights, mode by mode
                verbose=False,
                input_names=inputs,
                output_names=_output_names(len(program.graph_signature.user_outputs)),
            )
        except Exception as error:
            raise ValueError(f"{name} cannot be written as ONNX: {first_line(error)}") from error
    assert converted is not None
    graph = converted.model
    everything = 1 << 62
    fold_constants(
        graph,
        onnx_shape_inference=False,
        input_size_limit=everything,
        output_size_limit=everything,
        should_fold=lambda node: True,
    )
    passes.IdentityEliminationPass()(graph)
    _fix_shapes(graph.graph)
    ir.passes.Sequential(
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
        passes.ClearMetadataAndDocStringPass(),
    )(graph)
    _split_prelus(graph.graph)
    return graph


def _output_names(count: int) -> list[str]:
    """Name one output "answers", several "answers", "answers-1" and so on, in order."""
    return ["answers", *(f"answers-{number}" for number in range(1, count))]


def _fix_shapes(graph: Any) -> None:
    """Write down the shapes that reshapes give, rather than compute them at every call.

    A size that only a call knows is -1; of several, those that stay as they are are 0. A reshape of
    a reshape becomes one, and slices that leave nothing out go. Half of the nodes of a small
    network computed shapes.
    """
    import onnx_ir as ir

    for node in list(graph):
        last = node.outputs[0].is_graph_output()
        if node.op_type == "Slice" and not last and _takes_all(node):
            ir.convenience.replace_all_uses_with(node.outputs, node.inputs[:1])
        if node.op_type != "Reshape" or not (sizes := node.outputs[0].shape) or 0 in sizes:
            continue
        source, wanted = node.inputs[0], [size if isinstance(size, int) else -1 for size in sizes]
        if wanted.count(-1) > 1:
            before = source.shape or ()
            wanted = [
                0 if before[place : place + 1] == sizes[place : place + 1] else size
                for place, size in enumerate(wanted)
            ]
        if wanted.count(-1) > 1:
            continue
        while 0 not in wanted and (above := source.producer()) and above.op_type == "Reshape":
            source = above.inputs[0]
        if source.shape == sizes and not last:
            ir.convenience.replace_all_uses_with(node.outputs, [source])
            continue
        shape = ir.Value(name=f"{node.name}.shape", const_value=ir.tensor(wanted))
        graph.register_initializer(shape)
        node.replace_input_with(0, source)
        node.replace_input_with(1, shape)
        node.attributes.pop("allowzero", None)  # 0 is the size that was there


def _takes_all(node: Any) -> bool:
    """Whether a slice returns its whole input: the same shape, in steps of 1."""
    source, output = node.inputs[0], node.outputs[0]
    steps = node.inputs[4].const_value if len(node.inputs) > 4 else None
    forward = len(node.inputs) < 5 or (steps is not None and bool((steps.numpy() == 1).all()))
    return forward and source.shape is not None and source.shape == output.shape


def _split_prelus(graph: Any) -> None:
    r"""Write every PReLU as two ReLUs: :math:`\max(x, 0) - b \max(-x, 0)`.

    ONNX Runtime's PRelu took half of the time of a network. OpenVINO makes a PReLU of these again,
    which it joins to the convolution. In a small network both products, by -1 and by -b, are batch
    norms: ONNX Runtime then stays in the blocked layout of its convolutions. Other runtimes get
    :func:`plain_products`.
    """
    import onnx_ir as ir

    small = sum(value.const_value.nbytes for value in graph.initializers.values()) <= SMALL
    for node in [node for node in graph if node.op_type == "PRelu"]:
        x, slopes = node.inputs
        above = ir.node("Relu", [x])
        if small and slopes.const_value and x.shape is not None and len(x.shape) == 4:
            b = np.broadcast_to(slopes.const_value.numpy().ravel(), (x.shape[1],))
            negated = _batch_norm(graph, x, -np.ones_like(b), f"{node.name}.negated")
            below = ir.node("Relu", negated.outputs)
            scaled = _batch_norm(graph, below.outputs[0], -b, f"{node.name}.scaled")
            last = ir.node("Add", [above.outputs[0], scaled.outputs[0]])
        else:
            negated = ir.node("Neg", [x])
            below = ir.node("Relu", negated.outputs)
            scaled = ir.node("Mul", [below.outputs[0], slopes])
            last = ir.node("Sub", [above.outputs[0], scaled.outputs[0]])
        new = [above, negated, below, scaled, last]
        for part, one in zip(("above", "negated", "below", "scaled", "prelu"), new, strict=True):
            one.name = one.outputs[0].name = f"{node.name}.{part}"  # the quantiser needs names
        ir.convenience.replace_nodes_and_values(
            graph, node, [node], new, node.outputs, last.outputs
        )


def _batch_norm(graph: Any, x: Any, factors: Any, name: str) -> Any:
    """Make a batch norm that multiplies feature maps by factors and does nothing else."""
    import onnx_ir as ir

    zeros, ones = np.zeros_like(factors), np.ones_like(factors)
    numbers = {"factors": factors, "bias": zeros, "mean": zeros, "variance": ones}
    values = [
        ir.Value(name=f"{name}.{what}", const_value=ir.tensor(each))
        for what, each in numbers.items()
    ]
    for value in values:
        graph.register_initializer(value)
    return ir.node("BatchNormalization", [x, *values], {"epsilon": 0.0})


def plain_products(source: Path) -> Any:
    """Load an ONNX graph without the batch norms that PReLUs have for ONNX Runtime's sake."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(source)
    values = {value.name: value for value in model.graph.initializer}
    nodes = {node.name: node for node in model.graph.node}
    for node in model.graph.node:
        if node.op_type != "BatchNormalization" or not node.name.endswith((".negated", ".scaled")):
            continue
        name, _, part = node.name.rpartition(".")
        if part == "negated":
            node.op_type = "Neg"
            del node.input[1:], node.attribute[:]
            continue
        factors = values[node.input[1]]
        slopes = -numpy_helper.to_array(factors).reshape(-1, 1, 1)
        factors.CopyFrom(numpy_helper.from_array(slopes, factors.name))
        node.op_type, nodes[f"{name}.prelu"].op_type = "Mul", "Sub"
        del node.input[2:], node.attribute[:]
    return model


class SharedWeights:
    """One file of tensors for many graphs; what is equal is written once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[bytes, int] = {}
        path.touch()

    def write(self, graph: Any, path: Path) -> None:
        """Save a graph beside the weights, with its large tensors moved there."""
        import onnx_ir as ir

        with open(self.path, "ab") as file:
            for value in graph.graph.initializers.values():
                tensor = value.const_value
                if tensor.nbytes < LARGE:
                    continue
                content = tensor.tobytes()
                value.const_value = ir.ExternalTensor(
                    location=self.path.name,
                    offset=self._place(file, content),
                    length=len(content),
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    name=value.name,
                    base_dir=str(self.path.parent),
                )
        ir.save(graph, path)

    def _place(self, file: Any, content: bytes) -> int:
        digest = hashlib.sha256(content).digest()
        if digest not in self.places:
            file.write(bytes(-file.tell() % PAGE))
            self.places[digest] = file.tell()
            file.write(content)
        return self.places[digest]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the remarks and progress bars of exporters and quantisers from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
