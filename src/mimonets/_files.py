"""Write files whole or not at all, and say what a folder is."""

import json
import os
import socket
from collections.abc import Callable, Mapping
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path
from typing import Any

from mimonets._messages import first_line


def write_together(writes: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write several files beside their places, and move them there when all are complete."""
    parts: list[Path] = []
    try:
        for path, write in writes.items():
            _remove_abandoned(path)
            part = path.with_name(f"{_start_of_part(path)}{os.getpid()}.part")
            parts.append(part)
            part.touch()
            mode = part.stat().st_mode
            write(part)
            part.chmod(mode)  # safetensors makes files that only their owner can read
            with open(part, "rb") as file:
                os.fsync(file.fileno())
        for part, path in zip(parts, writes, strict=True):
            os.replace(part, path)
    except BaseException:
        for part in parts:
            part.unlink(missing_ok=True)
        raise


def _start_of_part(path: Path) -> str:
    return f".{path.name}.{socket.gethostname()}."  # several processes may write at once


def _remove_abandoned(path: Path) -> None:
    """Remove what processes of this machine wrote for this file when they were killed."""
    start = _start_of_part(path)
    for name in os.listdir(path.parent):
        process = name.removeprefix(start).removesuffix(".part")
        if name == f"{start}{process}.part" and process.isdigit() and not _is_alive(int(process)):
            path.with_name(name).unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user, or none that we know of
        return True
    return True


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all."""
    write_safely({path: lambda part: part.write_text(text, encoding="utf-8")})


def write_json(path: Path, data: Any, *, indent: int = 2) -> None:
    """Write plain data whole or not at all."""
    write_text(path, json.dumps(data, indent=indent) + "\n")


def write_safely(writes: Mapping[Path, Callable[[Path], object]]) -> None:
    """Write files whole or not at all, and say so if there is no room for them."""
    try:
        write_together(writes)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        raise not_written(next(iter(writes)), error) from error


def not_written(path: Path, error: Exception) -> OSError:
    """Say that a file could not be written, and what to do about a full disk."""
    reason, advice = "the disk is probably full", ""
    if isinstance(error, OSError):
        reason = first_line(error)
    if not isinstance(error, OSError) or error.errno in (ENOSPC, EDQUOT, EFBIG):
        advice = " Make room and try again; training resumes with resume=True (--resume)."
    return OSError(
        f"{path} could not be written ({reason}); what was there before is untouched.{advice}"
    )


def what_it_is(folder: Path, missing: str) -> str:
    """Say of a folder without the file that was looked for what it is instead, and what to name."""
    if not folder.exists():
        return f"does not exist: name a folder with a {missing}."
    if (folder / "recipe.yaml").is_file():
        return f"is the folder of a run, and holds no {missing}: its model is {folder / 'model'}."
    if (folder.parent / "recipe.yaml").is_file() and missing == "recipe.yaml":
        return f"holds no {missing}: it is a model of the run {folder.parent}, name that."
    if (folder / "manifest.json").is_file():
        return f"holds no {missing}: it is an export, for mimonets.Engine and `mimonets serve`."
    inside = sorted(path.parent.name for path in folder.glob(f"*/{missing}"))
    names = f": {', '.join(inside[:3])} in it do" if inside else ": is it a folder of mimonets?"
    return f"holds no {missing}{names}."
