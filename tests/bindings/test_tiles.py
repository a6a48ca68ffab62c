import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from mimonets.bindings import ShrunkTiles, Tiles
from mimonets.bindings.binding import each_alone
from mimonets.bindings.tiles import make_views
from mimonets.vsa import average_copies, squarest_grid


def canvas_by_hand(x, rows, columns):
    """Copy pixel by pixel."""
    groups, _, maps, height, width = x.shape
    canvas = torch.zeros(groups, maps, rows * height, columns * width)
    for i in range(rows):
        for j in range(columns):
            for y in range(height):
                for z in range(width):
                    canvas[:, :, i * height + y, j * width + z] = x[:, columns * i + j, :, y, z]
    return canvas


@pytest.mark.parametrize("num_streams", [1, 2, 4, 7, 8])
def test_every_pixel_goes_to_its_tile(num_streams):
    x = torch.randn(2, num_streams, 3, 4, 5)
    expected = canvas_by_hand(x, *squarest_grid(num_streams))
    assert_close(Tiles(num_streams)(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("num_streams", [1, 2, 4, 7, 8])
def test_cutting_undoes_placing(num_streams):
    x = torch.randn(2, num_streams, 3, 4, 5)
    tiles = Tiles(num_streams)
    assert_close(tiles.split(tiles(x)), x, rtol=0, atol=0)


@pytest.mark.parametrize("active", [1, 2, 3])
def test_fewer_inputs_are_copied_as_streams_are(active):
    x = torch.randn(2, active, 3, 4, 4)
    tiles = Tiles(4)
    cut = tiles.split(tiles(x))
    for stream in range(4):
        assert_close(cut[:, stream], x[:, stream % active], rtol=0, atol=0)


def test_a_tile_is_padded_to_what_the_trunk_strides_by():
    x = torch.randn(1, 4, 2, 5, 6)
    tiles = Tiles(4, align=4)
    canvas = tiles(x)
    assert canvas.shape == (1, 2, 16, 16)
    cut = tiles.split(canvas)
    assert_close(cut[..., :5, :6], x)
    assert cut[..., 5:, :].abs().max() == 0
    assert cut[..., 6:].abs().max() == 0


def test_convolutions_commute_with_tiles_away_from_the_borders():
    x = torch.randn(1, 4, 2, 6, 6)
    weight = torch.randn(5, 2, 3, 3)
    tiles = Tiles(4)
    together = tiles.split(torch.nn.functional.conv2d(tiles(x), weight, padding=1))
    apart = torch.nn.functional.conv2d(x[0], weight, padding=1)
    assert_close(together[0, :, :, 1:-1, 1:-1], apart[:, :, 1:-1, 1:-1])
    assert not torch.allclose(together[0], apart)  # neighbours touch: the price of a canvas


def test_full_gives_an_input_a_square_of_tiles():
    tiles = Tiles(16, slow="full")
    places = [math.prod(tiles.grid(active)) for active in (16, 8, 4, 2, 1)]
    assert places == [16, 16, 4, 16, 1]
    x = torch.randn(3, 4, 2, 6, 6)
    canvas = tiles(x, 4)
    assert_close(canvas, canvas_by_hand(x, 2, 2))
    assert_close(tiles.split(canvas, 4), x)


def test_a_canvas_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="5x8 positions does not divide into 2x2 tiles.*align=4"):
        Tiles(4).split(torch.zeros(1, 2, 5, 8))


def test_each_alone_leaves_zeros_in_the_others_places():
    x = torch.randn(2, 3, 4, 5, 6)
    found = each_alone(x).unflatten(0, (2, 3))
    for own in range(3):
        for other in range(3):
            expected = x[:, own] if own == other else torch.zeros_like(x[:, own])
            assert_close(found[:, own, other], expected)


@pytest.mark.parametrize("kind", ["copies", "shifts", "flips"])
def test_as_many_views_as_places_and_in_the_order_of_streams(kind):
    images = torch.arange(2.0).view(1, 2, 1, 1, 1).expand(1, 2, 3, 6, 6)  # flat: views look alike
    views = make_views(images, 7, kind)
    if kind == "copies":
        assert views is images
    else:
        assert views[0, :, 0, 0, 0].tolist() == [0, 1, 0, 1, 0, 1, 0]


def test_shifts_hold_together_what_a_stem_without_stride_computes():
    image = torch.randn(1, 1, 3, 9, 9)
    weight = torch.randn(4, 3, 4, 4)
    views = make_views(image, 4, "shifts")[0]
    strided = torch.nn.functional.conv2d(views, weight, stride=2)  # 4 4 3 3
    dense = torch.nn.functional.conv2d(image[0], weight)[0]  # 4 6 6
    for view in range(4):
        down, right = divmod(view, 2)
        # The view moved down by one shows at position y what the image has at y - 1.
        assert_close(strided[view][:, 1:, 1:], dense[:, 2 - down :: 2, 2 - right :: 2][:, :2, :2])


def test_flips_are_pairs_of_mirror_images():
    image = torch.randn(1, 1, 3, 6, 6)
    views = make_views(image, 4, "flips")[0]
    assert_close(views[0], image[0, 0])
    assert_close(views[1], views[0].flip(-1))
    assert_close(views[3], views[2].flip(-1))
    assert not torch.allclose(views[2], views[0])


def test_unknown_views_are_refused():
    with pytest.raises(ValueError, match="views='turns' are not known.*copies"):
        make_views(torch.zeros(1, 1, 3, 4, 4), 4, "turns")


def shrunk_by_hand(x, rows, columns):
    """Average pixel by pixel, place by place."""
    groups, active, maps, height, width = x.shape
    canvas = torch.zeros(groups, maps, height, width)
    low, narrow = height // rows, width // columns
    for i in range(rows):
        for j in range(columns):
            for y in range(low):
                for z in range(narrow):
                    own = x[:, (columns * i + j) % active]
                    cell = own[:, :, rows * y : rows * (y + 1), columns * z : columns * (z + 1)]
                    canvas[:, :, i * low + y, j * narrow + z] = cell.mean(dim=(2, 3))
    return canvas


@pytest.mark.parametrize(
    ("num_streams", "active", "grid"),
    [(1, 1, (1, 1)), (2, 2, (1, 2)), (4, 3, (2, 2)), (4, 1, (1, 1)), (6, 4, (2, 3))],
)
def test_shrunk_inputs_fill_a_canvas_of_the_size_of_one(num_streams, active, grid):
    tiles = ShrunkTiles(num_streams)
    x = torch.randn(2, active, 3, 4, 12)
    assert tiles.grid(active) == grid
    assert_close(tiles(x), shrunk_by_hand(x, *grid))
    small = F.avg_pool2d(x.flatten(0, 1), grid).unflatten(0, (2, active))
    places = tiles.split(tiles(x), active)
    assert_close(average_copies(places, active), small)  # places of the same input agree


def test_maps_that_have_no_whole_tiles_are_refused():
    with pytest.raises(ValueError, match="7x8 do not shrink to 2x2 tiles"):
        ShrunkTiles(4)(torch.randn(1, 4, 3, 7, 8))
    with pytest.raises(ValueError, match="3x4 positions does not divide into 2x2 tiles"):
        ShrunkTiles(4).split(torch.randn(1, 3, 3, 4), 4)
