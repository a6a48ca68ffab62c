"""Write every mode of a network into a folder that any engine runs.

Nothing is moved into place before each mode was run by the runtime it is for, and agreed with
PyTorch: a folder that exists is a folder that answers as the network does.
"""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

from mimonets._extras import install_line
from mimonets._messages import did_you_mean
from mimonets.inference.export_folder import Batch, ExportFolder, ExportOptions
from mimonets.inference.manifest import Manifest, PointRecord, is_only_an_export
from mimonets.inference.quantise import INT8_WRITERS
from mimonets.inference.torch_runtime import check_finite, describe
from mimonets.models.base import eval_mode

FORMATS = ("onnx", "openvino", "pt2")
Export = TypeVar("Export", bound=Callable[..., Path])


def _take_old_keywords(function: Export) -> Export:
    """Let ``export`` take the keywords of version 0.2.0, with a warning, for one version."""

    @wraps(function)
    def export(*arguments: Any, **keywords: Any) -> Path:
        names = {field.name for field in fields(ExportOptions)}
        old = {name: keywords.pop(name) for name in names & keywords.keys()}
        moved = [f"{name}=... is now options=ExportOptions({name}=...)" for name in sorted(old)]
        int8 = keywords.get("int8")
        named = isinstance(int8, Sequence) and bool(int8) and isinstance(int8[0], str)
        if "calibration" in keywords or isinstance(int8, bool) or named:
            calibration = keywords.pop("calibration", None)
            keywords["int8"] = None if not int8 else () if calibration is None else calibration
            if named:
                old["int8_runtimes"] = int8
            moved.append("int8=True with calibration=batches is now int8=batches")
        if moved:
            warnings.warn("; ".join(moved) + ".", DeprecationWarning, stacklevel=2)
            keywords["options"] = replace(keywords.get("options") or ExportOptions(), **old)
        return function(*arguments, **keywords)

    return cast(Export, export)


@_take_old_keywords
def export(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    formats: Sequence[str] = ("onnx",),
    modes: Sequence[int] | None = None,
    int8: Iterable[Any] | None = None,
    evaluation: Iterable[Batch] | None = None,
    measure: bool = True,
    options: ExportOptions | None = None,
) -> Path:
    """Write all modes of ``model`` into ``folder``, with one file of weights for all of them.

    Args:
        model: one of ours, or any ``torch.nn.Module`` with ``num_streams``, ``example_inputs`` and
            ``forward(inputs, active_streams=...)``; sequences also take ``mask=``. Or the folder of
            a saved model, or the name of one that ships with the package.
        folder: made if it is not there; an earlier export in it is replaced.
        formats: ``"onnx"`` (what ONNX Runtime and OpenVINO run), ``"openvino"``, ``"pt2"``. With
            ``"openvino"`` alone, networks with keys get a form that OpenVINO runs faster.
        modes: numbers of active streams; by default all.
        int8: also write int8 graphs, calibrated on these batches of inputs, or of (inputs, labels),
            from the training data.
        evaluation: batches of (inputs, labels), or (tokens, mask, labels): the accuracy of every
            mode is measured on them and written into the manifest. int8 needs it. Of networks
            whose answers are values, int8 is compared with float32 on them.
        measure: also time every mode, for the manifest.
        options: everything else.

    Returns:
        The folder. Raises a ``ValueError`` of one sentence, and writes nothing, if the network
        cannot be exported, is not finite, or an exported mode answers differently.
    """
    options = options or ExportOptions()
    folder = Path(folder).resolve()  # "." has a parent too
    _check_arguments(folder, formats, options.max_loss)
    if isinstance(model, str | os.PathLike):
        from mimonets.checkpoints import load
        from mimonets.checkpoints.shipped import find_folder

        model = load(find_folder(model))
    manifest = describe(model, options.input_spec)
    manifest = replace(manifest, modes=_chosen_modes(manifest, modes))
    check_finite(model)
    calibration = [int8] if hasattr(int8, "shape") else list(int8 or ())  # one batch, or several
    evaluation = None if evaluation is None else list(evaluation)
    runtimes = []
    if int8 is not None:
        if not calibration or evaluation is None:
            raise ValueError(
                "int8=... takes batches of training inputs to calibrate on, and evaluation=... "
                "batches of inputs and labels: without them nobody knows what it costs."
            )
        runtimes = _int8_runtimes(options.int8_runtimes)
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        with eval_mode(model, inference=False):
            work = ExportFolder(model, part, manifest, options)
            work.write(
                formats,
                onnx=bool(runtimes) or {"onnx", "openvino"} & {*formats} != set(),
                for_openvino={*formats, *runtimes} == {"openvino"},
            )
            work.enter_accuracies(evaluation)
            if options.validation is not None:
                work.calibrate_cascade(list(options.validation))
            for runtime in runtimes:
                work.write_int8(runtime, calibration, evaluation or ())
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


def _chosen_modes(manifest: Manifest, modes: Sequence[int] | None) -> tuple[PointRecord, ...]:
    known = [mode.active_streams for mode in manifest.modes]
    for mode in modes or ():
        if mode not in known:
            raise ValueError(
                f"{manifest.model} has no mode with {mode!r} active: choose from "
                f"{', '.join(map(str, known))}."
            )
    return tuple(mode for mode in manifest.modes if not modes or mode.active_streams in modes)


def _int8_runtimes(wanted: Sequence[str] | None) -> list[str]:
    """Find the runtimes to write int8 graphs for: those that are wanted, or installed."""
    for name in wanted or ():
        if name not in INT8_WRITERS:
            raise ValueError(
                f"int8_runtimes={name!r} is not known: choose from {', '.join(INT8_WRITERS)}."
            )
    packages = {"onnxruntime": ("onnxruntime",), "openvino": ("openvino", "nncf")}
    names = wanted or tuple(INT8_WRITERS)
    there = [name for name in names if all(find_spec(package) for package in packages[name])]
    missing = [name for name in names if name not in there]
    if missing and (wanted or not there):
        raise ValueError(
            f"int8 for {', '.join(missing)} needs more packages: {install_line('export')}."
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
