"""One call for every runtime: inputs of any number in, as many answers out, in any mode.

Imports numpy only. A backend runs whole groups in one mode; all else is done here, once.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mimonets._answers import named
from mimonets._inputs import Array, InputSpec
from mimonets._memory import keep_freed_memory
from mimonets._operating_point import OperatingPoint
from mimonets.inference.manifest import Manifest, read_manifest

# Whole groups of one mode, and a mask for sequences; gives the outputs of the network in order.
Run = Callable[[Array, Array | None], Sequence[Array]]


class Backend(Protocol):
    """What runs the graphs of a network."""

    name: str

    def open(self, active_streams: int, *, masked: bool) -> Run:
        """Make what answers whole groups in one mode; it is called from several threads."""
        ...


BACKENDS: tuple[str, ...] = (
    "torch",
    "compiled",
    "pt2",
    "onnxruntime",
    "onnxruntime-int8",
    "openvino",
    "openvino-bf16",
    "openvino-int8",
)
# What each reads, its own format first, and its package.
# "compiled" takes half a minute to start and bf16 rounds: both are chosen by name only.
CANDIDATES = {
    "onnxruntime": (("onnx",), "onnxruntime"),
    "openvino": (("openvino", "onnx"), "openvino"),
    "onnxruntime-int8": (("onnx-int8",), "onnxruntime"),
    "openvino-int8": (("openvino-int8",), "openvino"),
}


class Engine:
    """A network that answers numpy arrays or tensors, whatever runs it.

    ``engine(inputs, active_streams=4)`` gives as many answers as there are inputs, in order.
    Neighbours share a pass; inputs left over run in the mode of their number. A graph is opened
    when its mode is first asked for. Any number of threads may call at once.

    Args:
        source: a folder that :func:`mimonets.export` wrote, or a network in PyTorch.
        backend: one of ``BACKENDS``, or ``"auto"``, which times those that are there with a few
            inputs and keeps the fastest of the exported precision; ``engine.choice`` tells.
        threads: CPU threads per call; by default OMP_NUM_THREADS, or the cores of this process.
        keep_memory: ask the C library to keep what PyTorch frees for the next call. Large networks
            in eager PyTorch are faster with it; it holds for the whole process, which stays as
            large as its largest call.
    """

    def __init__(
        self,
        source: Any,
        backend: str = "auto",
        threads: int | None = None,
        *,
        keep_memory: bool = False,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads!r} must be an integer >= 1, or None for all.")
        self.threads = threads or default_threads()
        if keep_memory:
            keep_freed_memory()
        self.choice = ""  # how "auto" decided
        self._runs: dict[tuple[int, bool], Run] = {}
        self._opening = threading.Lock()
        if isinstance(source, str | os.PathLike):
            folder = Path(source)
            self.manifest = read_manifest(folder)
        else:
            from mimonets.inference.torch_runtime import describe

            folder = None
            self.manifest = describe(source)
        if backend == "auto":
            self._backend, self.choice = choose(source, folder, self.manifest, self.threads)
        else:
            self._backend = open_backend(backend, source, folder, self.manifest, self.threads)
        if threads is not None and self.backend in ("torch", "compiled", "pt2"):
            import torch

            torch.set_num_threads(threads)  # PyTorch has one number for the whole process

    @property
    def backend(self) -> str:
        """The name of what runs the network."""
        return self._backend.name

    @property
    def num_streams(self) -> int:
        """How many inputs can share a pass."""
        return self.manifest.num_streams

    @property
    def modes(self) -> tuple[int, ...]:
        """The numbers of active streams, or of operating points, that were exported; ascending."""
        return tuple(mode.active_streams for mode in self.manifest.modes)

    @property
    def operating_points(self) -> list[OperatingPoint]:
        """The exported ways to run the network, slow to fast, as accurate as this engine is."""
        return self.manifest.points_in(self.backend if "int8" in self.backend else "float32")

    @property
    def input_spec(self) -> InputSpec:
        """What one input is, and what the answers mean."""
        return self.manifest.input_spec

    def __repr__(self) -> str:
        return (
            f"Engine({self.manifest.model}, backend={self.backend!r}, modes={self.modes}, "
            f"threads={self.threads})"
        )

    def __call__(self, inputs: Any, active_streams: int | None = None, *, mask: Any = None) -> Any:
        """Answer inputs; tensors if tensors came, a tuple or dict if the network gives one.

        Args:
            inputs: images (b, c, h, w) or other arrays as float32, or token ids (b, t), pairs
                (b, 2, t).
            active_streams: how many inputs share a pass; by default the most that were exported.
                Of a slimmable network, the operating point; by default the first.
            mask: sequences: like the inputs, True = real token.
        """
        mode = self._check_mode(active_streams)
        wrap, inputs = _from_tensor(inputs)
        inputs = self._check(inputs)
        mask = None if mask is None else self._check_mask(_from_tensor(mask)[1], inputs)
        found: list[list[Array]] = []  # of each part of the batch, its outputs
        for part_mode, rows, keep in self._parts(len(inputs), mode):
            run = self._open(part_mode, masked=mask is not None)
            outputs = run(inputs[rows], None if mask is None else mask[rows])
            found.append([output[:keep] for output in outputs])
        joined = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        return named(self.input_spec.outputs or (), list(map(wrap, joined)))

    def warm_up(self, active_streams: int | None = None) -> None:
        """Open the graphs of one mode, or of all, so that the first call need not wait."""
        modes = self.modes if active_streams is None else (self._check_mode(active_streams),)
        for mode in modes:
            self._open(mode, masked=False)
            if self.manifest.takes_mask:
                self._open(mode, masked=True)

    def _parts(self, batch: int, mode: int) -> Iterator[tuple[int, Array | slice, int]]:
        """Cut a batch into (mode, rows, answers to keep): whole groups, then what is left."""
        size = self.manifest.answers_per_group(mode)
        whole = batch // size * size
        if whole:
            yield mode, slice(0, whole), whole
        left = batch - whole
        if left:
            # The smallest exported mode that holds them; where their own number was not exported,
            # copies fill the group, as they do inside the network.
            streams = 2 * left if self.manifest.pairs else left
            mode = next(m for m in self.modes if m >= streams)
            size = self.manifest.answers_per_group(mode)
            yield mode, whole + np.arange(size) % left, left

    def _open(self, mode: int, *, masked: bool) -> Run:
        run = self._runs.get((mode, masked))
        if run is None:
            with self._opening:
                run = self._runs.get((mode, masked))
                if run is None:
                    run = self._runs[mode, masked] = self._backend.open(mode, masked=masked)
        return run

    def _check_mode(self, active_streams: int | None) -> int:
        mode = active_streams
        if mode is None:  # of a slimmable network the widest, as in PyTorch
            mode = self.modes[0] if self.manifest.argument else max(self.modes)
        if isinstance(mode, bool) or mode not in self.modes:
            raise ValueError(
                f"active_streams={active_streams!r} is not among the exported modes: "
                f"choose from {', '.join(map(str, self.modes))}."
            )
        return int(mode)

    def _check(self, inputs: Array) -> Array:
        spec = self.input_spec
        free = 1 if spec.kind == "tokens" else 0  # the length of sequences
        fits = (
            inputs.ndim == len(spec.shape) + 1
            and inputs.shape[1 : inputs.ndim - free] == spec.shape[: len(spec.shape) - free]
            and 1 <= inputs.shape[-1] <= spec.shape[-1]
        )
        if not fits:
            sides = [str(side) for side in spec.shape[: len(spec.shape) - free]]
            names = ", ".join(["batch", *sides, *["tokens"] * free])
            wanted = f"({names})" + (f", at most {spec.shape[-1]} tokens" if free else "")
            raise ValueError(f"This engine takes {wanted}, but got {inputs.shape}.")
        if len(inputs) == 0:
            raise ValueError("An empty batch has no answers: pass at least one input.")
        if spec.kind != "tokens":
            if inputs.dtype not in (np.float32, np.float64):
                raw = ": prepare raw ones with engine.input_spec.prepare(images)"
                raise ValueError(
                    f"This engine takes float32 {spec.kind}s, but got {inputs.dtype}"
                    f"{raw if spec.kind == 'image' else ''}."
                )
            return np.ascontiguousarray(inputs, dtype=np.float32)
        if not np.issubdtype(inputs.dtype, np.integer):
            raise ValueError(f"Token ids are integers, but got {inputs.dtype}.")
        if spec.vocab_size is not None and not (
            inputs.min() >= 0 and inputs.max() < spec.vocab_size
        ):
            raise ValueError(
                f"Token ids lie between {inputs.min()} and {inputs.max()}, but vocab_size="
                f"{spec.vocab_size} allows 0 to {spec.vocab_size - 1}."
            )
        return np.ascontiguousarray(inputs, dtype=np.int64)

    def _check_mask(self, mask: Array, inputs: Array) -> Array:
        if not self.manifest.takes_mask:
            raise ValueError(f"{self.manifest.model} takes no mask: leave it out.")
        if mask.dtype != np.bool_ or mask.shape != inputs.shape:
            raise ValueError(
                f"A mask is boolean and of the shape of the tokens, here {inputs.shape}, "
                f"but got {mask.dtype} of {mask.shape}."
            )
        return np.ascontiguousarray(mask)


def open_backend(
    name: str, source: Any, folder: Path | None, manifest: Manifest, threads: int
) -> Backend:
    """Make one of ``BACKENDS``; raises a ``ValueError`` that says what is missing."""
    if name not in BACKENDS:
        from mimonets._messages import did_you_mean

        raise ValueError(
            f"There is no backend {name!r}{did_you_mean(name, BACKENDS)}: choose auto or one of "
            f"{', '.join(BACKENDS)}."
        )
    if name in ("torch", "compiled"):
        from mimonets.inference.torch_runtime import TorchBackend

        return TorchBackend(name, source, folder, manifest)
    if folder is None:
        raise ValueError(
            f"backend={name!r} runs exported networks: call mimonets.export(model, folder), then "
            f"mimonets.Engine(folder, backend={name!r})."
        )
    if name == "pt2":
        from mimonets.inference.torch_runtime import ProgramBackend

        return ProgramBackend(folder, manifest)
    if name.startswith("onnxruntime"):
        from mimonets.inference.onnx_runtime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(name, folder, manifest, threads)
    from mimonets.inference.open_vino import OpenVinoBackend

    return OpenVinoBackend(name, folder, manifest, threads)


def choose(
    source: Any, folder: Path | None, manifest: Manifest, threads: int
) -> tuple[Backend, str]:
    """Time one pass of the fastest mode in each backend that is there; the winner and the times."""
    names = [
        name
        for name, (formats, package) in CANDIDATES.items()
        if {*formats} & manifest.formats.keys() and find_spec(package) is not None
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
        run = backends[name].open(mode, masked=False)
        seconds[name] = median_seconds(partial(run, example, None))
    best = min(seconds, key=seconds.__getitem__)
    times = ", ".join(f"{name} {1000 * seconds[name]:.3g} ms" for name in names)
    return backends[best], f"{best}: a group of {mode} took {times}"


def median_seconds(call: Callable[[], object], budget: float = 1.0) -> float:
    """Time a call after one to warm up: the median of five, fewer if they take long."""
    call()
    seconds: list[float] = []
    while len(seconds) < 5 and sum(seconds) < budget:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def example_inputs(spec: InputSpec, batch_size: int) -> Array:
    """Make random inputs that fit a description."""
    draw = np.random.default_rng(0)
    shape = (batch_size, *spec.shape)
    if spec.kind == "tokens":
        return draw.integers(spec.vocab_size or 2, size=shape)
    return draw.standard_normal(shape, dtype=np.float32)


def default_threads() -> int:
    """Take what OMP_NUM_THREADS says, else the number of cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted) >= 1:
        return int(wanted)
    return available_cores()


def available_cores(limits: Path = Path("/sys/fs/cgroup")) -> int:
    """Count the cores that this process may use, as its affinity and its container allow."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            quota, period = " ".join((limits / name).read_text() for name in files).split()
            if int(quota) > 0:  # neither max nor -1
                return max(1, min(cores, -(-int(quota) // int(period))))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return cores


def _from_tensor(inputs: Any) -> tuple[Callable[[Array], Any], Array]:
    """Turn a tensor into an array, and say how an answer becomes a tensor again."""
    torch = sys.modules.get("torch")  # without PyTorch there are no tensors
    if torch is None or not isinstance(inputs, torch.Tensor):
        return lambda answer: answer, np.asarray(inputs)
    device = inputs.device
    if inputs.dtype == torch.bfloat16:  # NumPy has no such numbers: refused by its name
        raise ValueError("An engine takes float32 images, not bfloat16: pass images.float().")
    return lambda answer: torch.from_numpy(answer).to(device), inputs.detach().cpu().numpy()
