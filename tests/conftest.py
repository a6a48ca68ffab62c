"""Exported folders that several tests use; each is made once."""

import pytest
import torch

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
def exported(small_conv, tmp_path_factory):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("export") / "conv"
    return export(small_conv, folder)
