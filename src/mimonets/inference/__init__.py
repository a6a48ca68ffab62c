"""Run a network anywhere: export every mode once, then call one engine, with or without PyTorch.

:func:`export` writes all modes of a network with one file of weights; :class:`Engine` answers with
PyTorch, ONNX Runtime or OpenVINO behind one call. Only exporting and the PyTorch engines import
PyTorch: an exported folder is served without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mimonets.inference.cpu import cpu_features
    from mimonets.inference.engine import BACKENDS, Engine
    from mimonets.inference.export_folder import ExportOptions
    from mimonets.inference.exporting import export
    from mimonets.inference.manifest import Manifest, read_manifest

_WHERE = {
    "BACKENDS": "engine",
    "Engine": "engine",
    "ExportOptions": "export_folder",
    "Manifest": "manifest",
    "cpu_features": "cpu",
    "export": "exporting",
    "read_manifest": "manifest",
}

__all__ = [
    "BACKENDS",
    "Engine",
    "ExportOptions",
    "Manifest",
    "cpu_features",
    "export",
    "read_manifest",
]


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module 'mimonets.inference' has no attribute {name!r}")
    return getattr(import_module(f"mimonets.inference.{_WHERE[name]}"), name)
