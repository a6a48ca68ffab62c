"""Exported folders that several tests use; each is made once per test run."""

import gc
import multiprocessing
import os
import sys
from multiprocessing import forkserver

import pytest
import torch
from filelock import FileLock

from mimonets import MIMOConv, MIMOConvConfig
from mimonets.evaluation.throughput import race
from mimonets.inference import export
from small_networks import randomise


def pytest_collection_finish():
    """Spare the garbage collector what was imported, and let it look at the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def processes():
    """Give what starts processes that have everything imported already, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["training.killed", "layers.normalise_apart"])
    with pytest.MonkeyPatch.context() as patch:  # the server does not take over sys.path
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver.ensure_running()
    return context


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


@pytest.fixture
def torch_only(monkeypatch):
    """Let compare() leave exports out, which take seconds, and time one round of seven."""
    place = "mimonets.experiments.compare_measuring"
    monkeypatch.setattr(f"{place}.Measurer._export", lambda *_: None)
    monkeypatch.setattr(f"{place}.race", lambda found, rounds: race(found, rounds=1, warmup=0))
