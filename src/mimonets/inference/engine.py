"""One call for every runtime: inputs of any number in, as many answers out, in any mode.

Imports numpy only. A backend runs whole groups in one mode; all else is done here, once.
"""

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mimonets._answers import named, parts_of
from mimonets._inputs import Array, InputSpec
from mimonets._memory import keep_freed_memory
from mimonets._messages import did_you_mean, first_line
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


PROBED = 32  # numbers of an answer that are kept to compare with
PROBED_TOKENS = 128
# How far answers may be from those at export, as a fraction of the largest: engines and CPUs round
# differently, and another network or damaged weights differ by about 1.
TOLERANCE, TOLERANCE_BF16, TOLERANCE_INT8 = 0.01, 0.1, 0.5


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
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``. By default a network in PyTorch stays where
            it is, and an export runs on a CUDA device where one is faster; ``engine.device`` tells.
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
        device: str = "auto",
        keep_memory: bool = False,
    ) -> None:
        check_device(device)
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
        self._folder = folder
        with _one_sentence(folder, backend):
            parts = (source, folder, self.manifest, self.threads, device)
            if backend == "auto":
                self._backend, self.choice = choose(*parts)
            else:
                self._backend = open_backend(backend, *parts)
        if threads is not None and self.backend in ("torch", "compiled", "pt2"):
            import torch

            torch.set_num_threads(threads)  # PyTorch has one number for the whole process

    @property
    def backend(self) -> str:
        """The name of what runs the network."""
        return self._backend.name

    @property
    def device(self) -> str:
        """Where it runs: cpu, cuda or cuda:1."""
        return str(getattr(self._backend, "device", "cpu"))

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
            f"threads={self.threads}{'' if self.device == 'cpu' else f', device={self.device!r}'})"
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
        with _one_sentence(self._folder, self.backend):
            for part_mode, rows, keep in self._parts(len(inputs), mode):
                run = self._open(part_mode, masked=mask is not None)
                outputs = run(inputs[rows], None if mask is None else mask[rows])
                found.append([output[:keep] for output in outputs])
        joined = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        return named(self.input_spec.outputs or (), list(map(wrap, joined)))

    def warm_up(self, active_streams: int | None = None) -> None:
        """Open the graphs of one mode, or of all, so that the first call need not wait."""
        modes = self.modes if active_streams is None else (self._check_mode(active_streams),)
        with _one_sentence(self._folder, self.backend):
            for mode in modes:
                self._open(mode, masked=False)
                if self.manifest.takes_mask:
                    self._open(mode, masked=True)

    def probe(self) -> dict[str, list[float]]:
        """Answer one group of fixed inputs in every mode; gives the first numbers of each answer.

        An export keeps them in its manifest, for :meth:`check`. Sequences are masked as well.
        """
        found = {}
        for mode in self.modes:
            inputs = probe_inputs(self.manifest, self.manifest.answers_per_group(mode))
            found[str(mode)] = self(inputs, mode)
            if self.manifest.takes_mask and inputs.shape[-1] > 1:
                mask = np.ones(inputs.shape, dtype=np.bool_)
                mask[..., -1] = False
                found[f"{mode} masked"] = self(inputs, mode, mask=mask)
        return {
            name: [float(n) for part in parts_of(answers) for n in part.ravel()[:PROBED]]
            for name, answers in found.items()
        }

    def check(self) -> None:
        """Refuse a network whose answers are not finite, or not those that it was exported with."""
        graphs = getattr(self._backend, "graphs", None)
        known = (graphs,) if graphs else self.manifest.formats.values()
        wanted = next((one.checks for one in known if one.checks), {})
        allowed = TOLERANCE_INT8 if "int8" in self.backend else TOLERANCE
        allowed = TOLERANCE_BF16 if "bf16" in self.backend else allowed
        for name, found in self.probe().items():
            expected = np.array(wanted.get(name, found))
            largest = np.abs(expected).max(initial=0.0)
            fits = np.isfinite(found).all() and len(found) == len(expected)
            if not fits or np.abs(found - expected).max() > allowed * largest:
                how = "not as when it was exported" if np.isfinite(found).all() else "not finite"
                raise ValueError(
                    f"{self._folder or self.manifest.model} with {name} active gives answers that "
                    f"are {how}, in {self.backend}: its weights or graphs are damaged, export the "
                    f"model again."
                )

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


@contextmanager
def _one_sentence(folder: Path | None, backend: str) -> Iterator[None]:
    """Turn whatever a runtime raises about an exported graph into a ValueError of one sentence.

    Errors of a network in PyTorch are left as they are: they come from the user's own code.
    """
    try:
        yield
    except (ValueError, OSError, MemoryError):
        raise
    except Exception as error:
        if folder is None:
            raise
        raise ValueError(
            f"{folder} cannot be run by backend={backend!r} ({first_line(error)}): it is damaged, "
            f"or was written for another version; export the model again."
        ) from error


