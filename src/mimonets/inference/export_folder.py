"""ExportFolder: the folder that an export fills, and the manifest that describes it so far."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mimonets._answers import parts_of
from mimonets._extras import need
from mimonets._inputs import InputSpec
from mimonets.inference.cascade import choose_threshold, thresholds
from mimonets.inference.cpu import cpu_features
from mimonets.inference.engine import CANDIDATES, Engine
from mimonets.inference.manifest import Graphs, Manifest, hash_file, write_manifest
from mimonets.inference.measure import (
    answers_and_labels,
    macs_per_input,
    measure_accuracy,
    service_times,
)
from mimonets.inference.quantise import INT8_WRITERS
from mimonets.inference.trace import SharedWeights, plain_products, to_onnx, trace

LENGTH = 128  # tokens of the random sequences to compare on; every length runs the same graph
LEFT_IN_FLOAT = (0.0, 0.125, 0.25, 0.5)  # int8: fractions of the layers to try, worst first
Batch = tuple[Any, ...]  # (images, labels) or (tokens, mask, labels)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What most exports leave as it is."""

    # Batches of (inputs, labels), neither trained nor evaluated on: which confidence of a fast
    # answer makes a slow one worth it is calibrated on them.
    validation: Iterable[Batch] | None = None
    accuracy: Mapping[int, float] | None = None  # of active streams, where it is known already
    max_loss: float = 0.3  # int8: points of accuracy; nothing is written if a mode loses more
    int8_runtimes: Sequence[str] | None = None  # onnxruntime, openvino; None: those installed
    inputs: Any = None  # real inputs to compare with PyTorch on; None: random ones
    input_spec: InputSpec | None = None  # what an input is, if the model does not know
    recipe: dict[str, Any] | None = None  # what it was trained with, for whoever evaluates it
    tolerance: float = 1e-4  # of the largest answer; float32 graphs agree to about 1e-6
    tell: Callable[[str], object] = lambda line: None  # called with a line for each step


