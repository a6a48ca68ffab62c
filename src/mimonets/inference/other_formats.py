"""Formats beside ONNX: OpenVINO's own, and PyTorch's exported programs."""

from pathlib import Path

import torch
from torch.export import ExportedProgram

from mimonets.inference.open_vino import import_openvino


def write_openvino(folder: Path, graphs: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Convert ONNX graphs into OpenVINO's format, weights and all; returns their names."""
    openvino = import_openvino()
    core = openvino.Core()
    (folder / "openvino").mkdir()
    found: dict[str, dict[str, str]] = {}
    for mode, entries in graphs.items():
        for which, name in entries.items():
            path = f"openvino/{Path(name).stem}.xml"
            model = core.read_model(str(folder / name))
            openvino.save_model(model, str(folder / path), compress_to_fp16=False)
            found.setdefault(mode, {})[which] = path
    return found


def write_pt2(program: ExportedProgram, path: Path) -> Path:
    """Write PyTorch's own format, one file per mode."""
    torch.export.save(program, path)
    return path
