"""Shared by all tests and docstring examples."""

import gc
import os
import sys
from functools import cache

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch starts its threads

import pytest
import torch
from hypothesis import settings

# The same examples on every run: a red test means a changed program, not another draw.
settings.register_profile("mimonets", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("mimonets")


sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # tests send nothing


@pytest.fixture(autouse=True)
def _repeatable(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported: 0.3 s for every collection in full."""
    gc.freeze()


def pytest_runtest_setup() -> None:
    """Build PyTorch's tables of operators once: every export makes its own, in 0.5 s."""
    module = sys.modules.get("torch.onnx._internal.exporter._registration")
    registry = getattr(module, "ONNXRegistry", None)
    if registry is not None and not hasattr(registry.from_torchlib, "cache_info"):
        registry.from_torchlib = staticmethod(cache(registry.from_torchlib))
    utils = sys.modules.get("torch._export.utils")
    list_operators = getattr(utils, "_materialize_cpp_cia_ops", None)
    if list_operators is not None and not hasattr(list_operators, "cache_info"):
        utils._materialize_cpp_cia_ops = cache(list_operators)  # type: ignore[union-attr]
