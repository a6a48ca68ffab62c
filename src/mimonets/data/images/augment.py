"""Change a whole batch of uint8 images at once, on the device they are on.

Pure functions: randomness comes in as drawn numbers or a generator. MIMONets, appendix E: random
horizontal flips, random crops after zero padding by four, standardised channels.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets._config import Config, integer

# b images   c channels   h, w height and width


@dataclass(frozen=True, kw_only=True)
class AugmentConfig(Config):
    """What may happen to a training image.

    >>> AugmentConfig(padding=0, flip=True).padding  # MNIST in the paper
    0
    """

    padding: int = integer(4, least=0)  # on each side, before a random crop of the old size
    mode: Literal["zero", "reflect"] = "zero"  # what the padding is filled with
    flip: bool = True  # left and right change places with probability 1/2


def random_changes(images: Tensor, augment: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Flip and crop images at random."""
    if augment.flip:
        flips = torch.randint(2, (len(images),), generator=generator).bool()  # fair coins
        images = flip_where(images, flips)
    if augment.padding:
        offsets = draw_offsets(len(images), augment.padding, generator=generator)
        images = crop_at(images, offsets, augment.padding, augment.mode)
    return images


def draw_offsets(count: int, padding: int, *, generator: torch.Generator) -> Tensor:
    """Draw where to cut ``count`` padded images: (b, 2) of 0 .. 2 * padding."""
    return torch.randint(2 * padding + 1, (count, 2), generator=generator)


def crop_at(images: Tensor, offsets: Tensor, padding: int, mode: str = "zero") -> Tensor:
    """Pad (b, c, h, w) on each side and cut a window of the same size out at (b, 2) offsets.

    >>> image = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> crop_at(image, torch.tensor([[0, 1]]), padding=1)[0, 0]
    tensor([[0, 0],
            [0, 1]], dtype=torch.uint8)
    """
    b, (h, w) = len(images), images.shape[-2:]
    if mode == "reflect":
        if padding >= min(h, w):
            raise ValueError(
                f"images of {h}x{w} cannot be reflected by {padding}: use padding below "
                f"{min(h, w)}, or mode zero."
            )
        padded = F.pad(images.float(), (padding,) * 4, mode="reflect").to(images.dtype)
    else:
        padded = F.pad(images, (padding,) * 4)
    windows = padded.unfold(2, h, 1).unfold(3, w, 1)  # b c y x h w, a view
    offsets = offsets.to(images.device)
    return windows[torch.arange(b, device=images.device), :, offsets[:, 0], offsets[:, 1]]


def flip_where(images: Tensor, flips: Tensor) -> Tensor:
    """Mirror the images for which ``flips`` (b,) is true.

    >>> image = torch.tensor([1, 2], dtype=torch.uint8).view(1, 1, 1, 2)
    >>> flip_where(image, torch.tensor([True])).flatten()
    tensor([2, 1], dtype=torch.uint8)
    """
    count = len(images)
    both = torch.cat([images, images.flip(-1)])  # choosing whole images beats choosing pixels
    choice = torch.arange(count) + count * flips.cpu()
    return both.index_select(0, choice.to(images.device))


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Cut a square out of the middle of (n, c, h, w).

    >>> centre_crop(torch.zeros(1, 1, 28, 28), 20).shape
    torch.Size([1, 1, 20, 20])
    """
    h, w = images.shape[-2:]
    if size > min(h, w):
        raise ValueError(
            f"a crop of {size}x{size} does not fit images of {h}x{w}: choose at most {min(h, w)}."
        )
    top, left = (h - size) // 2, (w - size) // 2
    return images[..., top : top + size, left : left + size].contiguous()


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of uint8 images, on the scale 0..255.

    Counted exactly from histograms, so that no float copy of the images is made. A channel that
    is constant gets the deviation 1.
    """
    levels = torch.arange(256, dtype=torch.float64)
    counts = torch.stack(
        [
            torch.bincount(images[:, c].flatten().cpu(), minlength=256)
            for c in range(images.shape[1])
        ]
    ).double()
    share = counts / counts.sum(dim=1, keepdim=True)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(dim=1)
    std = torch.where(variance > 0, variance.sqrt(), torch.ones_like(variance))
    return mean.float(), std.float()


def standardise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn uint8 images into floats of mean 0 and deviation 1 per channel: (x - mean) / std."""
    scale = (1 / std).to(images.device).view(1, -1, 1, 1)
    shift = (-mean / std).to(images.device).view(1, -1, 1, 1)
    return images.float().mul_(scale).add_(shift)
