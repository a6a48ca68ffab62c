"""Keep streams apart in space: tiles on one canvas. Beyond the paper.

A trunk of convolutions does the same at every position, so translations commute with it. Used as
keys, they let all streams share one function, where ordinary keys make every stream learn its own.

That is close to a batch of small images, at the same cost: ``docs/apart.md`` says what differs.
"""

import math
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from mimonets._device import has_channels_last
from mimonets.bindings.binding import Binding, BindingSettings, Boundary, SlowName, ViewName
from mimonets.vsa import check_active_streams, squarest_grid, stream_assignment

# g groups   a active inputs   s streams   d feature maps   h, w position in a tile   r, c the grid


class Tiles(Binding):
    r"""Place the inputs of a group side by side on one canvas, and cut it up again.

    .. math:: s_{:, \, i h + y, \, j w + x} = x^{(c i + j)}_{:, y, x}, \qquad
        i < r, \; j < c, \; r c = N

    Nothing is added up and nothing is learned: a tile is a key by translation.

    With A < N active inputs, stream k carries input k mod A, as everywhere (``slow="views"``). With
    ``slow="full"`` a mode in which every input can have a square of k x k tiles, N = A k^2, gives
    it that square: the stem strides k times less there (see :meth:`zoom`), so that one input at k
    times the resolution fills its square. Of four streams that is mode 1, of sixteen modes 4 and
    1. The other modes use views all the same: two of four inputs would be stretched.

    Args:
        num_streams: N; the grid is the squarest one, with at least as many columns as rows.
        align: zeros are added below and to the right of a tile up to a multiple of this, so that a
            trunk that strides by it keeps the tiles on whole cells.
        slow: what a mode with fewer inputs than tiles does with the room.
        views: what the tiles of the same input see of it, see :func:`make_views`.

    >>> tiles = Tiles(4)
    >>> canvas = tiles(torch.arange(4.0).view(1, 4, 1, 1, 1).expand(1, 4, 1, 1, 2))
    >>> canvas[0, 0]
    tensor([[0., 0., 1., 1.],
            [2., 2., 3., 3.]])
    >>> tiles.split(canvas).shape
    torch.Size([1, 4, 1, 1, 2])
    """

    summary = "laying them side by side as tiles"
    keeps_apart = True
    uses = frozenset({"slow", "views"})
    advice = "give Tiles the factor that the trunk strides by, align=4 for a WideResNet"

    def __init__(
        self,
        num_streams: int,
        *,
        align: int = 1,
        slow: SlowName = "views",
        views: ViewName = "copies",
    ) -> None:
        super().__init__()
        self.num_streams = num_streams
        self.align = align
        self.slow = slow
        self.kind_of_views = views

    @classmethod
    def make(cls, settings: BindingSettings, generator: Generator | None = None) -> "Tiles":
        """Make tiles on a canvas that grows with their number, or that keeps the size of one."""
        if settings.keeps_size:
            return ShrunkTiles(settings.num_streams, line=settings.line)
        return Tiles(
            settings.num_streams,
            align=settings.strides,
            slow=settings.slow,
            views=settings.views,
        )

    @classmethod
    def setting_problems(cls, settings: BindingSettings) -> list[str]:
        """Say why ``slow="full"`` does not fit."""
        count = settings.num_streams
        if settings.slow != "full":
            return []
        tiles = Tiles(count, slow="full")
        zooms = sorted({tiles.zoom(active) for active in range(1, count + 1)})
        if zooms == [1] and count > 1:
            return [
                f"slow='full' needs a square of tiles for an input, and {count} streams have "
                f"none: choose 4, 8, 9 or 16 of them, or slow='views'."
            ]
        stride = settings.stem_stride
        return [
            f"slow='full' lets the stem stride {zoom} times less, and stem_stride={stride} does "
            f"not divide by {zoom}: choose another."
            for zoom in zooms
            if stride % zoom
        ]

    def grid(self, active_streams: int) -> tuple[int, int]:
        """Say how many rows and columns of places a mode has: tiles, or squares of tiles."""
        zoom = self.zoom(active_streams)
        rows, columns = squarest_grid(self.num_streams)
        return rows // zoom, columns // zoom

    def zoom(self, active_streams: int) -> int:
        """Say how many times finer an input is seen in a mode: k for a square of k x k tiles.

        >>> [Tiles(16, slow="full").zoom(active) for active in (16, 8, 4, 1)]
        [1, 1, 2, 4]
        """
        active = check_active_streams(active_streams, self.num_streams)
        side = math.isqrt(self.num_streams // active)
        fits = side**2 * active == self.num_streams
        fits = fits and all(n % side == 0 for n in squarest_grid(self.num_streams))
        return side if self.slow == "full" and fits else 1

    def views(self, images: Tensor, active_streams: int) -> Tensor:
        """Give every place a view of its input: (g, a, c, h, w) -> (g, p, c, h, w)."""
        return make_views(images, math.prod(self.grid(active_streams)), self.kind_of_views)

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Fill the canvas: (g, a, d, h, w) -> (g, d, r h, c w); fewer inputs are repeated."""
        rows, columns = self.grid(x.shape[1] if active_streams is None else active_streams)
        x = self.fit(x, rows, columns)
        if x.shape[1] != rows * columns:
            x = x[:, stream_assignment(x.shape[1], rows * columns, x.device)]
        channels_last = has_channels_last(x)
        x = x.unflatten(1, (rows, columns))  # g r c d h w
        if channels_last:
            x = x.permute(0, 1, 4, 2, 5, 3).flatten(3, 4).flatten(1, 2)  # g (r h) (c w) d
            return x.permute(0, 3, 1, 2)
        return x.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)

    def fit(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """Make tiles of maps (g, a, d, h, w): pad them to whole cells."""
        bottom, right = (-size % self.align for size in x.shape[-2:])
        return F.pad(x, (0, right, 0, bottom)) if bottom or right else x

    def split(self, maps: Tensor, active_streams: int | None = None) -> Tensor:
        """Cut a canvas into its places: (g, d, r h, c w) -> (g, p, d, h, w)."""
        rows, columns = self.grid(check_active_streams(active_streams, self.num_streams))
        if maps.shape[2] % rows or maps.shape[3] % columns:
            raise ValueError(
                f"A canvas of {maps.shape[2]}x{maps.shape[3]} positions does not divide into "
                f"{rows}x{columns} tiles: {self.advice}."
            )
        tiles = maps.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))  # g d r h c w
        if has_channels_last(maps):
            return tiles.permute(0, 2, 4, 3, 5, 1).flatten(1, 2).permute(0, 1, 4, 2, 3)
        return tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)

    def extra_repr(self) -> str:
        """Show the settings in the module's printed form."""
        rows, columns = squarest_grid(self.num_streams)
        return (
            f"{rows}x{columns}, align={self.align}, slow={self.slow!r}, "
            f"views={self.kind_of_views!r}"
        )


class ShrunkTiles(Tiles):
    r"""Place the inputs of a group side by side on a canvas of the size that one input has.

    .. math:: s_{:, \, i h' + y, \, j w' + x} = \frac{1}{r c} \sum_{u < r, \, v < c}
        x^{(c i + j)}_{:, \, r y + u, \, c x + v}, \qquad h' = h / r, \; w' = w / c

    Every input is averaged down by the grid of r x c places that its mode has, so that what
    follows costs the same in every mode: with one input it is seen as it is, with four at half the
    height and width.

    A mode with A inputs has A places if A divides N, else the next larger divisor of N, and place
    k carries input k mod A.

    >>> tiles = ShrunkTiles(4)
    >>> [tiles.grid(active) for active in (1, 2, 3, 4)]
    [(1, 1), (1, 2), (2, 2), (2, 2)]
    >>> canvas = tiles(torch.arange(4.0).view(1, 4, 1, 1, 1).expand(1, 4, 1, 2, 2))
    >>> canvas[0, 0]
    tensor([[0., 1.],
            [2., 3.]])
    >>> tiles.split(canvas, 4).flatten().tolist()
    [0.0, 1.0, 2.0, 3.0]
    """

    advice = "take them apart before the maps get that small, or choose a smaller number of streams"

    def __init__(self, num_streams: int, *, line: bool = False) -> None:
        super().__init__(num_streams)
        self.line = line  # maps (d, t) are taken as (d, t, 1)
        self.restores = False  # whether split() brings tiles back to the size of one input

    def grid(self, active_streams: int) -> tuple[int, int]:
        """Say how many rows and columns of places a mode has."""
        active = check_active_streams(active_streams, self.num_streams)
        places = range(active, self.num_streams + 1)
        count = next(n for n in places if self.num_streams % n == 0)
        return (count, 1) if self.line else squarest_grid(count)

    def split(self, maps: Tensor, active_streams: int | None = None) -> Tensor:
        """Cut a canvas into its places; ``restores`` scales them up bilinearly, for dense answers.

        (g, d, h, w) -> (g, p, d, h / r, w / c), or (g, p, d, h, w).
        """
        tiles = super().split(maps, active_streams)
        if not self.restores or tiles.shape[-2:] == maps.shape[-2:]:
            return tiles
        flat = F.interpolate(tiles.flatten(0, 1), size=maps.shape[-2:], mode="bilinear")
        return flat.unflatten(0, tiles.shape[:2])

    def fit(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """Make tiles of maps (g, a, d, h, w): average them down."""
        if x.shape[-2] % rows or x.shape[-1] % columns:
            raise ValueError(
                f"Feature maps of {x.shape[-2]}x{x.shape[-1]} do not shrink to {rows}x{columns} "
                f"tiles of whole positions: bind where height and width divide by that, or "
                f"choose another number of streams."
            )
        return F.avg_pool2d(x.flatten(0, 1), (rows, columns)).unflatten(0, x.shape[:2])

    def problems(self, entering: Boundary, leaving: Boundary) -> list[str]:
        """Refuse what is no feature maps, or has no whole tiles in some mode."""
        for (name, features), verb in ((entering, "gives"), (leaving, "takes")):
            if features.ndim != (3 if self.line else 4):
                return [
                    f"binding='tiles' lays feature maps (b, d, h, w) or (b, d, t) side by side, "
                    f"and {name!r} {verb} {tuple(features.shape)}: name modules that see maps, "
                    f"such as the pooling before the classifier, or choose another binding."
                ]
        return [
            f"The maps at {name!r} have {height}x{width} positions, which "
            f"do not divide into {rows}x{columns} tiles, as {active} active streams have: choose "
            f"another module, or another number of streams than {self.num_streams}."
            for name, features in (entering, leaving)
            for height, width in [(*features.shape[2:], 1)[:2]]
            for active in range(1, self.num_streams + 1)
            for rows, columns in [self.grid(active)]
            if height % rows or width % columns
        ]

    def extra_repr(self) -> str:
        """Show the number of streams in the module's printed form."""
        return f"{self.num_streams}"


def make_views(images: Tensor, places: int, kind: ViewName = "copies") -> Tensor:
    """Give every place a view of its input, place k that of input k mod A.

    * ``copies``: the image itself. Nothing is copied here: the binding does it after the stem.
    * ``shifts``: the image moved by a pixel or more, each view by another offset of a square
      centred at 0; what comes in at the border repeats it. Behind a stem with stride s, s x s
      views hold together what the stem would compute with stride 1.
    * ``flips``: pairs of an image and its mirror image, moved like shifts.

    Args:
        images: (g, a, c, h, w).

    Returns:
        (g, s, c, h, w), or ``images`` as they are if there are no more places than inputs.
    """
    if kind not in get_args(ViewName):
        raise ValueError(f"views={kind!r} are not known: choose from {get_args(ViewName)}.")
    active = images.shape[1]
    if kind == "copies" or places == active:
        return images
    count = -(-places // active)
    mirrored = 2 if kind == "flips" else 1
    side = math.isqrt(-(-count // mirrored) - 1) + 1
    views = []
    for view in range(count):
        offset, flip = divmod(view, mirrored)
        down, right = (step - (side - 1) // 2 for step in divmod(offset, side))
        seen = _moved(images, down, right)
        views.append(seen.flip(-1) if flip else seen)
    return torch.cat(views, dim=1)[:, :places]  # place k: view k div A of input k mod A


def _moved(images: Tensor, down: int, right: int) -> Tensor:
    if not down and not right:
        return images
    pads = (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0))
    padded = F.pad(images.flatten(0, 1), pads, mode="replicate")
    height, width = images.shape[-2:]
    top, left = max(-down, 0), max(-right, 0)
    return padded[..., top : top + height, left : left + width].unflatten(0, images.shape[:2])
