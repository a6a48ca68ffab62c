"""Damaged images, the same every time: noise, blur, low contrast and shifts, in three strengths.

After Hendrycks & Dietterich, "Benchmarking neural network robustness to common corruptions and
perturbations", ICLR 2019, with strengths that suit images of 8 to 32 pixels.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mimonets._messages import did_you_mean

# n images   c channels   h, w height and width

STRENGTHS = (1, 2, 3)


def corrupt(images: Tensor, kind: str, strength: int, *, seed: int = 0) -> Tensor:
    """Damage uint8 images (n, c, h, w): what is random depends on the seed alone.

    Args:
        images: uint8, (n, c, h, w).
        kind: one of :data:`CORRUPTIONS`.
        strength: 1, 2 or 3.

    >>> grey = torch.full((1, 1, 4, 4), 100, dtype=torch.uint8)
    >>> bool((corrupt(grey, "contrast", 3) == grey).all())
    True
    """
    if kind not in CORRUPTIONS:
        raise ValueError(
            f"There is no corruption {kind!r}{did_you_mean(kind, CORRUPTIONS)}: choose from "
            f"{', '.join(CORRUPTIONS)}."
        )
    if strength not in STRENGTHS:
        raise ValueError(f"strength={strength!r} must be one of {', '.join(map(str, STRENGTHS))}.")
    generator = torch.Generator().manual_seed(seed)
    damaged = CORRUPTIONS[kind](images.float(), strength, generator)
    return damaged.round().clamp(0, 255).to(torch.uint8)


def noise(images: Tensor, strength: int, generator: Generator) -> Tensor:
    """Add Gaussian noise to every pixel: deviation 0.1, 0.2 or 0.3 of white."""
    return images + 25.5 * strength * torch.randn(images.shape, generator=generator)


def blur(images: Tensor, strength: int, generator: Generator) -> Tensor:
    r"""Convolve with a Gaussian of 3, 6 or 9 % of the width; pixels at the edge repeat.

    .. math:: w_d \propto \exp(-d^2 / 2 \sigma^2), \qquad |d| \le \lceil 3 \sigma \rceil
    """
    sigma = 0.03 * strength * images.shape[-1]
    reach = math.ceil(3 * sigma)
    weights = torch.exp(-(torch.arange(-reach, reach + 1.0) ** 2) / (2 * sigma**2))
    weights = weights / weights.sum()
    x = F.pad(images, (reach,) * 4, mode="replicate").flatten(0, 1).unsqueeze(1)
    x = F.conv2d(F.conv2d(x, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1))
    return x.view_as(images)


def contrast(images: Tensor, strength: int, generator: Generator) -> Tensor:
    """Bring every pixel nearer to its image's mean: 50, 30 or 15 % of the difference is left."""
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    return mean + (0.5, 0.3, 0.15)[strength - 1] * (images - mean)


def shift(images: Tensor, strength: int, generator: Generator) -> Tensor:
    """Move each image left, right, up or down by 1/16, 2/16 or 3/16 of it; the edge repeats."""
    reach = math.ceil(strength * images.shape[-1] / 16)
    count, _, height, width = images.shape
    direction = torch.randint(4, (count,), generator=generator)
    padded = F.pad(images, (reach,) * 4, mode="replicate")
    moved = torch.empty_like(images)
    for index, (down, right) in enumerate(((0, 1), (0, -1), (1, 0), (-1, 0))):
        top, left = reach * (1 - down), reach * (1 - right)
        chosen = direction == index
        moved[chosen] = padded[chosen, :, top : top + height, left : left + width]
    return moved


CORRUPTIONS: dict[str, Callable[[Tensor, int, Generator], Tensor]] = {
    "noise": noise,
    "blur": blur,
    "contrast": contrast,
    "shift": shift,
}
