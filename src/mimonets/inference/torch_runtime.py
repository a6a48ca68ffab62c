"""Run networks with PyTorch itself, eager or compiled: the reference the other engines are held to.

Also what exporting needs to know of a network before anything is traced.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mimonets._answers import parts_of
from mimonets._device import choose_device
from mimonets._inputs import Array, InputSpec
from mimonets.inference.engine import Run
from mimonets.inference.manifest import Manifest, PointRecord, check_files, find_graphs
from mimonets.models.operating_points import operating_points


class TorchBackend:
    """Call the network itself."""

    def __init__(
        self,
        name: str,
        source: Any,
        folder: Path | None,
        manifest: Manifest,
        device: str = "auto",
    ) -> None:
        self.name = name
        place = None if device == "auto" else choose_device(device)
        if folder is not None:
            source = _load(name, folder, manifest, place or torch.device("cpu"))
        elif place is not None:
            source = source.to(place)
        self.model: nn.Module = source.eval()
        self.manifest = manifest
        self.device = next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def open(self, active_streams: int, *, masked: bool) -> Run:
        """Make what answers whole groups in one mode."""
        one_mode: nn.Module = OneMode(self.model, self.manifest.options(active_streams))
        if self.name == "compiled":
            # Every mode is a graph of its own, and dynamo counts them all as one function's.
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            one_mode = torch.compile(one_mode, options={"freezing": True})  # type: ignore[assignment]

        def run(inputs: Array, mask: Array | None) -> list[Array]:
            parts = [torch.from_numpy(part) for part in (inputs, mask) if part is not None]
            return [output.cpu().numpy() for output in self.answer(one_mode, parts)]

        return run

    def answer(self, one_mode: nn.Module, parts: Sequence[Tensor]) -> list[Tensor]:
        """Take inputs to the device and run one mode there: all outputs of the network."""
        # Inference mode saves bookkeeping per operation, and compiled code does not take it.
        with torch.no_grad() if self.name == "compiled" else torch.inference_mode():
            outputs = one_mode(*(part.to(self.device) for part in parts))
            return [output.float() for output in outputs]


class ProgramBackend:
    """Run PyTorch's exported programs: no code of the network is needed."""

    name = "pt2"

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.graphs = find_graphs("pt2", "pt2", manifest, folder)

    def open(self, active_streams: int, *, masked: bool) -> Run:
        """Load the program of one mode."""
        path = self.folder / self.graphs.graph(active_streams, masked=masked)
        # Traced with several groups; one is as good, and every export is compared with one too.
        module = torch.export.load(path).module(check_guards=False)

        def run(inputs: Array, mask: Array | None) -> list[Array]:
            tensors = [torch.from_numpy(part) for part in (inputs, mask) if part is not None]
            with torch.no_grad():
                return [output.numpy() for output in parts_of(module(*tensors))]

        return run


class OneMode(nn.Module):
    """A network with its mode decided: (inputs) or (tokens, mask) in, a tuple of outputs out.

    Args:
        options: what ``forward`` gets besides, such as ``active_streams``.
        group: how many inputs share a pass, for a graph that is to know that only whole groups
            come; by default it does not.
    """

    def __init__(self, model: nn.Module, options: dict[str, int], group: int = 1) -> None:
        super().__init__()
        self.model = model
        self.options = options
        self.group = group

    def forward(self, inputs: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
        """Answer whole groups."""
        if self.group > 1:  # all of them, and a tracer sees that their number is a multiple
            whole = inputs.shape[0] // self.group * self.group
            inputs, mask = inputs[:whole], None if mask is None else mask[:whole]
        arguments = {} if mask is None else {"mask": mask}
        return tuple(parts_of(self.model(inputs, **arguments, **self.options)))


def describe(model: Any, input_spec: InputSpec | None = None) -> Manifest:
    """Say what a network takes and which modes it has; refuse what is no such network."""
    name = type(model).__name__
    missing = [
        what
        for what, there in (
            ("be a torch.nn.Module", isinstance(model, nn.Module)),
            ("have num_streams, an integer >= 1", _streams(model) >= 1),
            ("have example_inputs(batch_size)", callable(getattr(model, "example_inputs", None))),
        )
        if not there
    ]
    if missing:
        raise ValueError(
            f"{name} is no network that takes several inputs: it must {', '.join(missing)} and "
            f"answer forward(inputs, active_streams=...)."
        )
    config = getattr(model, "config", None)
    example = model.example_inputs(1)
    spec = input_spec or getattr(model, "input_spec", None)
    if not isinstance(spec, InputSpec):
        numbers = example.is_floating_point()
        spec = InputSpec.like(
            tuple(example.shape[1:]),
            numbers=numbers,
            vocab_size=None if numbers else getattr(config, "vocab_size", None),
        )
    outputs = tuple(getattr(model, "output_names", ()))
    kind = getattr(model, "answer_kind", None) or spec.answers
    spec = replace(spec, answers=kind, outputs=outputs or None)
    if tuple(example.shape[1:]) != spec.shape:
        raise ValueError(
            f"{name} takes inputs of {tuple(example.shape[1:])}, and its description says "
            f"{spec.shape}: pass the input_spec that fits."
        )
    pairs = spec.kind == "tokens" and len(spec.shape) == 2
    # Two sequences of a pair share a group, so an odd group would cut one apart.
    modes = [m for m in range(1, _streams(model) + 1) if not pairs or m == 1 or m % 2 == 0]
    points = operating_points(model)
    argument = next(iter(points[0].options))
    if argument != "active_streams":
        modes = [point.number for point in points]
    return Manifest(
        model=name,
        num_streams=_streams(model),
        input_spec=spec,
        modes=tuple(PointRecord(mode) for mode in modes),
        formats={},
        takes_mask=spec.kind == "tokens" and getattr(model, "takes_mask", True),
        pairs=pairs,
        argument=None if argument == "active_streams" else argument,
    )


def check_finite(model: nn.Module) -> None:
    """Refuse weights that are not numbers."""
    for name, value in model.state_dict().items():
        if value.is_meta:
            raise ValueError(f"{type(model).__name__} has no weights yet: {name} is on 'meta'.")
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise ValueError(
                f"{type(model).__name__} has weights that are not finite, in {name}: "
                f"it diverged in training, or its file is damaged."
            )


def _streams(model: Any) -> int:
    streams = getattr(model, "num_streams", 0)
    return streams if isinstance(streams, int) and not isinstance(streams, bool) else 0


def _load(name: str, folder: Path, manifest: Manifest, device: torch.device) -> Any:
    if "torch" not in manifest.formats:
        raise ValueError(
            f"backend={name!r} needs the network itself, which {folder} does not hold, since "
            f"{manifest.model} is none of mimonets' own: pass the network to Engine instead."
        )
    from mimonets.checkpoints import load

    check_files(folder, manifest.formats["torch"].files)
    return load(folder / "model", device=device)
