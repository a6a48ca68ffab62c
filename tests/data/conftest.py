"""Small files in the published formats, made by the tests, and real data where it is at hand."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

BESIDE = Path(__file__).resolve().parents[2].parent / "shared" / "data"
REAL_DATA = Path(os.environ.get("MIMONETS_TEST_DATA", BESIDE))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MIMONETS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def real():
    """Give the path of a piece of real data, or skip the test."""

    def path(name):
        if not (REAL_DATA / name).exists():
            pytest.skip(f"no {name} beside the checkout")
        return REAL_DATA / name

    return path


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def write_tar():
    """Write files into a tar archive, compressed as its name says."""

    def write(path, files):
        with tarfile.open(path, f"w:{path.suffix[1:]}") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return path

    return write
