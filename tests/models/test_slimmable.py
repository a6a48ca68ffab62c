import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from mimonets import (
    SlimmableWideResNet,
    SlimmableWideResNetConfig,
    WideResNet,
    WideResNetConfig,
    load,
    save,
)
from mimonets.evaluation import count_macs
from mimonets.models import FixedAt, MultipleInput, find_point
from mimonets.training import train
from mimonets.training.step import plan_step
from small_networks import randomise
from training.tiny import TinyBatches, tiny_config


def small(**settings):
    return SlimmableWideResNetConfig(
        **{"depth": 10, "width": 2, "num_classes": 5, "image_size": 16, "pool": 2, **settings}
    )


def plain_part(model, fraction):
    """Copy the first maps of every layer into a WideResNet of that width: by hand."""
    point = model.config.widths.index(fraction)
    width = {1.0: 2, 0.5: 1}[fraction]
    plain = WideResNet(WideResNetConfig(depth=10, width=width, num_classes=5, pool=2))

    def fill(target, source):
        target.data.copy_(source[tuple(slice(0, size) for size in target.shape)])

    def fill_norm(target, source):
        for name in ("weight", "bias"):
            fill(getattr(target, name), getattr(source, name))
        target.running_mean.view(-1).copy_(source.running_mean)
        target.running_var.view(-1).copy_(source.running_var)

    fill(plain.stem[0].weight, model.stem.weight)
    fill_norm(plain.stem[1], model.stem_norm[point])
    for target, source in zip(plain.trunk.blocks, model.trunk, strict=True):
        fill_norm(target.pre1.norm, source.norm1[point])
        fill_norm(target.pre2.norm, source.norm2[point])
        fill(target.conv1.weight, source.conv1.weight)
        fill(target.conv2.weight, source.conv2.weight)
        if source.shortcut is not None:
            fill(target.shortcut.weight, source.shortcut.weight)
    fill_norm(plain.trunk.final.norm, model.final_norm[point])
    fill(plain.classifier.weight, model.classifier.weight)
    fill(plain.classifier.bias, model.classifier.bias)
    return plain.eval()


def lived_in(config):
    return randomise(SlimmableWideResNet(config))


def test_a_width_is_the_network_of_the_first_feature_maps():
    # The stem keeps its 16 maps in plain_part, so the widths of the stem must agree: 32 and 16.
    model = lived_in(small(initial_width=1, widths=(1.0,), shrinks=(1,)))
    images = torch.randn(3, 3, 16, 16)
    assert_close(model(images), plain_part(model, 1.0)(images))


def test_half_the_width_uses_half_of_every_layer():
    model = lived_in(small(initial_width=2, widths=(1.0, 0.5), shrinks=(1, 1)))
    images = torch.randn(3, 3, 16, 16)
    assert_close(model(images, point=2), plain_part(model, 0.5)(images))


def test_maps_that_no_gear_uses_have_no_weights():
    torch.manual_seed(0)
    half = SlimmableWideResNet(small(initial_width=2, widths=(0.5, 0.25), shrinks=(1, 1))).eval()
    whole = SlimmableWideResNet(small(width=1, widths=(1.0, 0.5), shrinks=(1, 1))).eval()
    whole.load_state_dict(half.state_dict())  # of the same shapes, or this would fail
    images = torch.randn(2, 3, 16, 16)
    for point in (1, 2):
        assert_close(half(images, point=point), whole(images, point=point))


def test_a_shrink_is_the_network_on_averaged_images():
    model = lived_in(small(widths=(1.0, 1.0), shrinks=(1, 2)))
    images = torch.randn(3, 3, 16, 16)
    averaged = images.unflatten(3, (8, 2)).unflatten(2, (8, 2)).mean(dim=(3, 5))
    twin = lived_in(small(widths=(1.0, 1.0), shrinks=(1, 1)))
    twin.load_state_dict(model.state_dict())
    assert_close(model(images, point=2), twin(averaged, point=2))


def test_gears_have_statistics_of_their_own():
    model = SlimmableWideResNet(small())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(4, 3, 16, 16), point=2)
    for name, value in model.state_dict().items():
        if "running_mean" in name:
            point = int(name.split(".")[-2])
            assert torch.equal(value, before[name]) == (point != 1), name


@pytest.mark.parametrize("point", [1, 2, 3])
def test_a_fixed_point_is_a_network_like_any_other(point):
    model = lived_in(small(shrinks=(1, 1, 2)))
    fixed = FixedAt(model, find_point(model, point))
    assert isinstance(fixed, MultipleInput)
    images = torch.randn(2, 3, 16, 16)
    assert_close(fixed(images, active_streams=1), model(images, point=point))
    with FlopCounterMode(display=False) as counter:
        fixed(fixed.example_inputs(1))
    assert count_macs(fixed).plain == counter.get_total_flops() // 2


def test_points_cost_less_and_less():
    model = SlimmableWideResNet(small(widths=(1.0, 0.5, 0.5), shrinks=(1, 1, 2)))
    costs = [count_macs(model, point).paper for point in (1, 2, 3)]
    assert costs[0] > 3 * costs[1] > 9 * costs[2]


def test_it_is_saved_and_loaded(tmp_path):
    model = lived_in(small())
    save(model, tmp_path)
    images = torch.randn(2, 3, 16, 16)
    assert_close(load(tmp_path).eval()(images, point=3), model(images, point=3), rtol=0, atol=0)


def test_training_draws_a_gear_for_every_step(tmp_path):
    config = small(in_channels=1, num_classes=3, image_size=8)
    model = SlimmableWideResNet(config)
    drawn = [plan_step(tiny_config(), model, step, 60).point.number for step in range(60)]
    assert {point: drawn.count(point) > 10 for point in (1, 2, 3)} == {1: True, 2: True, 3: True}
    before = [norm.running_mean.clone() for norm in model.stem_norm]
    train(model, TinyBatches(size=4), tiny_config(epochs=4, isometry=0), run_dir=tmp_path)
    for norm, mean in zip(model.stem_norm, before, strict=True):
        assert not torch.equal(norm.running_mean, mean)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"widths": (1.0, 0.5)}, "must be equally long"),
        ({"widths": (1.0, 0.5, 1.5)}, "each a number > 0 and <= 1"),
        ({"widths": 0.5}, "widths=0.5 must be a list, each a number"),
        ({"widths": (1.0, "half", 0.5)}, "each a number > 0 and <= 1"),
        ({"shrinks": (1, 1, 1.5)}, "must be a list, each an integer >= 1"),
        ({"shrinks": (1, 2, 8)}, "leave 4 of 16 pixels"),
        ({"stem_stride": 2}, "stem_stride=2 is not for slimmable networks"),
    ],
)
def test_gears_that_make_no_sense_are_refused(settings, problem):
    with pytest.raises(ValueError, match=problem):
        small(**settings)


def test_images_too_small_for_a_gear_are_refused():
    model = SlimmableWideResNet(small(widths=(1.0, 1.0), shrinks=(1, 4)))
    with pytest.raises(
        ValueError, match="12x15 are too small for point 2.*shrinks them by 4.* 16 "
    ):
        model(torch.zeros(1, 3, 12, 15), point=2)


@pytest.mark.parametrize("point", [0, 4, True, "fast"])
def test_a_point_that_does_not_exist_is_refused(point):
    with pytest.raises(ValueError, match="point=.* is not one of this network's.*1 .*to 3"):
        SlimmableWideResNet(small())(torch.zeros(1, 3, 16, 16), point=point)
