import dataclasses

import pytest

from mimonets import MIMOConvConfig, WideIsoNetConfig, WideResNetConfig


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"depth": 11}, ["depth=11 does not split", "10, 16 or 28"]),
        ({"depth": 4}, ["depth=4 must be a whole number of at least 10"]),
        ({"width": 0}, ["width=0 must be a whole number of at least 1"]),
        ({"width": 2.5}, ["width=2.5"]),
        ({"num_streams": True}, ["num_streams=True"]),
        ({"image_size": 3}, ["image_size=3 must be a whole number of at least 4"]),
        ({"activation": "gelu"}, ["activation='gelu' is not known", "relu, prelu, srelu"]),
        ({"binding": "xor"}, ["choose from hrr, mbat"]),
        ({"stream_keys": "ternary"}, ["choose from gaussian, unitary, bipolar"]),
        ({"width": 0, "num_streams": 0, "binding": 1}, ["width=0", "num_streams=0", "binding=1"]),
    ],
)
def test_nonsense_is_refused_with_every_mistake_named(settings, messages):
    with pytest.raises(ValueError, match="MIMOConvConfig") as error:
        MIMOConvConfig(**settings)
    for message in messages:
        assert message in str(error.value)


def test_defaults_are_the_papers():
    config = MIMOConvConfig()
    assert (config.depth, config.width, config.stem_maps, config.features) == (28, 10, 64, 640)
    assert (config.activation, config.binding, config.stream_keys) == ("prelu", "hrr", "gaussian")
    assert WideResNetConfig().stem_maps == 16
    assert WideIsoNetConfig().activation == "prelu"


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MIMOConvConfig().width = 3
