"""Shared by all tests and docstring examples."""

import os

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch starts its threads

import torch


@pytest.fixture(autouse=True)
def _repeatable(doctest_namespace: dict[str, object]) -> None:
    torch.manual_seed(0)
    doctest_namespace["torch"] = torch
