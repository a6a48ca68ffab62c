import pytest
import torch
from torch import nn
from torch.testing import assert_close

from mimonets import MIMOConvConfig, WideIsoNet, WideIsoNetConfig, WideResNet, WideResNetConfig
from mimonets.layers import SkipScale, StreamBatchNorm, isometry_penalty


def small(**settings):
    return WideResNetConfig(**{"depth": 10, "width": 1, "num_classes": 7, **settings})


def residual_net_by_hand(model, images):
    """Write the forward pass of a WideResNet-16 out in plain PyTorch."""

    def pre(block, x):
        norm = block.norm
        x = nn.functional.batch_norm(
            x, norm.running_mean[0], norm.running_var[0], norm.weight, norm.bias
        )
        return torch.relu(x)

    x = model.stem(images)
    for index, block in enumerate(model.trunk.blocks):
        stride = 2 if index in (2, 4) else 1
        y = nn.functional.conv2d(pre(block.pre1, x), block.conv1.weight, stride=stride, padding=1)
        y = nn.functional.conv2d(pre(block.pre2, y), block.conv2.weight, padding=1)
        if block.shortcut is not None:
            x = nn.functional.conv2d(x, block.shortcut.weight, stride=stride)
        x = x + y
    return model.classifier(pre(model.trunk.final, x).mean(dim=(2, 3)))


def test_the_network_is_what_the_paper_describes():
    model = WideResNet(small(depth=16, width=2)).eval()
    for norm in model.modules():
        if isinstance(norm, StreamBatchNorm):
            nn.init.uniform_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
    images = torch.randn(3, 3, 13, 10)
    assert_close(model(images), residual_net_by_hand(model, images))
    # The first block widens 16 to 32 maps, the first blocks of later stages stride.
    projects = [block.shortcut is not None for block in model.trunk.blocks]
    assert projects == [True, False, True, False, True, False]


def test_wideresnet_28_10_has_the_known_number_of_parameters():
    with torch.device("meta"):
        model = WideResNet(WideResNetConfig())
    # Zagoruyko & Komodakis report 36.5 M; ours has a batch norm more, after the first layer.
    assert sum(p.numel() for p in model.parameters()) == 36_536_884 + 2 * 16


@pytest.mark.parametrize("size", [(4, 4), (5, 7), (20, 20), (32, 32)])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_image_that_survives_two_stridings_works(size, channels):
    model = WideResNet(small(in_channels=channels)).eval()
    assert model(torch.randn(2, channels, *size)).shape == (2, 7)


@pytest.mark.parametrize("activation", ["relu", "prelu", "srelu"])
def test_every_activation_trains(activation):
    model = WideResNet(small(activation=activation))
    model(torch.randn(4, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_skip_init_starts_as_the_skip_connections_alone():
    model = WideResNet(small(skip_init=True)).eval()
    assert sum(isinstance(layer, SkipScale) for layer in model.modules()) == 3
    x = model.stem(torch.randn(2, 3, 8, 8))
    assert_close(model.trunk.blocks[0](x), x)


def test_dirac_init_starts_the_trunk_without_isometry_penalty():
    model = WideResNet(small(dirac_init=True))
    assert model.isometry_penalty() == 0


def test_shortcut_norm_and_final_norm_are_options():
    model = WideResNet(small(shortcut_norm=True, final_norm=False))
    assert model.trunk.final is None
    assert [block.shortcut_norm is None for block in model.trunk.blocks] == [True, False, False]
    assert model(torch.randn(4, 3, 8, 8)).shape == (4, 7)


def test_the_isometry_penalty_covers_the_trunk_and_only_the_trunk():
    model = WideIsoNet(WideIsoNetConfig(depth=10, width=1))
    convolutions = [layer for layer in model.trunk.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 6 + 2  # two per block, and the shortcuts of stages two and three
    expected = sum(isometry_penalty(layer.weight, layer.stride[0]) for layer in convolutions)
    assert_close(model.isometry_penalty(), expected)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 8, 8), r"\(batch, 3, height, width\), but got \(2, 1, 8, 8\)"),
        (torch.zeros(3, 8, 8), r"Add a batch axis: images.unsqueeze\(0\)"),
        (torch.zeros(0, 3, 8, 8), "empty batch.*at least one image"),
        (torch.zeros(2, 3, 8, 3), "8x3 do not survive two stridings.*at least 4x4"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"uint8.*images.to\(torch.float32\) / 255"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.float64), "float64.*images.to.*autocast"),
    ],
)
def test_what_is_no_batch_of_images_is_refused(images, message):
    with pytest.raises(ValueError, match=message):
        WideResNet(small())(images)


def test_a_plain_network_has_only_one_mode():
    model = WideResNet(small()).eval()
    images = torch.randn(2, 3, 8, 8)
    assert_close(model(images, active_streams=1), model(images))
    with pytest.raises(ValueError, match="active_streams=2 does not fit 1"):
        model(images, active_streams=2)


def test_a_config_of_another_model_is_refused():
    with pytest.raises(
        ValueError, match="WideResNet takes a WideResNetConfig, not a MIMOConvConfig"
    ):
        WideResNet(MIMOConvConfig())
