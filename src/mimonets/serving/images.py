"""Image files to inputs, as in training: size checked before anything is decoded."""

import base64
import binascii
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from mimonets._extras import install_line
from mimonets._inputs import InputSpec
from mimonets.serving.operating_points import Array
from mimonets.serving.request_options import RequestError

FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 16_000_000


def read_images(files: Sequence[bytes], spec: InputSpec, max_pixels: int = MAX_PIXELS) -> Array:
    """Decode PNG or JPEG files into standardised inputs (b, c, h, w).

    ``max_pixels`` limits all files together, by the sizes that they state, before any is decoded.
    """
    opened = [_open(file, max_pixels) for file in files]
    pixels = sum(width * height for width, height in (file.size for file in opened))
    if pixels > max_pixels:
        raise _too_many(str(pixels), max_pixels)
    return np.stack([_decode(file, spec) for file in opened])


def _open(data: bytes, max_pixels: int) -> Any:
    """Read the head of a file, which says its size."""
    try:
        from PIL import Image
    except ImportError:
        raise RequestError(
            503, f"Image files need Pillow on the server: {install_line('serve')}."
        ) from None

    try:
        return Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many("Far more", max_pixels) from None
    except Exception:  # whatever a damaged file makes the decoder raise
        raise RequestError(415, "This is no PNG or JPEG file.") from None


def _decode(file: Any, spec: InputSpec) -> Array:
    from PIL import Image

    channels, wanted = spec.shape[0], spec.raw_size
    try:
        if file.mode.startswith("I"):  # 16 bits per pixel: the high byte, as in training
            file = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8))
        picture = file.convert("L" if channels == 1 else "RGB")
        if wanted is not None and picture.size != wanted[::-1]:
            picture = picture.resize(wanted[::-1], Image.Resampling.BOX)
        pixels = np.asarray(picture, dtype=np.uint8)
    except Exception:
        raise RequestError(415, "The image file is damaged.") from None
    pixels = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    try:
        return np.ascontiguousarray(spec.prepare(pixels), dtype=np.float32)
    except ValueError as error:  # smaller than the crop
        raise RequestError(400, str(error)) from None


def _too_many(pixels: str, most: int) -> RequestError:
    return RequestError(
        413, f"{pixels} pixels in one request; at most {most} are decoded: send fewer or smaller."
    )


def read_data_url(text: object) -> bytes:
    """Decode ``data:image/png;base64,...``."""
    if not isinstance(text, str) or not text.startswith("data:image/") or "," not in text:
        raise RequestError(400, 'images must be data URLs: "data:image/png;base64,...".')
    kind, _, data = text.partition(",")
    if not kind.endswith(";base64"):
        raise RequestError(400, "data URLs must be base64.")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error:
        raise RequestError(400, "The data URL is not base64.") from None
