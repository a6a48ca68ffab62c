"""MIMOConv with streams kept apart: tiles on a canvas."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from mimonets import MIMOConv, WideResNet, WideResNetConfig, load, save
from mimonets.evaluation import count_macs
from mimonets.layers import running
from mimonets.vsa import squarest_grid
from small_networks import lived_in
from small_networks import small as small_conv


def small(**settings):
    return small_conv(**({"image_size": 16} | settings))


APART = [
    {"binding": "tiles", "stem_stride": 2},
    {"binding": "tiles", "stem_stride": 2, "bind_after_stage": 2, "pool": 2},
    {"binding": "tiles", "stem_stride": 2, "views": "flips", "bind_after_stage": 1},
    {"binding": "tiles", "stem_stride": 2, "slow": "full", "pool": 2},
]


def run(blocks, x, active):
    with running(active):
        for block in blocks:
            x = block(x)
    return x


def tiled_by_hand(model, images, active):
    """Run tiles group by group and tile by tile, copies averaged."""
    private = model.trunk.private_blocks
    blocks = list(model.trunk.blocks)
    rows, columns = squarest_grid(model.num_streams)
    answers = []
    for start in range(0, len(images), active):
        group = images[start : start + active]
        count = len(group)
        maps = run(blocks[:private], model.stem(group), count)
        height, width = maps.shape[-2:]
        canvas = torch.zeros(1, maps.shape[1], rows * height, columns * width)
        canvas = canvas.to(maps)
        for stream in range(model.num_streams):
            y, x = stream // columns * height, stream % columns * width
            canvas[0, :, y : y + height, x : x + width] = maps[stream % count]
        out = run(blocks[private:], canvas, count)
        height, width = out.shape[-2] // rows, out.shape[-1] // columns
        logits = []
        for stream in range(model.num_streams):
            y, x = stream // columns * height, stream % columns * width
            tile = out[:, :, y : y + height, x : x + width]
            logits.append(model.classifier(model.trunk.pool(tile).flatten()))
        for index in range(count):
            answers.append(torch.stack(logits[index::count]).mean(dim=0))
    return torch.stack(answers)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("active", [1, 2, 3, 4])
def test_tiles_equal_placing_and_cutting_by_hand(stage, active):
    model = lived_in(small(binding="tiles", stem_stride=2, pool=2, bind_after_stage=stage)).double()
    images = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    assert_close(model(images, active_streams=active), tiled_by_hand(model, images, active))


def test_one_tile_is_a_plain_network_at_low_resolution():
    tiled = lived_in(small(binding="tiles", num_streams=1, stem_stride=2, pool=2, final_norm=True))
    plain = WideResNet(
        WideResNetConfig(
            depth=10, width=1, num_classes=5, stem_stride=2, pool=2, activation="prelu"
        )
    )
    plain.load_state_dict(tiled.state_dict())
    images = torch.randn(3, 3, 16, 16)
    assert_close(plain.eval()(images), tiled(images), rtol=0, atol=0)


def test_one_image_at_full_resolution_covers_the_canvas():
    model = lived_in(small(binding="tiles", stem_stride=2, slow="full", pool=2)).double()
    images = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    convolution, norm, relu = model.stem
    padded = nn.functional.pad(images, (1, 2, 1, 2))  # 4x4 filters with stride 1 see 16 positions
    maps = relu(norm(nn.functional.conv2d(padded, convolution.weight)))
    assert maps.shape[-2:] == (16, 16)
    with running(1):
        expected = model.classifier(model.trunk(maps))
    assert_close(model(images, active_streams=1), expected)
    pair = model(images, active_streams=2)  # two of four would be stretched: copies, as ever
    assert_close(pair, torch.cat([tiled_by_hand(model, images[:2], 2), expected[2:]]))


@pytest.mark.parametrize("size", [17, 19])
def test_a_finer_stem_makes_exactly_twice_as_many_positions(size):
    stem = MIMOConv(small(binding="tiles", stem_stride=2)).stem
    images = torch.randn(1, 3, size, size)
    coarse, fine = stem(images), stem(images, 2)
    assert fine.shape[-1] == 2 * coarse.shape[-1]
    inner = stem[0](images), stem[0](images, 2)
    assert_close(inner[1][..., ::2, ::2], inner[0])  # the coarse positions are among the fine ones


@pytest.mark.parametrize("settings", APART, ids=str)
@pytest.mark.parametrize("active", [1, 2, 3, 4])
def test_answers_depend_on_their_own_group_only_and_keep_their_order(settings, active):
    model = lived_in(small(**settings))
    images = torch.randn(9, 3, 16, 16)
    together = model(images, active_streams=active)
    for start in range(0, 9, active):
        group = slice(start, start + active)
        assert_close(model(images[group], active_streams=active), together[group])


@pytest.mark.parametrize("settings", APART, ids=str)
@pytest.mark.parametrize("active", [1, 2, 4])
def test_it_trains_in_every_mode_with_short_groups_and_alone(settings, active):
    model = MIMOConv(small(**settings))
    images = torch.randn(7, 3, 16, 16)
    logits = model(images, active_streams=active)
    with model.warming_up("solo"):
        logits = logits + model(images, active_streams=active)
    loss = logits.square().mean() + model.isometry_penalty() + model.stream_key_penalty()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("settings", APART, ids=str)
def test_alone_no_other_image_matters(settings):
    model = lived_in(small(**settings))
    images = torch.randn(4, 3, 16, 16)
    with model.warming_up("solo"):
        answers = model(images)
        images[1] += 1
        others = model(images)
    assert_close(others[[0, 2, 3]], answers[[0, 2, 3]])
    assert not torch.allclose(others[1], answers[1])


@pytest.mark.parametrize("settings", APART, ids=str)
@pytest.mark.parametrize("active", [1, 2, 4])
def test_macs_agree_with_the_operator_counter(settings, active):
    model = MIMOConv(small(**settings)).eval()
    with FlopCounterMode(display=False) as counter:
        model(model.example_inputs(active), active_streams=active)
    assert count_macs(model, active).plain * active == counter.get_total_flops() // 2


@pytest.mark.parametrize("settings", APART, ids=str)
def test_it_is_saved_and_loaded(settings, tmp_path):
    model = lived_in(small(**settings))
    save(model, tmp_path)
    images = torch.randn(5, 3, 16, 16)
    assert_close(load(tmp_path).eval()(images), model(images), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"binding": "tiles", "stream_keys": "slots"},
            "stream_keys='slots' is for binding='hrr'.*leave it out",
        ),
        (
            {"binding": "tiles", "readout": "stream"},
            "readout='stream' is for binding='hrr'.*leave it out",
        ),
        ({"binding": "tiles", "slow": "full"}, "stem_stride=1 does not divide by 2"),
        ({"binding": "tiles", "slow": "full", "num_streams": 2}, "2 streams have none"),
        ({"views": "shifts"}, "views='shifts' is for binding='tiles': leave it out"),
        ({"bind_after_stage": 3}, "choose 0, 1 or 2"),
        ({"stem_stride": 5}, "stem_stride=5 leaves too little of images of 16x16"),
    ],
)
def test_settings_that_do_not_fit_each_other(settings, problem):
    with pytest.raises(ValueError, match=problem):
        small(**settings)


def test_images_too_small_for_the_stride_are_refused():
    with pytest.raises(ValueError, match="6x6.*stem of stride 2.*at least 8x8"):
        MIMOConv(small(binding="tiles", stem_stride=2))(torch.zeros(4, 3, 6, 6))


@pytest.mark.parametrize("stage", [1, 2])
def test_keys_bind_after_a_stage_too(stage):
    model = lived_in(small(binding="matrix", stream_keys="slots", bind_after_stage=stage))
    images = torch.randn(4, 3, 16, 16)
    maps = model.trunk.before(model.stem(images))
    assert maps.shape[1] == model.binding.stream_keys.shape[-1] == (16, 32)[stage - 1]
    pooled = model.trunk(model.binding(maps.unsqueeze(0)))
    expected = model.classifier(model.unbinding(pooled, 4).flatten(0, 1))
    assert_close(model(images), expected)
