import dataclasses
import re

import pytest

from mimonets import MIMOConvConfig, WideIsoNetConfig, WideResNetConfig
from mimonets._config import Config, integer, number


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"depth": 11}, ["depth=11 does not split", "10, 16 or 28"]),
        ({"depth": 4}, ["depth=4 must be an integer >= 10"]),
        ({"width": 0}, ["width=0 must be an integer >= 1"]),
        ({"width": 2.5}, ["width=2.5"]),
        ({"width": 10**12}, ["width=1000000000000 must be an integer >= 1 and <= 10000000."]),
        ({"depth": 100_000}, ["depth=100000 must be an integer >= 10 and <= 10000."]),
        ({"width": -1}, ["width=-1 must be an integer >= 1."]),
        ({"skip_init": "yes"}, ["skip_init='yes' must be true or false"]),
        ({"num_streams": True}, ["num_streams=True"]),
        ({"image_size": 3}, ["image_size=3 must be an integer >= 4"]),
        ({"activation": "gelu"}, ["activation='gelu' is not known", "relu, prelu, srelu"]),
        ({"binding": "xor"}, ["choose from hrr, matrix, hadamard, tiles"]),
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
    assert WideIsoNetConfig().activation == "relu"


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        MIMOConvConfig().width = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Config):
    steps: int | None = integer(None)
    dropout: float = number(0.1, least=0, below=1)
    clip: float | None = number(None, above=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "Settings: steps=0 must be an integer >= 1, or null."),
        ({"dropout": 1}, "Settings: dropout=1 must be a number >= 0 and < 1."),
        ({"dropout": float("nan")}, "Settings: dropout=nan must be a number >= 0 and < 1."),
        ({"dropout": None}, "Settings: dropout=None must be a number >= 0 and < 1."),
        ({"clip": 0.0}, "Settings: clip=0.0 must be a number > 0, or null."),
        ({"clip": "x" * 100}, f"Settings: clip='{'x' * 56}... must be a number > 0, or null."),
    ],
)
def test_limits_beside_the_fields_are_kept(settings, message):
    Settings(steps=3, dropout=0, clip=2)
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings(**settings)
