"""Keep the memory that PyTorch frees on a CPU, instead of asking the system for it again."""

import ctypes
import sys


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
