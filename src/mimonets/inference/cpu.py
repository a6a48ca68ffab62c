"""What this CPU can do, as far as it decides how fast and how exact an engine is."""

import platform
from typing import Any

_FLAGS = {
    "avx2": {"avx2"},
    "avx512": {"avx512f"},
    "vnni": {"avx512_vnni", "avx_vnni", "asimddp"},  # int8 products that do not saturate
    "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
    "amx": {"amx_tile"},
}


def cpu_features(cpuinfo: str | None = None) -> dict[str, Any]:
    r"""Name the CPU and say which instructions it has; where nothing is known, it has none.

    Args:
        cpuinfo: the text of ``/proc/cpuinfo``, which is read by default.

    >>> cpu_features("model name : Some CPU\nflags : fpu avx2 avx512_vnni")
    {'name': 'Some CPU', 'avx2': True, 'avx512': False, 'vnni': True, 'bf16': False, 'amx': False}
    """
    if cpuinfo is None:
        try:
            with open("/proc/cpuinfo", encoding="utf-8") as file:
                cpuinfo = file.read()
        except OSError:
            cpuinfo = ""
    lines = [line.partition(":") for line in cpuinfo.splitlines()]
    entries = {key.strip(): value.strip() for key, _, value in reversed(lines)}
    flags = {*entries.get("flags", "").split(), *entries.get("Features", "").split()}
    name = entries.get("model name") or platform.processor() or platform.machine()
    return {"name": name, **{what: bool(flags & marks) for what, marks in _FLAGS.items()}}
