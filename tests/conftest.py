"""Exported folders that several tests use; each is made once per test run."""

import os

import pytest
import torch
from filelock import FileLock

from mimonets import MIMOConv, MIMOConvConfig
from mimonets.inference import export
from small_networks import randomise


@pytest.fixture(scope="session")
def small_conv():
    torch.manual_seed(0)
    config = MIMOConvConfig(
        depth=10,
        width=1,
        initial_width=1,
        num_streams=3,
        in_channels=1,
        image_size=8,
        num_classes=5,
    )
    return randomise(MIMOConv(config))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Give a function that finds a folder by its name; the first worker to ask makes it."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def find(name, make):
        with FileLock(str(place / f"{name}.lock")):
            if not (place / name).exists():
                make(place / name)
        return place / name

    return find


@pytest.fixture(scope="session")
def exported(small_conv, made_once):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    return made_once("exported", lambda folder: export(small_conv, folder))
