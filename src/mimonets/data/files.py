"""Find original files where they are, fetch those that are missing, and cache what is derived.

A file is looked for in the given folder as it is, and as torchvision would have left it. What is
fetched or written appears under its name only when it is complete: an interrupted run leaves
nothing half-written, and the next one fetches only what is missing.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from mimonets._extras import need
from mimonets._files import write_together
from mimonets._show import Advance, progress
from mimonets.data.config import DataConfig
from mimonets.data.unpack import Arrays, load_arrays


@dataclass(frozen=True)
class Remote:
    """A published file: where it is and what it must hash to."""

    url: str
    md5: str

    @property
    def filename(self) -> str:
        """The last part of the address."""
        return self.url.rpartition("/")[2]


def cache_dir() -> Path:
    """Where derived and fetched data goes: ``$MIMONETS_CACHE``, or the user's cache folder."""
    if chosen := os.environ.get("MIMONETS_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mimonets"


def data_dir(config: DataConfig) -> Path:
    """Say which folder to look for original files in."""
    if config.dir is None:
        return cache_dir()
    folder = Path(config.dir).expanduser()
    if not folder.is_dir():
        found = "is a file" if folder.exists() else "does not exist"
        raise ValueError(
            f"data dir {folder} {found}: give the folder that holds the {config.name} files, make "
            f"it to have them fetched there, or leave --data-dir out to keep them in {cache_dir()}."
        )
    return folder


def find(folder: Path, names: Iterable[str], *subfolders: str) -> Path | None:
    """Find what is there under the first of several names, in the folder or in its subfolders."""
    places = [folder, *(folder / name for name in subfolders)]
    return next((p / name for name in names for p in places if (p / name).exists()), None)


def find_or_fetch(
    config: DataConfig, names: Sequence[str], remote: Remote, *subfolders: str
) -> Path:
    """Find a file under one of its names, or fetch it into the first of the subfolders."""
    folder = data_dir(config)
    path = find(folder, names, *subfolders)
    if path is not None:
        return path
    if not config.download:
        raise ValueError(
            f"{config.name}: no {names[0]} in {folder}, and download is off: turn it on, or get "
            f"{remote.url} and put it there."
        )
    return fetch(remote, folder / subfolders[0])


def fetch(remote: Remote, folder: Path) -> Path:
    """Download one file and check it; on any failure nothing is left, no empty folder either."""
    pooch = need("pooch")
    pooch.get_logger().setLevel("WARNING")
    bar = _DownloadBar(remote.filename)
    with closing(bar), _made_for(folder):
        try:
            path = pooch.retrieve(
                remote.url,
                known_hash=f"md5:{remote.md5}",
                fname=remote.filename,
                path=folder,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
            )
        except ValueError as error:  # pooch's word for a wrong hash
            raise ValueError(
                f"{remote.url} arrived damaged (its MD5 is not {remote.md5}) and was not kept: "
                f"try again, or put a good {remote.filename} into {folder}."
            ) from error
        except OSError as error:  # those of requests are OSErrors too
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ValueError(
                f"{remote.filename} is not in {folder} and {remote.url} cannot be fetched "
                f"({reason}): check the network and the space on the disk, or put the file there "
                f"yourself."
            ) from error
    return Path(path)


@contextmanager
def _made_for(folder: Path) -> Iterator[None]:
    """Make a folder and its parents; if the block fails, those of them that are empty go again."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    make_folder(folder)
    try:
        yield
    except BaseException:
        for place in new:
            with suppress(OSError):  # not empty: somebody else uses it
                place.rmdir()
        raise


class _DownloadBar:
    """The bar that pooch drives: it sets ``total`` and calls update, reset and close."""

    def __init__(self, title: str) -> None:
        self.title, self.total = title, 0
        self._advance: Advance | None = None
        self._open = ExitStack()

    def update(self, count: int) -> None:
        if self._advance is None:
            self._advance = self._open.enter_context(
                progress(self.title, self.total, in_bytes=True)
            )
        self._advance(count)

    def reset(self) -> None:
        """Do nothing: pooch calls it before it fills the bar at the end."""

    def close(self) -> None:
        self._open.close()


def make_folder(folder: Path) -> None:
    """Make a folder for data, or say why that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot make {folder} ({error.strerror}): choose another dir, or set MIMONETS_CACHE "
            f"to a folder you may write to."
        ) from None


def cached(kind: str, key: object, make: Callable[[], Arrays]) -> Arrays:
    """Get arrays from the cache, or make them and put them there.

    Args:
        kind: what they are, the start of the file's name.
        key: everything the arrays depend on; its representation is hashed into the name.
        make: called only if there is no such file; a damaged one is made again.
    """
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    path = cache_dir() / "derived" / f"{kind}-{digest}.npz"
    if path.is_file():
        try:
            return load_arrays(path)
        except ValueError:  # damaged
            path.unlink(missing_ok=True)
    arrays = make()
    make_folder(path.parent)
    try:
        write_together({path: lambda part: _save(part, arrays)})
    except OSError as error:
        raise ValueError(
            f"cannot write {path} ({error.strerror or error}): free some space, or set "
            f"MIMONETS_CACHE to a folder with room."
        ) from None
    return arrays


def _save(path: Path, arrays: Arrays) -> None:
    with path.open("wb") as file:  # np.savez would add an ending to a path
        np.savez(file, **cast(dict[str, Any], arrays))


def fingerprint(*paths: Path) -> list[tuple[str, int, int]]:
    """Describe what a cached copy depends on: name, size and time of change of files or folders.

    A folder changes when a file comes or goes. What does not exist is left out.
    """
    there = [(path, path.stat()) for path in paths if path.exists()]
    return [(str(path.resolve()), found.st_size, found.st_mtime_ns) for path, found in there]
