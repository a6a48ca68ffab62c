"""Read files that may be damaged, or made to fill the memory: refused in one sentence.

Sizes that a header announces are compared with what can be true before anything is allocated, and
nothing packed may grow without limit.
"""

import bz2
import gzip
import io
import lzma
import math
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

import numpy as np

PLENTY = 2**28  # bytes that any packed file may unpack to
MOST_GROWTH = 100  # a larger file may unpack to so many times its size; bombs reach 1,000

Arrays = dict[str, np.ndarray[Any, Any]]


class DamagedFileError(ValueError):
    """A file cannot be used; the message names it."""


def damaged(path: Path | str, reason: object) -> DamagedFileError:
    """Say in one line that a file cannot be used."""
    words = " ".join(str(reason).split()) or type(reason).__name__
    if len(words) > 200:  # a parser may quote the file
        words = f"{words[:200]}..."
    return DamagedFileError(
        f"{path} is damaged or not complete ({words}): fetch it again, or name the right file."
    )


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn whatever a parser raises for a damaged file into one sentence that names the file."""
    try:
        yield
    except DamagedFileError:
        raise
    except OSError as error:
        if error.errno is None or error.strerror is None:  # a parser's, not the system's
            raise damaged(path, error) from None
        raise ValueError(f"{path} cannot be read ({error.strerror}).") from None
    except Exception as error:  # a damaged file can make a parser raise anything
        raise damaged(path, error) from None


def most_bytes(path: Path) -> int:
    """Say how much a file may unpack to."""
    return max(PLENTY, MOST_GROWTH * path.stat().st_size)


class _Limited(io.RawIOBase):
    """A file that gives at most ``most`` bytes, and is damaged if it holds more."""

    def __init__(self, file: IO[bytes], most: int, path: Path) -> None:
        self._file, self._most, self._path = file, most, path
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._file.read(min(len(buffer), 2**20))
        self._left -= len(piece)
        if self._left < 0:
            raise damaged(self._path, f"it unpacks to more than {self._most} bytes")
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._file.close()
        super().close()


OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ": lzma.open,
    b"BZh": bz2.open,
}


def open_binary(path: Path) -> io.BufferedReader:
    """Open a file for reading, unpacked on the fly if it starts like gzip, xz or bzip2."""
    with path.open("rb") as file:
        start = file.read(8)
    opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), None)
    unpacked: IO[bytes] = path.open("rb") if opener is None else opener(path)
    return io.BufferedReader(_Limited(unpacked, most_bytes(path), path))


def archive_files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted files of a tar archive, once from front to back.

    The folder that it unpacks to will do as well. Names start with that folder in both cases.
    """
    if path.is_dir():
        with reading(path):
            for place in path.rglob("*"):
                name = place.relative_to(path.parent).as_posix()
                if wanted(name) and place.is_file():
                    yield name, place.read_bytes()
        return
    with (
        reading(path),
        open_binary(path) as file,
        tarfile.open(fileobj=file, mode="r|", tarinfo=_Strict) as archive,
    ):
        for member in archive:
            if not (member.isfile() and wanted(member.name)):
                continue
            if member.size > most_bytes(path):
                raise damaged(path, f"{member.name} unpacks to {member.size} bytes")
            content = archive.extractfile(member)
            yield member.name, content.read() if content else b""


def named_files(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Read the files of these names out of a tar archive, or of the folder it unpacks to."""
    if path.is_dir():
        with reading(path):
            found = {name: (path / name).read_bytes() for name in names if (path / name).exists()}
    else:
        there = archive_files(path, lambda name: name.rpartition("/")[2] in names)
        found = {name.rpartition("/")[2]: content for name, content in there}
    missing = [name for name in names if name not in found]
    if missing:
        raise damaged(path, f"it holds no {', '.join(missing)}")
    return found


class _Strict(tarfile.TarInfo):
    """Headers that are damaged raise; tarfile itself takes all but the first as the end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str | None, errors: str) -> Self:
        if 0 < len(buf) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the archive ends inside a header")
        try:
            return super().frombuf(buf, encoding, errors)  # type: ignore[arg-type]
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"a header is damaged: {error}") from None


def load_arrays(path: Path) -> Arrays:
    """Load all arrays of an .npz, after comparing their headers with what the file holds."""
    with reading(path), path.open("rb") as opened:
        with zipfile.ZipFile(opened) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            if total > most_bytes(path):
                raise damaged(path, f"it unpacks to {total} bytes")
            for member in members:
                with archive.open(member) as file:
                    _check_header(file, member.file_size, f"{path}, {member.filename}")
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}


def load_array(path: Path) -> np.ndarray[Any, Any]:
    """Load the array of an .npy, after comparing its header with the size of the file."""
    with reading(path), path.open("rb") as file:
        _check_header(file, path.stat().st_size, str(path))
        file.seek(0)
        found: np.ndarray[Any, Any] = np.load(file, allow_pickle=False)
        return found


def _check_header(file: IO[bytes], size: int, where: str) -> None:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise damaged(where, f"an array of format {version} holds no plain numbers")
    if dtype.hasobject:
        raise DamagedFileError(
            f"{where} holds Python objects, which are not loaded since they could run code: save "
            f"plain arrays of numbers."
        )
    wanted = math.prod(shape) * dtype.itemsize
    if wanted > size:
        raise damaged(where, f"{size} bytes do not hold the shape {shape} it announces")
