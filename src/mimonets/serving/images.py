"""Image files to inputs, safely: what a file costs is read from its bytes before it is decoded.

Only what decides pixels reaches the decoder: text, profiles, thumbnails and further frames are left
out, since a few bytes of them can take gigabytes. Files are decoded one after the other, and the
decoder asks whether it should go on at every few bytes.
"""

import io
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from mimonets._extras import install_line
from mimonets._inputs import InputSpec
from mimonets.serving.errors import RequestError
from mimonets.serving.operating_points import Array

MOST_PARTS = 20_000  # chunks of a PNG file, segments of a JPEG file
MOST_SCANS = 100  # of a JPEG file; cameras and editors write about ten
PASSES = 16  # pixels are decoded once per scan: so many times the limit of pixels in a request
LARGE = 2_000_000  # pixels; one image above it is decoded at a time, for the memory that it takes
STEP = 16 * 2**10  # bytes that the decoder gets at once

PNG, JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
PNG_PARTS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")
START_OF_SCAN, END, COMMENT, JFIF, ADOBE = 0xDA, 0xD9, 0xFE, 0xE0, 0xEE
FRAMES = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive
OTHER_FRAMES = {0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}  # lossless, arithmetic
NEITHER = "This is no PNG or JPEG file."
DAMAGED = "The image file is damaged."

Check = Callable[[], None]  # raises RequestError to end the work
_large = threading.Lock()


@dataclass(frozen=True)
class Outline:
    """What is decoded of a file, and what that costs."""

    data: bytes
    width: int
    height: int
    scans: int = 1

    @property
    def pixels(self) -> int:
        """Pixels that the file says it has."""
        return self.width * self.height


def read_images(
    files: Sequence[bytes],
    spec: InputSpec,
    max_pixels: int,
    check: Check = lambda: None,
) -> Array:
    """Decode PNG or JPEG files into standardised inputs (b, c, h, w).

    ``max_pixels`` limits all files together, by the sizes that they state, before any is decoded.
    """
    outlines = []
    pixels = work = 0
    for file in files:
        check()
        outline = read_outline(file)
        pixels += outline.pixels
        work += outline.pixels * outline.scans
        if pixels > max_pixels:
            raise _too_many(f"{pixels} pixels", max_pixels)
        if work > PASSES * max_pixels:
            raise _too_many(f"{pixels} pixels in up to {outline.scans} scans", max_pixels)
        outlines.append(outline)
    return np.stack([_decode(outline, spec, check) for outline in outlines])


def read_outline(data: bytes) -> Outline:
    """Read the size of a file, and keep the parts that decide its pixels."""
    if data.startswith(PNG):
        return _png_outline(data)
    if data.startswith(JPEG):
        return _jpeg_outline(data)
    raise RequestError(415, NEITHER)


def _png_outline(data: bytes) -> Outline:
    parts, at, kind = [PNG], len(PNG), b""
    for _ in range(MOST_PARTS):
        kind, end = data[at + 4 : at + 8], at + 12 + int.from_bytes(data[at : at + 4])
        if end > len(data) or (kind == b"IHDR") != (at == len(PNG)):
            raise RequestError(415, DAMAGED)
        if kind in PNG_PARTS:
            parts.append(data[at:end])
        at = end
        if kind == b"IEND":
            break
    else:
        raise RequestError(413, f"A PNG file has more than {MOST_PARTS} chunks.")
    sizes = parts[1][8:16]
    return Outline(b"".join(parts), int.from_bytes(sizes[:4]), int.from_bytes(sizes[4:]))


def _jpeg_outline(data: bytes) -> Outline:
    parts, at, size = [JPEG], len(JPEG), (0, 0)
    for _ in range(MOST_PARTS):
        found = re.compile(rb"\xff+([^\xff])").match(data, at)
        if found is None:
            raise RequestError(415, DAMAGED)
        kind, start = found[1][0], found.end()
        if kind == START_OF_SCAN:
            break
        end = start + int.from_bytes(data[start : start + 2])
        if kind in OTHER_FRAMES:
            raise RequestError(415, "JPEG files must be baseline or progressive.")
        if kind == END or end > len(data) or end < start + 2:
            raise RequestError(415, DAMAGED)
        if kind in FRAMES:
            if size != (0, 0) or end < start + 7:
                raise RequestError(415, DAMAGED)
            size = (
                int.from_bytes(data[start + 5 : start + 7]),
                int.from_bytes(data[start + 3 : start + 5]),
            )
        if kind in (JFIF, ADOBE) or not (JFIF <= kind <= 0xEF or kind == COMMENT):
            parts.append(b"\xff" + data[start - 1 : end])
        at = end
    else:
        raise RequestError(413, f"A JPEG file has more than {MOST_PARTS} segments.")
    parts.append(data[at:])
    scans = data.count(bytes((0xFF, START_OF_SCAN)), at)  # no data of a scan looks like that
    if scans > MOST_SCANS:
        raise RequestError(413, f"A JPEG file has {scans} scans; at most {MOST_SCANS} are taken.")
    return Outline(b"".join(parts), *size, scans)


class _Watched(io.BytesIO):
    """A file whose reader is asked at every step whether to go on."""

    def __init__(self, data: bytes, check: Check) -> None:
        super().__init__(data)
        self._check = check

    def read(self, size: int | None = -1) -> bytes:
        self._check()
        return super().read(size)


@contextmanager
def _one_large(check: Check) -> Any:
    while not _large.acquire(timeout=0.05):
        check()
    try:
        yield
    finally:
        _large.release()


def _decode(outline: Outline, spec: InputSpec, check: Check) -> Array:
    check()
    with _one_large(check) if outline.pixels > LARGE else nullcontext():
        pixels = _pixels(outline, spec, check)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    try:
        return np.ascontiguousarray(spec.prepare(pixels), dtype=np.float32)
    except ValueError as error:  # smaller than the crop
        raise RequestError(400, str(error)) from None


def _pixels(outline: Outline, spec: InputSpec, check: Check) -> Array:
    try:
        from PIL import Image, ImageFile
    except ImportError:
        raise RequestError(
            503, f"Image files need Pillow on the server: {install_line('serve')}."
        ) from None

    mode, wanted = "L" if spec.shape[0] == 1 else "RGB", spec.raw_size
    try:
        with Image.open(_Watched(outline.data, check), formats=("PNG", "JPEG")) as file:
            if file.size != (outline.width, outline.height):
                raise RequestError(415, DAMAGED)
            if isinstance(file, ImageFile.ImageFile):
                file.decodermaxblock = STEP
            picture: Image.Image = file
            if file.mode.startswith("I"):  # 16 bits per pixel: the high byte, as in training
                picture = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
            if picture.mode != mode:
                picture = picture.convert(mode)
            if wanted is not None and picture.size != (wanted[1], wanted[0]):
                picture = picture.resize((wanted[1], wanted[0]), Image.Resampling.BOX)
            return np.asarray(picture, dtype=np.uint8)
    except RequestError:
        raise
    except Exception:  # whatever a damaged file makes the decoder raise
        raise RequestError(415, DAMAGED) from None


def _too_many(what: str, most: int) -> RequestError:
    return RequestError(
        413, f"{what} in one request; at most {most} are decoded: send fewer or smaller."
    )
