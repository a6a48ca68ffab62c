"""The paddles and markers of Pathfinder, drawn once for every direction they can have.

Linsley et al., NeurIPS 2018: a paddle is a line drawn at twice the size and shrunk by a Lanczos
filter; the space it needs is the line grown by its margin, shrunk likewise.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from mimonets._extras import need

Array = np.ndarray[Any, Any]

SIZE = 32  # side of the image
PADDLE = 2  # length of a paddle
MARGIN = 1  # free space around it
FINE = 2  # paddles are drawn this much larger and shrunk, which smooths them
MARKER_RADIUS = 1.5
REACH = PADDLE + 1 + MARGIN  # a stamp is 2 * REACH + 1 wide
FULL = 255  # an occupied pixel; smooth edges lie between 0 and this

# k candidate tips   o directions of a paddle   s side of a stamp


@dataclass(frozen=True)
class Stamps:
    """Everything about paddles that depends on their direction only.

    Directions 0..359 are those of first paddles, in whole degrees from -180; the others are those
    of the candidate tips on the circle around a pivot, in order.
    """

    line: Array  # (o, s, s) brightness
    space: Array  # (o, s, s) the pixels it occupies
    blocked: Array  # (360, 7, 7) bool: pixels that must be free for a first paddle
    seedable: Array  # (360,) bool: directions a first paddle can have
    tip_offset: Array  # (k, 2) from the pivot
    tip_weight: Array  # (o, k) cos^2 of the turn from direction o
    angle: Array  # (o,) in radians


@cache
def stamps() -> Stamps:
    """Draw all paddles; done once."""
    degrees = np.arange(-180, 180) * np.pi / 180
    radius = PADDLE + MARGIN
    around = np.arange(0, 360, 360 / (2 * radius * np.pi)) * np.pi / 180
    circle = radius * np.stack([np.sin(around), np.cos(around)], axis=1)
    tip_offset = np.unique(np.floor(circle + SIZE).astype(int) - SIZE, axis=0)
    tips = np.arctan2(tip_offset[:, 0], tip_offset[:, 1])
    directions = np.concatenate([degrees, tips])

    # A first paddle is drawn from its tail forwards, a later one from its tip backwards.
    drawn = np.concatenate([degrees, reverse(tips)])
    fine = [_draw_line(angle) for angle in drawn]
    line = np.stack([_shrink(picture, 2 * REACH + 1) for picture in fine])
    space = np.stack([_shrink(_grow(picture, MARGIN * FINE), 2 * REACH + 1) for picture in fine])

    turn = np.abs(tips[None, :] - directions[:, None])
    turn = np.minimum(np.minimum(turn, 2 * np.pi - turn), np.pi / 2)
    # The reference centres this check one pixel off, which moves first paddles up and left.
    blocked = space[:360, REACH - 4 : REACH + 3, REACH - 4 : REACH + 3] == FULL
    return Stamps(
        line=line,
        space=space,
        blocked=blocked,
        seedable=_in_every_quadrant(blocked),
        tip_offset=tip_offset,
        tip_weight=np.cos(turn) ** 2,
        angle=directions,
    )


def _in_every_quadrant(blocked: Array) -> Array:
    """Tell the directions whose check reaches into the image from each of its corners.

    With the others the reference finds no value at some corner and gives the snake up, which is why
    so many of its images have fewer than five distractors.
    """
    low, high = slice(0, 4), slice(3, 7)  # both hold the centre
    quadrants = [(low, low), (low, high), (high, low), (high, high)]
    return np.all([blocked[:, y, x].any(axis=(1, 2)) for y, x in quadrants], axis=0)


def move(place: Array, angle: Array, distance: float) -> Array:
    """Go a distance in a direction, and round up to a whole pixel.

    Rounding up in floating point, as the reference does: near 0 the error of sin(pi) and cos(pi/2)
    counts as a step, which keeps snakes a pixel off the upper and left border.
    """
    step = distance * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
    return np.ceil(place + step).astype(int)


def _draw_line(angle: float) -> Array:
    image_module, draw_module = need("PIL.Image", "Pillow"), need("PIL.ImageDraw", "Pillow")
    centre = REACH * FINE
    picture = image_module.new("L", (2 * centre + 1, 2 * centre + 1))
    head = [int(np.ceil(centre + PADDLE * FINE * turn)) for turn in (np.cos(angle), np.sin(angle))]
    draw_module.Draw(picture).line([(centre, centre), (head[0], head[1])], fill=FULL, width=1)
    return np.array(picture)


def _grow(picture: Array, radius: int) -> Array:
    """Dilate by a disk."""
    reach = np.arange(-radius, radius + 1) ** 2
    disk = reach[:, None] + reach <= radius**2
    grown: Array = need("scipy.ndimage", "scipy").grey_dilation(
        picture, footprint=disk, mode="constant"
    )
    return grown


def _shrink(picture: Array, side: int) -> Array:
    image_module = need("PIL.Image", "Pillow")
    small = image_module.fromarray(picture).resize((side, side), image_module.Resampling.LANCZOS)
    return np.array(small)


@cache
def markers() -> Array:
    """Draw a marker at every position: (32, 32) positions, then the image."""
    grid = np.arange(SIZE * FINE)
    near = [(grid - FINE * place) ** 2 for place in range(SIZE)]
    limit = (MARKER_RADIUS * FINE) ** 2
    disks = [((y[:, None] + x <= limit) * FULL).astype(np.uint8) for y in near for x in near]
    return np.stack([_shrink(disk, SIZE) for disk in disks]).reshape(SIZE, SIZE, SIZE, SIZE)


def reverse(angle: Array) -> Array:
    """Turn around, and stay between -pi and pi."""
    return np.where(angle < 0, angle + np.pi, angle - np.pi)
