import ctypes
import sys

import pytest

from mimonets import _memory


def test_freed_memory_is_kept_where_glibc_is():
    glibc = sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt")
    assert _memory.keep_freed_memory() == glibc


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(platform, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    assert _memory.keep_freed_memory() is False
