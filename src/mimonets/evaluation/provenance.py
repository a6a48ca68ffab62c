"""Say where a number was measured: a figure without its machine is half a figure."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

import mimonets
from mimonets.inference import cpu_features


def environment() -> dict[str, Any]:
    """Describe the command, the code and the machine of this process as plain data."""
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "mimonets": mimonets.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": str(torch.__version__).partition("+")[0],
        "cpu": cpu_features()["name"],
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


@cache
def _commit() -> str | None:
    """Find the commit of the source tree this package is imported from, if it is one.

    It is looked up once: a process runs the code that it started with.
    """
    here = Path(mimonets.__file__).parent  # changes anywhere in the package count

    def git(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(here), *words]  # only reads
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        # An installed package may lie in somebody else's repository, ignored by it.
        git("ls-files", "--error-unmatch", "__init__.py")
        changes = "+changes" if git("status", "--porcelain", "--", ".") else ""
        return git("rev-parse", "--short=12", "HEAD") + changes
    except (OSError, subprocess.CalledProcessError):
        return None
