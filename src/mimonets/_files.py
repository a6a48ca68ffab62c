"""Write files whole or not at all, and say what a folder is."""

import os
from collections.abc import Callable
from errno import EDQUOT, EFBIG, ENOSPC
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
        full = not isinstance(error, OSError) or error.errno in (ENOSPC, EDQUOT, EFBIG)
        advice = " Make room; training goes on with resume=True (--resume)." if full else ""
        raise OSError(
            f"{path} could not be written ({first_line(error)}); what was there before is "
            f"untouched.{advice}"
        ) from error


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
