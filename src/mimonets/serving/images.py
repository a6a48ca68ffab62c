"""Image files to inputs, as in training: size checked before anything is decoded."""

import base64
import binascii
import io
import warnings
from typing import Any

import numpy as np

from mimonets._extras import install_line
from mimonets._inputs import InputSpec
from mimonets.serving.networks import Array
from mimonets.serving.wishes import RequestError

FORMATS = ("PNG", "JPEG")
MAX_PIXELS = 16_000_000


def read_image(data: bytes, spec: InputSpec, max_pixels: int = MAX_PIXELS) -> Array:
    """Decode a PNG or JPEG file into one standardised input (c, h, w)."""
    try:
        from PIL import Image
    except ImportError:
        raise RequestError(
            503, f"Image files need Pillow on the server: {install_line('serve')}."
        ) from None

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the size is checked below, by a limit of our own
            file: Any = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception:  # whatever a damaged file makes the decoder raise
        raise RequestError(415, "This is no PNG or JPEG file.") from None
    width, height = file.size
    if width * height > max_pixels:
        raise RequestError(413, f"{width}x{height} pixels; at most {max_pixels} are decoded.")
    channels = spec.shape[0]
    wanted = spec.original if spec.original is not None else spec.shape[1:]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            picture = file.convert("L" if channels == 1 else "RGB")
            if picture.size != (wanted[1], wanted[0]):
                picture = picture.resize((wanted[1], wanted[0]), Image.Resampling.BOX)
            pixels = np.asarray(picture, dtype=np.uint8)
    except Exception:
        raise RequestError(415, "The image file is damaged.") from None
    pixels = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(spec.prepare(pixels), dtype=np.float32)


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
