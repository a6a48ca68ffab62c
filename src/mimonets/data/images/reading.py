"""Read image files with Pillow: sizes are checked before pixels are, and 16 bits become 8."""

import warnings
from pathlib import Path
from typing import IO, Any

import numpy as np

from mimonets._extras import need
from mimonets._inputs import InputSpec
from mimonets.data.unpack import DamagedFileError, damaged, load_array, reading

Array = np.ndarray[Any, Any]

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
MOST_PIXELS = 2**24  # of one image, 4096 x 4096
GREY = ("1", "L", "LA", "I;16", "I;16L", "I;16B", "I")


def read_image(
    source: Path | IO[bytes],
    where: str | None = None,
    *,
    mode: str | None = None,
    size: tuple[int, int] | None = None,
) -> Array:
    """Read one image as uint8: (h, w) if it is grey, else (h, w, 3).

    Sixteen bits per pixel are scaled to eight: the high byte is kept, as Pillow does for colour.

    Args:
        source: a path or an open file.
        where: what to call it in messages; by default its path.
        mode: "L" or "RGB" converts to grey or colour; None leaves it as it is.
        size: refuse images of another width and height, before they are unpacked.
    """
    image_module = need("PIL.Image", "Pillow")
    where = where or str(source)
    with reading(where), warnings.catch_warnings():
        warnings.simplefilter("ignore", image_module.DecompressionBombWarning)
        try:
            opened = image_module.open(source)
        except need("PIL", "Pillow").UnidentifiedImageError:
            raise damaged(where, "it is no image file that Pillow knows") from None
        except image_module.DecompressionBombError:
            raise _too_large(where, "more than 100 million pixels") from None
        with opened:
            width, height = opened.size
            if min(width, height) < 1:
                raise damaged(where, f"it is {width}x{height}")
            if size is not None and (width, height) != size:
                raise damaged(where, f"it is {width}x{height} instead of {size[0]}x{size[1]}")
            if width * height > MOST_PIXELS:
                raise _too_large(where, f"{width}x{height} pixels")
            if opened.mode.startswith("I"):
                picture = image_module.fromarray(_high_byte(np.asarray(opened), where))
            elif opened.mode == "F":
                raise DamagedFileError(
                    f"{where} holds floating-point pixels, which have no fixed range: save it with "
                    f"8 or 16 bits per pixel."
                )
            else:
                picture = opened.convert("L" if opened.mode in GREY else "RGB")
            return np.array(picture if mode is None else picture.convert(mode))


def read_array(path: Path) -> list[Array]:
    """Read the uint8 images of an .npy: (h, w), (h, w, 3), (3, h, w), or many, (n, ...)."""
    images = load_array(path)
    if images.dtype != np.uint8 or images.ndim not in (2, 3, 4) or 0 in images.shape:
        raise DamagedFileError(
            f"{path}: expected uint8 images (h, w), (h, w, 3), (3, h, w) or many of these, and "
            f"this is {images.dtype} of shape {images.shape}."
        )
    colour = images.ndim == 4 or (images.ndim == 3 and 3 in (images.shape[0], images.shape[-1]))
    many = images if images.ndim == (4 if colour else 3) else images[None]
    if colour and many.shape[-1] not in (1, 3) and many.shape[1] in (1, 3):
        many = many.transpose(0, 2, 3, 1)
    if colour and many.shape[-1] not in (1, 3):
        raise DamagedFileError(f"{path}: images of shape {many.shape[1:]} have no 1 or 3 channels.")
    return [image[..., 0] if image.shape[2:] == (1,) else image for image in many]


def to_input(image: Array, spec: InputSpec) -> Array:
    """Turn a uint8 image, (h, w) or (h, w, 3), into one input (c, h, w) as in training.

    Grey or colour as the network takes it, brought to the size of the training images if that is
    known, cropped and standardised.
    """
    image_module = need("PIL.Image", "Pillow")
    channels, wanted = spec.shape[0], spec.raw_size
    picture = image_module.fromarray(image).convert("L" if channels == 1 else "RGB")
    if wanted is not None and picture.size != wanted[::-1]:
        picture = picture.resize(wanted[::-1], image_module.Resampling.BOX)
    pixels = np.asarray(picture, dtype=np.uint8)
    pixels = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    return np.ascontiguousarray(spec.prepare(pixels), dtype=np.float32)


def _high_byte(pixels: Array, where: str) -> Array:
    if pixels.min() < 0 or pixels.max() > 0xFFFF:
        raise DamagedFileError(
            f"{where} holds pixels from {pixels.min()} to {pixels.max()}: save it with 8 or 16 "
            f"bits per pixel."
        )
    return (pixels >> 8).astype(np.uint8)


def _too_large(where: str, size: str) -> DamagedFileError:
    return DamagedFileError(
        f"{where} has {size}, and at most {MOST_PIXELS} are read: make it smaller first."
    )
