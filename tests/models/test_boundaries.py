"""suggest_boundaries() finds where a network can carry superpositions, or says why it cannot."""

import pytest
import torch
from torch import nn

import mimonets as mn
from small_networks import UNet


def plain_cnn():
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


class Block1d(nn.Module):
    def __init__(self, maps):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv1d(maps, maps, 3, padding=1), nn.BatchNorm1d(maps)
        self.conv2, self.norm2 = nn.Conv1d(maps, maps, 3, padding=1), nn.BatchNorm1d(maps)

    def forward(self, x):
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


class ResNet1d(nn.Module):
    def __init__(self, maps=24):
        super().__init__()
        self.stem = nn.Conv1d(2, maps, 7, padding=3)
        self.blocks = nn.Sequential(Block1d(maps), Block1d(maps))
        self.head = nn.Linear(maps, 3)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean(dim=-1))


def wide_resnet():
    return mn.WideResNet(mn.WideResNetConfig(depth=10, width=1, image_size=16, num_classes=5))


NETWORKS = {
    "plain CNN": (plain_cnn, (1, 16, 16), (10,)),
    "WideResNet": (wide_resnet, (3, 16, 16), (5,)),
    "U-Net": (UNet, (1, 16, 16), (1, 16, 16)),
    "1-D ResNet": (ResNet1d, (2, 40), (3,)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_pair_is_found_and_works(name):
    make, shape, answer = NETWORKS[name]
    network, example = make().eval(), torch.randn(2, *shape)
    before, modules = network(example), list(network.modules())
    suggestions = mn.suggest_boundaries(network, example)
    assert list(network.modules()) == modules  # as it was
    torch.testing.assert_close(network(example), before)
    best = suggestions[0]
    assert best.share > 0.5
    assert best.saving > 1.3
    assert best.reason.startswith(f"{best.share:.0%} of the cost")
    model = mn.superpose(network, num_streams=4, example=example)
    assert model.config.bind_after == best.bind_after
    for active in (4, 3, 1):
        assert model(torch.randn(7, *shape), active_streams=active).shape == (7, *answer)


def test_expected_macs_are_those_that_are_counted():
    from mimonets.evaluation import count_macs

    for make in (plain_cnn, lambda: UNet(64)):
        network, example = make(), torch.randn(1, 1, 16, 16)
        best = mn.suggest_boundaries(network, example)[0]
        model = mn.superpose(network, num_streams=4, example=example)
        assert count_macs(model).plain == pytest.approx(best.macs, rel=0.05)


def test_features_of_a_1d_network_are_bound_channel_by_channel():
    model = mn.superpose(ResNet1d(), num_streams=2, example=torch.randn(1, 2, 40))
    assert model.network.get_submodule(model.config.bind_after).binding.stream_keys.shape == (2, 24)
    longer = torch.randn(4, 2, 56)  # keys belong to features, not to positions
    assert model(longer).shape == (4, 3)


def test_tiles_are_suggested_where_maps_divide():
    network, example = plain_cnn().eval(), torch.randn(2, 1, 16, 16)
    before = network(example)
    best = mn.suggest_boundaries(network, example, binding="tiles")[0]
    assert best.unbind_before in ("3", "4")
    model = mn.superpose(network, num_streams=4, binding="tiles", example=example)
    torch.testing.assert_close(model(example, active_streams=1), before)  # before any training


def test_names_win():
    example = torch.randn(1, 1, 16, 16)
    model = mn.superpose(
        plain_cnn(), num_streams=2, bind_after="2", unbind_before="5", example=example
    )
    assert (model.config.bind_after, model.config.unbind_before) == ("2", "5")


class AroundEverything(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x):
        return self.two(torch.relu(self.one(x))) + x


def test_where_there_is_no_pair_it_says_why():
    narrow = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 2))
    with pytest.raises(ValueError, match="at most 2 wide.*fewer streams"):
        mn.suggest_boundaries(narrow, torch.randn(1, 1, 8, 8))
    with pytest.raises(ValueError, match=r"goes? around.*bind_after"):
        mn.suggest_boundaries(AroundEverything(), torch.randn(1, 1, 8, 8))
    with pytest.raises(ValueError, match="fails on the example"):
        mn.suggest_boundaries(plain_cnn(), torch.randn(1, 3, 8, 8))


def of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    small = {"num_labels": 3}
    if kind == "ResNet":
        sizes = {"embedding_size": 32, "hidden_sizes": [32, 64], "depths": [1, 1]}
        config = transformers.ResNetConfig(**sizes, layer_type="basic", **small)
        return transformers.ResNetForImageClassification(config), torch.randn(2, 3, 32, 32)
    if kind == "ConvNeXt":
        sizes = {"hidden_sizes": [32, 64], "depths": [2, 2], "num_stages": 2}
        config = transformers.ConvNextConfig(**sizes, **small)
        return transformers.ConvNextForImageClassification(config), torch.randn(2, 3, 32, 32)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    sizes["intermediate_size"] = 64
    if kind == "ViT":
        config = transformers.ViTConfig(image_size=32, patch_size=4, **sizes, **small)
        return transformers.ViTForImageClassification(config), torch.randn(2, 3, 32, 32)
    config = transformers.BertConfig(vocab_size=50, **sizes, **small)
    return transformers.BertForSequenceClassification(config), torch.randint(50, (2, 11))


@pytest.mark.parametrize("kind", ["ResNet", "ConvNeXt", "ViT", "BERT"])
def test_networks_of_transformers_have_a_pair(kind):
    network, example = of_transformers(kind)
    best = mn.suggest_boundaries(network, example)[0]
    assert best.share > 0.5, best
    model = mn.superpose(network, num_streams=4, example=example)
    assert model(example.repeat(3, *[1] * (example.ndim - 1))).shape == (6, 3)
