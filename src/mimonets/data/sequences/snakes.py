"""Draw Pathfinder images: two long snakes of paddles, short ones to distract, and two markers.

Linsley et al., "Learning long-range spatial dependencies with horizontal gated recurrent units",
NeurIPS 2018, at the settings of Tay et al., "Long Range Arena", ICLR 2021: 32x32 pixels, paddles
of length 2 with a margin of 1. Snakes grow paddle by paddle on a map of occupied pixels. Positions
are whole pixels and paddles have few directions, so all paddles are drawn once, as small stamps,
and many images grow side by side, one lane each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mimonets.data.sequences.paddles import (
    FULL,
    MARGIN,
    PADDLE,
    REACH,
    SIZE,
    Array,
    markers,
    move,
    reverse,
    stamps,
)

SEED_DISTANCE = 7  # between the first paddles of the two target snakes
DISTRACTOR_PADDLES = 20  # in all distractors of an image
PADDLE_TRIES, SNAKE_TRIES = 3, 5
LANES = 1024  # pairs that start side by side; few of them reach full length
MOST_ROUNDS = 12  # without one success: at a length of 25 one in 7,000 succeeds
RIM = 16  # no pivot, tip or stamp reaches further out of the image than this
CROWDED = 1.8 * FULL  # a paddle fits if map and stamp stay below this everywhere
TAKEN = 0.3 * FULL  # above this a pixel cannot hold a first paddle

# Brightness in halves: target paddles 1.5, distractors 2, markers 1.
TARGET, DISTRACTOR, MARKER = 3, 4, 2

# l lanes: images that grow side by side   k candidate tips   o directions of a paddle


def draw_images(count: int, contour_length: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw ``count`` images (n, 32, 32) uint8 and their labels: 1 if one snake has both markers."""
    occupied, pairs = _target_pairs(count, contour_length, rng)
    canvas = np.zeros(occupied.shape, dtype=np.int16)
    lanes = np.arange(count)
    for snakes in pairs:
        _draw(canvas, lanes, snakes, TARGET)
    distractor_length = max(contour_length // 3, 1)
    for _ in range(DISTRACTOR_PADDLES // distractor_length):
        placed, paddles = _add_distractor(occupied, distractor_length, rng)
        for paddle in paddles:
            _draw(canvas, placed, paddle, DISTRACTOR)

    labels = rng.integers(2, size=count)
    origin = rng.integers(2, size=count)
    end = np.where(labels == 1, origin, 1 - origin)
    tails = np.stack([pairs[0].place, pairs[1].place])[origin, lanes]
    tips = np.stack([pairs[-2].place, pairs[-1].place])[end, lanes]
    image = canvas[:, RIM:-RIM, RIM:-RIM]
    for place in (tails, tips):
        disk = markers()[place[:, 0], place[:, 1]].astype(np.int16)
        np.maximum(image, MARKER * disk, out=image)
    brightest = image.max(axis=(1, 2), keepdims=True)
    return (image * (255.0 / brightest) + 0.5).astype(np.uint8), labels.astype(np.int64)


@dataclass
class _Snakes:
    """The growing end of one snake per lane."""

    pivot: Array  # (l, 2) where the last paddle turned
    direction: Array  # (l,) index of its direction
    stamp: Array  # (l,) index of its stamp
    place: Array  # (l, 2) where that stamp is centred: a tip of the snake

    def of(self, lanes: Array) -> "_Snakes":
        return _Snakes(*(getattr(self, name)[lanes] for name in self.__dataclass_fields__))

    @staticmethod
    def join(parts: Sequence["_Snakes"]) -> "_Snakes":
        names = _Snakes.__dataclass_fields__
        return _Snakes(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


_WINDOW = np.zeros((SIZE + 2 * RIM, SIZE + 2 * RIM), dtype=np.uint8)
_WINDOW[RIM:-RIM, RIM:-RIM] = 1
_SQUARE = np.arange(-REACH, REACH + 1)
_CROSS = np.array([[0, 0], [0, 1], [1, 0], [0, -1], [-1, 0]])


def _occupy(occupied: Array, lanes: Array, snakes: "_Snakes") -> None:
    """Mark the last paddle of each snake as an obstacle."""
    index = _index(lanes, snakes.place)
    space = stamps().space[snakes.stamp] * _WINDOW[index[1:]]
    occupied[index] = np.maximum(occupied[index], space)


def _draw(canvas: Array, lanes: Array, snakes: "_Snakes", brightness: int) -> None:
    """Draw the last paddle of each snake, cut at the border of the image."""
    index = _index(lanes, snakes.place)
    line = brightness * stamps().line[snakes.stamp].astype(np.int16)
    canvas[index] = np.maximum(canvas[index], line * _WINDOW[index[1:]])


def _index(lanes: Array, place: Array) -> tuple[Array, Array, Array]:
    rows = place[:, 0, None] + RIM + _SQUARE
    columns = place[:, 1, None] + RIM + _SQUARE
    return lanes[:, None, None], rows[:, :, None], columns[:, None, :]


def _extend(
    occupied: Array, lanes: Array, snakes: _Snakes, rng: np.random.Generator
) -> tuple[Array, _Snakes]:
    """Add one paddle to a snake in each lane; give back which lanes had room, and the snakes there.

    The tip is drawn on the circle around the next pivot, with weight cos^2 of the turn times the
    freedom of the pixel. A paddle becomes an obstacle only when the next one is there.
    """
    table = stamps()
    pivot = move(snakes.pivot, table.angle[snakes.direction], PADDLE + 2 * MARGIN)
    tips = pivot[:, None, :] + table.tip_offset  # l k 2
    cells = tips[:, :, None, :] + RIM + _CROSS  # l k 5 2
    crowd = occupied[lanes[:, None, None], cells[..., 0], cells[..., 1]].max(axis=2)
    inside = ((tips >= 0) & (tips < SIZE)).all(axis=2)
    weight = inside * (1 - crowd / FULL) * table.tip_weight[snakes.direction]
    cumulative = weight.cumsum(axis=1)
    found = np.zeros(len(lanes), dtype=bool)
    choice = np.zeros(len(lanes), dtype=int)
    waiting = np.flatnonzero(cumulative[:, -1] >= 1e-4)
    for _ in range(PADDLE_TRIES):
        draw = rng.random(len(waiting)) * cumulative[waiting, -1]
        drawn = (cumulative[waiting] > draw[:, None]).argmax(axis=1)
        index = _index(lanes[waiting], tips[waiting, drawn])
        space = table.space[360 + drawn] * _WINDOW[index[1:]]
        fits = (occupied[index].astype(np.int16) + space).max(axis=(1, 2)) < CROWDED
        found[waiting[fits]] = True
        choice[waiting[fits]] = drawn[fits]
        waiting = waiting[~fits]

    kept = np.flatnonzero(found)
    direction = 360 + choice[kept]
    _occupy(occupied, lanes[kept], snakes.of(kept))
    return kept, _Snakes(pivot[kept], direction, direction, tips[kept, choice[kept]])


def _target_pairs(count: int, length: int, rng: np.random.Generator) -> tuple[Array, list[_Snakes]]:
    """Grow pairs of target snakes until ``count`` have full length.

    Gives back their maps and their paddles, those of the first and the second snake by turns.
    Raises ValueError if not one of many pairs reaches that length.
    """
    board = np.empty((LANES, *_WINDOW.shape), dtype=np.uint8)
    maps: list[Array] = []
    pairs: list[list[_Snakes]] = []
    found = 0
    while found < count:
        alive, paddles = _grow_pairs(board, length, rng)
        found += len(alive)
        if not found and len(maps) + 1 >= MOST_ROUNDS:
            raise ValueError(
                f"pathfinder: contour_length={length} does not fit {SIZE}x{SIZE} pixels: none of "
                f"{MOST_ROUNDS * LANES} pairs of snakes reached it. Choose a smaller one, such as "
                f"14, the hardest of LRA."
            )
        maps.append(board[alive])
        pairs.append(paddles)
    first = np.arange(count)
    return np.concatenate(maps)[:count], [
        _Snakes.join(same).of(first) for same in zip(*pairs, strict=True)
    ]


def _grow_pairs(
    occupied: Array, length: int, rng: np.random.Generator
) -> tuple[Array, list[_Snakes]]:
    """Start a pair in every lane of the map; give back the lanes that succeed and their paddles."""
    seedable = np.flatnonzero(stamps().seedable)
    lanes = len(occupied)
    occupied[:] = 0
    occupied[:, RIM:-RIM, RIM:-RIM] = FULL
    occupied[:, RIM + 1 : -RIM - 1, RIM + 1 : -RIM - 1] = 0  # padding of one pixel
    taken = np.full((lanes, SIZE, SIZE), True)
    middle = slice(2 * SEED_DISTANCE, SIZE - 2 * SEED_DISTANCE)
    taken[:, middle, middle] = False
    first, second = rng.choice(seedable, lanes), rng.integers(360, size=lanes)
    tail, fits = _first_paddles(taken, first, rng)
    angle = rng.integers(360, size=lanes) * np.pi / 180
    beside = np.rint(SEED_DISTANCE * np.stack([np.sin(angle), np.cos(angle)], axis=1)).astype(int)
    paddles = []
    for place, direction in ((tail, first), (tail + beside, second)):
        snakes, inside = _first(place, direction)
        fits &= inside
        paddles.append(snakes)
    alive = np.flatnonzero(fits)
    paddles = [snakes.of(alive) for snakes in paddles]
    for _ in range(2 * (length - 1)):
        kept, grown = _extend(occupied, alive, paddles[-2], rng)  # the snake whose turn it is
        alive = alive[kept]
        paddles = [*(snakes.of(kept) for snakes in paddles), grown]
    # As in the reference, the last paddle of the second snake becomes an obstacle, that of the
    # first does not.
    _occupy(occupied, alive, paddles[-1])
    return alive, paddles


def _first_paddles(taken: Array, direction: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Choose a pixel for a paddle in each lane, where it does not touch what is taken.

    Gives back the tails (l, 2), and whether the lane has such a pixel.
    """
    blocked = stamps().blocked[direction]
    padded = np.pad(taken, ((0, 0), (3, 3), (3, 3)))
    full = np.zeros_like(taken)
    for y, x in np.argwhere(blocked.any(axis=0)):
        full |= blocked[:, y, x, None, None] & padded[:, y : y + SIZE, x : x + SIZE]
    free = (~full).reshape(-1, SIZE * SIZE).cumsum(axis=1, dtype=np.int16)
    wanted = (rng.random(len(taken)) * free[:, -1]).astype(np.int16)
    pixel = (free > wanted[:, None]).argmax(axis=1)
    return np.stack(np.divmod(pixel, SIZE), axis=1), free[:, -1] > 0


def _first(tail: Array, direction: Array) -> tuple[_Snakes, Array]:
    """Make first paddles from their tails, and tell which lie inside the image with their pivot."""
    angle = stamps().angle[direction]
    head = move(tail, angle, PADDLE)
    pivot = move(head, reverse(angle), PADDLE + MARGIN)
    ends = np.stack([tail, head, pivot])
    inside: Array = np.all((ends >= 0) & (ends < SIZE), axis=(0, 2))
    return _Snakes(pivot, direction, direction, tail), inside


def _add_distractor(
    occupied: Array, length: int, rng: np.random.Generator
) -> tuple[Array, list[_Snakes]]:
    """Add a short snake to every lane's map; a lane without room after five tries gets none.

    Gives back the lanes with a new snake, and its paddles there.
    """
    waiting = np.arange(len(occupied))
    found: list[Array] = []
    added: list[list[_Snakes]] = []
    for _ in range(SNAKE_TRIES):
        direction = rng.integers(360, size=len(waiting))
        lucky = stamps().seedable[direction]
        lanes, direction = waiting[lucky], direction[lucky]
        taken = occupied[lanes, RIM:-RIM, RIM:-RIM] > TAKEN
        tail, room = _first_paddles(taken, direction, rng)
        snakes, inside = _first(tail, direction)
        alive = np.flatnonzero(room & inside)
        paddles = [snakes.of(alive)]
        board = occupied[lanes]  # a copy: a snake that fails leaves no trace
        for _ in range(length - 1):
            kept, grown = _extend(board, alive, paddles[-1], rng)
            alive = alive[kept]
            paddles = [*(snakes.of(kept) for snakes in paddles), grown]
        _occupy(board, alive, paddles[-1])
        occupied[lanes[alive]] = board[alive]
        waiting = np.setdiff1d(waiting, lanes[alive])
        found.append(lanes[alive])
        added.append(paddles)
    return np.concatenate(found), [_Snakes.join(same) for same in zip(*added, strict=True)]
