"""Write every mode of a network into a folder that any engine runs.

Nothing is moved into place before each mode was run by the runtime it is for, and agreed with
PyTorch: a folder that exists is a folder that answers as the network does.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mimonets._extras import install_line
from mimonets._inputs import InputSpec
from mimonets._messages import did_you_mean
from mimonets.inference.exporter import Batch, Exporter
from mimonets.inference.manifest import Manifest, Mode, is_only_an_export
from mimonets.inference.quantise import quantise
from mimonets.inference.torch_runtime import check_finite, describe
from mimonets.models.base import eval_mode

FORMATS = ("onnx", "openvino", "pt2")
INT8 = ("onnxruntime", "openvino")
TOLERANCE = 1e-4  # of the largest answer; float32 graphs agree to about 1e-6


def export(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = ("onnx",),
    int8: bool | Sequence[str] | None = None,
    calibration: Iterable[Any] | None = None,
    evaluation: Iterable[Batch] | None = None,
    validation: Iterable[Batch] | None = None,
    accuracy: Mapping[int, float] | None = None,
    max_loss: float = 0.3,
    modes: Sequence[int] | None = None,
    inputs: Any = None,
    input_spec: InputSpec | None = None,
    tolerance: float = TOLERANCE,
    measure: bool = True,
    tell: Callable[[str], object] = lambda line: None,
) -> Path:
    """Write all modes of ``model`` into ``folder``, with one file of weights for all of them.

    Args:
        model: one of ours, or any ``torch.nn.Module`` with ``num_streams``, ``example_inputs`` and
            ``forward(inputs, active_streams=...)``; sequences also take ``mask=``. Or the folder of
            a saved model, or the name of one that ships with the package.
        folder: made if it is not there; an earlier export in it is replaced.
        formats: ``"onnx"`` (what ONNX Runtime and OpenVINO run), ``"openvino"``, ``"pt2"``.
        int8: also write int8 graphs; True for all runtimes that are installed, or their names.
        calibration: int8: batches of inputs, or of (inputs, labels), from the training data.
        evaluation: batches of (inputs, labels), or (tokens, mask, labels): the accuracy of every
            mode is measured on them and written into the manifest. int8 needs it.
        validation: other batches of (inputs, labels), neither trained nor evaluated on: which
            confidence of a fast answer makes a slow one worth it is calibrated on them.
        accuracy: active streams -> fraction right, where it is known from elsewhere.
        max_loss: int8: the loss of accuracy, in points, above which nothing is written.
        modes: numbers of active streams; by default all.
        inputs: real inputs to compare with PyTorch on; random ones by default.
        input_spec: what an input is, if the model does not know.
        tolerance: largest difference from PyTorch, relative to the largest answer.
        measure: also time every mode, for the manifest.
        tell: called with a line for each step, for a progress display.

    Returns:
        The folder. Raises a ``ValueError`` of one sentence, and writes nothing, if the network
        cannot be exported, is not finite, or an exported mode answers differently.
    """
    folder = Path(folder).resolve()  # "." has a parent too
    _check_arguments(folder, formats, max_loss)
    if isinstance(model, str | os.PathLike):
        from mimonets.checkpoints import load
        from mimonets.checkpoints.shipped import find_folder

        model = load(find_folder(model))
    manifest = describe(model, input_spec)
    manifest = replace(manifest, modes=_chosen_modes(manifest, modes))
    check_finite(model)
    runtimes = _int8_runtimes(int8, calibration, evaluation)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with eval_mode(model, inference=False):
            work = Exporter(model, part, manifest, inputs, tolerance, tell)
            work.write(formats, onnx=bool(runtimes) or {"onnx", "openvino"} & {*formats} != set())
            if accuracy is not None:
                work.enter_accuracy(accuracy)
            if evaluation is not None:
                evaluation = list(evaluation)
                work.measure_accuracy(evaluation)
            if validation is not None:
                work.calibrate_cascade(list(validation))
            calibration = list(calibration or ())
            for runtime in runtimes:
                quantise(work, runtime, calibration, list(evaluation or ()), max_loss)
            if measure:
                work.measure_times()
            work.finish(formats)
        _move_into_place(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return folder


def _check_arguments(folder: Path, formats: Sequence[str], max_loss: float) -> None:
    for name in formats:
        if name not in FORMATS:
            raise ValueError(
                f"There is no format {name!r}{did_you_mean(name, FORMATS)}: "
                f"choose from {', '.join(FORMATS)}."
            )
    if not formats:
        raise ValueError(f"formats is empty: choose from {', '.join(FORMATS)}.")
    if not max_loss >= 0:
        raise ValueError(f"max_loss={max_loss!r} must be a number of points >= 0.")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: an export is a folder, choose another name.")
    _check_folder(folder)
    needed = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}
    missing = {
        package
        for name in formats
        for package in needed.get(name, (*needed["onnx"], "openvino"))
        if find_spec(package) is None
    }
    if missing:
        raise ValueError(f"Exporting needs {', '.join(sorted(missing))}: {install_line('export')}.")


def _check_folder(folder: Path) -> None:
    """Refuse a folder that would lose files which no export wrote."""
    if folder.is_dir() and any(folder.iterdir()) and not is_only_an_export(folder):
        raise ValueError(
            f"{folder} holds other things than an earlier export: choose an empty or new folder."
        )


def _chosen_modes(manifest: Manifest, modes: Sequence[int] | None) -> tuple[Mode, ...]:
    known = [mode.active_streams for mode in manifest.modes]
    for mode in modes or ():
        if mode not in known:
            raise ValueError(
                f"{manifest.model} has no mode with {mode!r} active: choose from "
                f"{', '.join(map(str, known))}."
            )
    return tuple(mode for mode in manifest.modes if not modes or mode.active_streams in modes)


def _int8_runtimes(
    int8: bool | Sequence[str] | None, calibration: object, evaluation: object
) -> list[str]:
    if not int8:
        return []
    names = INT8 if int8 is True else int8
    for name in names:
        if name not in INT8:
            raise ValueError(f"int8={name!r} is not known: choose from {', '.join(INT8)}.")
    packages = {"onnxruntime": ("onnxruntime",), "openvino": ("openvino", "nncf")}
    there = [n for n in names if all(find_spec(package) for package in packages[n])]
    missing = [name for name in names if name not in there]
    if missing and (int8 is not True or not there):
        raise ValueError(
            f"int8 for {', '.join(missing)} needs more packages: {install_line('export')}."
        )
    if calibration is None or evaluation is None:
        raise ValueError(
            "int8 needs calibration=... (batches of training inputs) and evaluation=... (batches "
            "of inputs and labels): without them nobody knows what it costs."
        )
    return there


def _move_into_place(part: Path, folder: Path) -> None:
    """Put the finished folder in place of an earlier one."""
    part.chmod(0o755)  # temporary folders are their owner's alone
    if not folder.exists():
        part.rename(folder)
        return
    _check_folder(folder)  # again: exporting took a while
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
    folder.rename(old / "export")
    part.rename(folder)
    shutil.rmtree(old)
