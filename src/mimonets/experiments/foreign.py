"""Images that belong to no class of a network: printed letters, or those of another data set."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mimonets._extras import need
from mimonets.data import DataConfig, ImageSet, load_data
from mimonets.data.images.augment import centre_crop
from mimonets.recipes.loader import find_data_dir

# Not those that may be read as a digit: B, D, G, I, L, O, Q, S, T, Y, Z.
LETTERS = "ACEFHJKMNPRUVWX"
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono-Oblique", "cmr10", "cmti10", "cmss10")
IMAGING = ("Image", "ImageDraw", "ImageFont")  # of Pillow
MOST_FOREIGN = 2_000
LARGE = 64  # letters are drawn at this size, then made smaller
TILT = 12.0  # degrees to either side


def foreign_images(name: str, own: ImageSet, folder: Path | None = None) -> ImageSet:
    """Make images of none of the classes of ``own``: as many, 2,000 at most, and of that size.

    Args:
        name: ``"letters"``, or a data set, of which the first test images are taken.
        own: the images that the network was made for.
        folder: where the files of that data set are, or a folder with one folder for each.
    """
    most = min(MOST_FOREIGN, len(own))
    channels, side, _ = own.shape
    if name == "letters":
        images = printed_letters(most, side)
    else:
        place = None if folder is None else find_data_dir(folder, name)
        whole = load_data(DataConfig(name=name, dir=place)).test
        images = whole.images[:most]
        if side < images.shape[-1]:
            images = centre_crop(images, side)
    if images.shape[2:] != own.shape[1:] or images.shape[1] not in (1, channels):
        raise ValueError(
            f"Images of {name} are {tuple(images.shape[1:])}, which cannot be made {own.shape}: "
            f"choose foreign images that are no smaller, in grey or as many colours."
        )
    images = images.expand(-1, channels, -1, -1).contiguous()
    return replace(own, images=images, labels=torch.zeros(len(images), dtype=torch.int64))


def printed_letters(count: int, side: int, *, seed: int = 0) -> Tensor:
    """Draw white letters on black, tilted a little: uint8 (n, 1, side, side).

    The fonts are those that come with matplotlib. The same seed draws the same letters.
    """
    image, draw, font = (need(f"PIL.{part}", "Pillow") for part in IMAGING)
    matplotlib = need("matplotlib", extra="plot", what="Drawing letters")
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [font.truetype(str(folder / f"{name}.ttf"), LARGE) for name in FONTS]
    rng = np.random.default_rng(seed)
    letters = np.empty((count, 1, side, side), dtype=np.uint8)
    for index in range(count):
        letter, face = LETTERS[rng.integers(len(LETTERS))], fonts[rng.integers(len(fonts))]
        canvas = image.new("L", (3 * LARGE, 3 * LARGE))
        draw.Draw(canvas).text((LARGE, LARGE), letter, fill=255, font=face)
        canvas = canvas.rotate(rng.uniform(-TILT, TILT), resample=image.Resampling.BILINEAR)
        left, top, right, bottom = canvas.getbbox()
        half = (max(right - left, bottom - top) + 1) // 2 + LARGE // 16  # a square, some margin
        x, y = (left + right) // 2, (top + bottom) // 2
        square = canvas.crop((x - half, y - half, x + half, y + half))
        letters[index, 0] = square.resize((side, side), resample=image.Resampling.BOX)
    return torch.from_numpy(letters)
