"""Write files whole or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

from mimonets._messages import first_line


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the place and move there when complete, so that no half a file is ever seen."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # two processes may write at once
    try:
        part.touch()
        mode = part.stat().st_mode
        write(part)
        part.chmod(mode)  # safetensors makes files that only their owner can read
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    write_safely(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_safely(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all, and say so if there is no room for it."""
    try:
        write_atomically(path, write)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise OSError(
            f"{path} could not be written ({first_line(error)}); what was there before is "
            f"untouched. Make room and go on with resume=True (--resume)."
        ) from error
