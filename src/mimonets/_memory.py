"""Memory: how much there is, and whether what PyTorch frees on a CPU is kept for the next step."""

import ctypes
import sys
from pathlib import Path


def free_memory(system: Path = Path("/")) -> int | None:
    """Count the bytes that this process may still take, as machine and container allow.

    None where the system does not say, such as on Windows and macOS.
    """
    found = []
    try:
        lines = (system / "proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        limits = system / "sys/fs/cgroup"
        used = int((limits / "memory.current").read_text())
        found.append(max(0, int((limits / "memory.max").read_text()) - used))
    except (OSError, ValueError):  # no container, or one without a limit, which says "max"
        pass
    return min(found, default=None)


def keep_freed_memory() -> bool:
    """Ask glibc to keep what is freed for the next step; returns whether it agreed.

    By default it hands large blocks back to the system at once, and every step pays to have them
    mapped and zeroed again: on a CPU that can be more than half of a step's time. The process
    then stays as large as its largest step. ``docs/speed.md`` has the ratio.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return False
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # as in malloc.h
    wishes = ((mmap_threshold, 2**30), (trim_threshold, 2**31 - 1), (top_pad, 2**26))
    return all(mallopt(setting, value) == 1 for setting, value in wishes)
