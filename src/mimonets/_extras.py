"""Packages that not everybody needs: imported on use, with the line that installs them."""

import importlib
import sys
from typing import Any


def need(module: str, package: str | None = None, *, extra: str = "data", what: str = "") -> Any:
    """Import a module of an extra, or say how to install it.

    >>> need("json").dumps([1])
    '[1]'
    """
    if module in ("openvino", "nncf"):  # they report each use to Intel, unless this is missing
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(
            f"{what or 'This data'} needs {package or module}, which is not installed: "
            f"{install_line(extra)}."
        ) from None


def install_line(extra: str) -> str:
    """Say how to install an extra, also where the package is on no index yet.

    >>> install_line("plot")
    "pip install -e '.[plot]' in a clone of mimonets, or pip install 'mimonets[plot]'"
    """
    return f"pip install -e '.[{extra}]' in a clone of mimonets, or pip install 'mimonets[{extra}]'"
