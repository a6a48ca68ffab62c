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


@pytest.mark.parametrize(
    ("container", "free"),
    [({}, 2048), ({"memory.max": "max\n"}, 2048), ({"memory.max": "1500\n"}, 500)],
)
def test_free_memory_is_what_machine_and_container_leave(tmp_path, container, free):
    limits = tmp_path / "sys/fs/cgroup"
    limits.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:  2 kB\n")
    for name, text in ({"memory.current": "1000\n"} | container).items():
        (limits / name).write_text(text)
    assert _memory.free_memory(tmp_path) == free


def test_free_memory_is_unknown_where_the_system_does_not_say(tmp_path):
    assert _memory.free_memory(tmp_path) is None