class ExportFolder:
    """Writes the formats, compares them with PyTorch and measures them, one after the other."""

    def __init__(
        self, model: nn.Module, folder: Path, manifest: Manifest, options: ExportOptions
    ) -> None:
        self.model, self.folder, self.options, self.tell = model, folder, options, options.tell
        self.manifest = replace(
            manifest, versions=_versions(), cpu=cpu_features(), recipe=options.recipe
        )
        self.reference = Engine(model, "torch")
        self.reference.manifest = manifest  # with the modes that are exported, and no others
        count = 3 * manifest.num_streams + 1
        draw: Any = model.example_inputs
        inputs = options.inputs
        example = draw(count) if inputs is None else torch.as_tensor(inputs)
        if inputs is None and manifest.takes_mask:
            example = example[..., :LENGTH]
        self.example: Tensor = example[torch.arange(count) % len(example)]  # as often as needed

    def write(self, formats: Sequence[str], *, onnx: bool, for_openvino: bool = False) -> None:
        """Trace every mode, write it in each format and compare it with PyTorch.

        ``onnx`` asks for ONNX graphs as a step on the way to others; see :meth:`finish`.
        ``for_openvino`` says that no other runtime gets them.
        """
        self._keep_model()
        weights = SharedWeights(self.folder / "weights.bin")
        written: dict[str, dict[str, dict[str, str]]] = {}  # format -> active streams -> its graphs
        for active in self.reference.modes:
            self.tell(f"tracing {active} active")
            for which in ("plain", "masked")[: 1 + self.manifest.takes_mask]:
                program = partial(
                    trace, self.model, self.manifest, active, self.example, masked=which == "masked"
                )
                name = f"mode-{active}" + ("-mask" if which == "masked" else "")
                paths = {}
                if "pt2" in formats:
                    paths["pt2"] = f"{name}.pt2"
                    torch.export.save(program(), self.folder / paths["pt2"])
                if onnx:
                    paths["onnx"] = f"{name}.onnx"
                    form = "grouped" if for_openvino else "stacked"
                    graph = to_onnx(program(form=form), self.manifest.model)
                    weights.write(graph, self.folder / paths["onnx"])
                if "openvino" in formats:
                    paths["openvino"] = f"openvino/{name}.xml"
                    self._write_openvino(paths["onnx"], paths["openvino"])
                for format_name, path in paths.items():
                    modes = written.setdefault(format_name, {})
                    modes.setdefault(str(active), {})[which] = path
        backends = {"onnx": "onnxruntime", "openvino": "openvino", "pt2": "pt2"}
        for format_name, backend in backends.items():
            if format_name in written:
                more = ("weights.bin",) if format_name == "onnx" else ()
                self.add(format_name, written[format_name], *more)
                self.compare(format_name, backend)

    def finish(self, formats: Sequence[str]) -> None:
        """Remove ONNX graphs that were only a step on the way, and write the manifest."""
        kept = dict(self.manifest.formats)
        if "onnx" not in formats:
            for path in kept.pop("onnx", Graphs({})).files:
                (self.folder / path).unlink()
            (self.folder / "weights.bin").unlink(missing_ok=True)
        self.manifest = replace(self.manifest, formats=kept)
        write_manifest(self.manifest, self.folder)

    def compare(self, format_name: str, backend: str) -> None:
        """Hold every mode to PyTorch's answers, for several numbers of inputs, or refuse."""
        self.tell(f"comparing {backend} with PyTorch")
        engine = self.engine(backend)
        found: dict[str, float] = {}
        for mode in engine.modes:
            group = self.manifest.answers_per_group(mode)
            for batch in sorted({group, 3 * group, 2 * group + 1}):
                for mask in (None, self._mask())[: 1 + self.manifest.takes_mask]:
                    difference = self._difference(engine, mode, batch, mask)
                    found[str(mode)] = max(difference, found.get(str(mode), 0.0))
                    if not difference <= self.options.tolerance:
                        raise ValueError(
                            f"{self.manifest.model} with {mode} active answers differently in "
                            f"{backend} than in PyTorch, by {difference:.2g} of the largest answer "
                            f"where {self.options.tolerance:.2g} is allowed; nothing was written."
                        )
        graphs = self.manifest.formats[format_name]
        self._set_format(format_name, replace(graphs, difference=found, checks=engine.probe()))

    def enter_accuracies(self, evaluation: Sequence[Batch] | None) -> None:
        """Write down the accuracies that are known already, and measure those of PyTorch."""
        known = self.options.accuracy or {}
        if self.manifest.input_spec.answers == "values":
            return  # which are neither right nor wrong
        for active in self.reference.modes:
            if evaluation is not None:
                self.accuracy_of("float32", evaluation, active)
            elif active in known:
                self._set_modes("accuracy", "float32", {active: known[active]})

    def accuracy_of(
        self, precision: str, evaluation: Sequence[Batch], active_streams: int
    ) -> float:
        """Measure one mode in one backend, or in PyTorch for "float32", and write it down."""
        self.tell(f"accuracy with {active_streams} active in {precision}")
        engine = self.reference if precision == "float32" else self.engine(precision)
        found = measure_accuracy(engine, evaluation, active_streams)
        self._set_modes("accuracy", precision, {active_streams: found})
        return found

    def calibrate_cascade(self, validation: Sequence[Batch]) -> None:
        """Tabulate, for every mode but the slowest, which answers are worth a slow pass."""
        if self.manifest.input_spec.answers == "values":
            raise ValueError(
                f"{self.manifest.model} answers with values, and a cascade goes by the confidence "
                f"of a class: leave validation=... out."
            )
        modes = self.reference.modes
        slowest = min(modes)
        self.tell("calibrating the cascade")
        slow, labels = answers_and_labels(self.reference, validation, slowest)
        for active in modes:
            group = self.manifest.answers_per_group(active)
            if active == slowest or group == 1:
                continue
            fast, _ = answers_and_labels(self.reference, validation, active)
            table = thresholds(fast, slow, labels, active_streams=group)
            changes = {
                "cascade": [asdict(row) for row in table],
                "confidence": choose_threshold(table).confidence,
            }
            self._change_mode(active, changes)

    def write_int8(
        self, runtime: str, calibration: Sequence[Any], evaluation: Sequence[Batch]
    ) -> None:
        """Write int8 graphs of all modes for a runtime; refuse if a mode loses more than allowed.

        Layers that hurt most stay in float if that repairs it.
        """
        max_loss = self.options.max_loss
        writer = INT8_WRITERS[runtime](self.folder, self.manifest, calibration)
        modes = self.reference.modes
        for mode in modes:  # all of them first: a folder without the graphs of one is not opened
            writer.write_mode(mode, LEFT_IN_FLOAT[0])
        for mode in modes:
            for fraction in LEFT_IN_FLOAT:
                self.tell(
                    f"int8 for {runtime}, {mode} active, {fraction:.0%} of the layers in float"
                )
                if fraction != LEFT_IN_FLOAT[0]:
                    writer.write_mode(mode, fraction)
                self.add(writer.name, writer.graphs, *writer.more)
                loss = 100 * self._int8_loss(f"{runtime}-int8", evaluation, mode)
                if loss <= max_loss:
                    break
            else:
                raise ValueError(
                    f"int8 in {runtime} costs {loss:.2f} points of accuracy with {mode} active, "
                    f"and max_loss allows {max_loss:g}; nothing was written. Calibrate with more "
                    f"inputs, raise max_loss, or leave int8 out."
                )
        graphs = self.manifest.formats[writer.name]
        checks = self.engine(f"{runtime}-int8").probe()
        self._set_format(writer.name, replace(graphs, notes=writer.notes(), checks=checks))

    def _int8_loss(self, backend: str, evaluation: Sequence[Batch], mode: int) -> float:
        r"""Say what int8 costs: accuracy, or the share of the variance of values that it changes.

        .. math:: \max_o \sum |found - expected|^2 / \sum |expected - mean|^2
        """
        if self.manifest.input_spec.answers != "values":
            accuracy = self.accuracy_of(backend, evaluation, mode)
            return self.manifest.mode(mode).accuracy["float32"] - accuracy
        engine, sums = self.engine(backend), []
        for inputs, *_ in evaluation:
            pair = (parts_of(run(np.asarray(inputs), mode)) for run in (engine, self.reference))
            sums.append(
                [
                    (((found - wanted) ** 2).sum(), ((wanted - wanted.mean(axis=0)) ** 2).sum())
                    for found, wanted in zip(*pair, strict=True)
                ]
            )
        changed, whole = np.sum(sums, axis=0).T
        return float((changed / np.maximum(whole, 1e-12)).max())

    def measure_times(self) -> None:
        """Count the operations of every mode and time it in every backend that was written."""
        for active in self.reference.modes:
            group = self.example[: self.manifest.answers_per_group(active)]
            macs = macs_per_input(self.model, group, self.manifest.options(active))
            self._change_mode(active, {"macs_per_input": macs})
        for backend, ((own, *_), package) in CANDIDATES.items():
            if own in self.manifest.formats and find_spec(package) is not None:
                self.tell(f"timing {backend}")
                engine = self.engine(backend)
                self._set_modes("service_seconds", backend, service_times(engine))
                self.manifest = replace(self.manifest, threads=engine.threads)

    def engine(self, backend: str) -> Engine:
        """Open what was written so far."""
        write_manifest(self.manifest, self.folder)
        return Engine(self.folder, backend)

    def _difference(self, engine: Engine, mode: int, batch: int, mask: Tensor | None) -> float:
        r"""Compare answers: :math:`\max |found - expected| / \max |expected|`."""
        options = {} if mask is None else {"mask": mask[:batch]}
        differences = []
        for expected, found in zip(
            parts_of(self.reference(self.example[:batch].numpy(), mode, **options)),
            parts_of(engine(self.example[:batch].numpy(), mode, **options)),
            strict=True,
        ):
            if not np.isfinite(expected).all():
                raise ValueError(
                    f"{self.manifest.model} with {mode} active gives answers that are not finite "
                    f"in PyTorch already; nothing was written."
                )
            if found.shape != expected.shape or not np.isfinite(found).all():
                return math.inf
            largest = float(np.abs(expected).max()) or 1.0
            differences.append(float(np.abs(found - expected).max()) / largest)
        return max(differences)

    def _mask(self) -> Tensor:
        """Mark sequences of several lengths as real."""
        length = self.example.shape[-1]
        lengths = length - torch.arange(len(self.example)) % max(1, length // 2)
        mask = torch.arange(length) < lengths.view(-1, *[1] * (self.example.ndim - 1))
        return mask.expand(self.example.shape).contiguous()

    def _write_openvino(self, source: str, path: str) -> None:
        """Convert an ONNX graph into OpenVINO's format, weights and all."""
        openvino = need("openvino", extra="openvino", what="This backend")
        (self.folder / path).parent.mkdir(exist_ok=True)
        plain = plain_products(self.folder / source)
        model = openvino.Core().read_model(plain.SerializeToString())
        openvino.save_model(model, str(self.folder / path), compress_to_fp16=False)

    def _keep_model(self) -> None:
        """Keep one of our own networks as it is, for the PyTorch engines."""
        from mimonets.checkpoints import save
        from mimonets.models.base import Model
        from mimonets.models.superposed import Superposed

        loadable = not isinstance(self.model, Superposed) or self.model.config.builder
        if isinstance(self.model, Model | Superposed) and loadable:
            save(self.model, self.folder / "model")
            names = sorted(path.name for path in (self.folder / "model").iterdir())
            self._set_format("torch", Graphs(self._hashes(f"model/{name}" for name in names)))

    def add(self, name: str, modes: dict[str, dict[str, str]], *more: str) -> None:
        """Enter the files of a format into the manifest."""
        paths = [path for graphs in modes.values() for path in graphs.values()]
        paths += [p[: -len("xml")] + "bin" for p in paths if p.endswith(".xml")]
        self._set_format(name, Graphs(self._hashes([*paths, *more]), modes))

    def _hashes(self, names: Iterable[str]) -> dict[str, str]:
        return {name: hash_file(self.folder / name) for name in names}

    def _set_format(self, name: str, graphs: Graphs) -> None:
        self.manifest = replace(self.manifest, formats={**self.manifest.formats, name: graphs})

    def _set_modes(self, what: str, key: str, values: dict[int, Any]) -> None:
        for active, value in values.items():
            known = getattr(self.manifest.mode(active), what)
            self._change_mode(active, {what: {**known, key: value}})

    def _change_mode(self, active_streams: int, changes: dict[str, Any]) -> None:
        modes = (
            replace(mode, **changes) if mode.active_streams == active_streams else mode
            for mode in self.manifest.modes
        )
        self.manifest = replace(self.manifest, modes=tuple(modes))


def _versions() -> dict[str, str]:
    found = {}
    for package in ("mimonets", "torch", "onnx", "onnxscript", "onnxruntime", "openvino", "nncf"):
        try:
            found[package] = version(package).partition("+")[0]
        except PackageNotFoundError:
            continue
    return found