def open_backend(
    name: str,
    source: Any,
    folder: Path | None,
    manifest: Manifest,
    threads: int,
    device: str = "auto",
) -> Backend:
    """Make one of ``BACKENDS``; raises a ``ValueError`` that says what is missing.

    With ``device="auto"`` it runs on a CUDA device if it can and there is one.
    """
    if name not in BACKENDS:
        raise ValueError(
            f"There is no backend {name!r}{did_you_mean(name, BACKENDS)}: choose auto or one of "
            f"{', '.join(BACKENDS)}."
        )
    if device == "auto" and folder is not None:
        device = "cuda" if name in cuda_backends(manifest) else "cpu"
    if name in ("torch", "compiled"):
        from mimonets.inference.torch_runtime import TorchBackend

        return TorchBackend(name, source, folder, manifest, device)
    if folder is None:
        raise ValueError(
            f"backend={name!r} runs exported networks: call mimonets.export(model, folder), then "
            f"mimonets.Engine(folder, backend={name!r})."
        )
    if device != "cpu" and name != "onnxruntime":
        raise ValueError(
            f"backend={name!r} runs on a CPU only: choose torch, compiled or onnxruntime for "
            f"device={device!r}, or device='cpu'."
        )
    if name == "pt2":
        from mimonets.inference.torch_runtime import ProgramBackend

        return ProgramBackend(folder, manifest)
    if name.startswith("onnxruntime"):
        from mimonets.inference.onnx_runtime import OnnxRuntimeBackend

        return OnnxRuntimeBackend(name, folder, manifest, threads, device)
    from mimonets.inference.open_vino import OpenVinoBackend

    return OpenVinoBackend(name, folder, manifest, threads)


def check_device(device: str) -> None:
    """Refuse what names no device that an engine knows."""
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", str(device)):
        raise ValueError(f"device={device!r} is not known: choose auto, cpu, cuda or cuda:1.")


def cuda_backends(manifest: Manifest) -> list[str]:
    """List the backends that can run an export on a CUDA device of this machine."""
    found = []
    if "onnx" in manifest.formats and find_spec("onnxruntime") is not None:
        import onnxruntime

        # The provider can be compiled in without a GPU being there.
        if "CUDAExecutionProvider" in onnxruntime.get_available_providers() and has_gpu():
            found.append("onnxruntime")
    if "torch" in manifest.formats and has_gpu() and find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            found += ["torch", "compiled"]
    return found


def has_gpu() -> bool:
    """Tell whether this machine has a GPU of NVIDIA's, without importing PyTorch."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def choose(
    source: Any, folder: Path | None, manifest: Manifest, threads: int, device: str = "auto"
) -> tuple[Backend, str]:
    """Time one pass of the fastest mode in each backend that is there; the winner and the times.

    With ``device="auto"`` backends on a CUDA device, where there is one, race with those on the
    CPU.
    """
    on_gpu = [one for one in cuda_backends(manifest) if one != "compiled"] if folder else []
    places = []
    if device != "cpu":
        places += [(name, "cuda" if device == "auto" else device) for name in on_gpu]
    if device in ("auto", "cpu"):
        places += [
            (name, "cpu")
            for name, (formats, package) in CANDIDATES.items()
            if {*formats} & manifest.formats.keys() and find_spec(package) is not None
        ]
    if folder is None or not places:
        backend = open_backend("torch", source, folder, manifest, threads, device)
        return backend, "torch: nothing else is there to choose from"
    seconds: dict[str, float] = {}
    backends = {}
    mode = manifest.modes[-1].active_streams
    example = example_inputs(manifest.input_spec, manifest.answers_per_group(mode))
    for name, place in places:
        title = name if place == "cpu" else f"{name} on {place}"
        backends[title] = open_backend(name, source, folder, manifest, threads, place)
        run = backends[title].open(mode, masked=False)
        seconds[title] = median_seconds(partial(run, example, None))
    best = min(seconds, key=seconds.__getitem__)
    times = ", ".join(f"{title} {1000 * seconds[title]:.3g} ms" for title in seconds)
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


def probe_inputs(manifest: Manifest, count: int) -> Array:
    """Make inputs that are the same everywhere, whatever the version of NumPy."""
    spec = manifest.input_spec
    *sides, last = spec.shape
    if spec.kind == "tokens" and manifest.takes_mask:
        last = min(last, PROBED_TOKENS)
    shape = (count, *sides, last)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    if spec.kind == "tokens":
        return numbers % (spec.vocab_size or 2)
    return np.sin(numbers).astype(np.float32)


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
