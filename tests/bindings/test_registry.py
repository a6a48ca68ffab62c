"""Bindings by name: in both kinds of networks, under older names, and in older files."""

import json
import re
import warnings

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import mimonets as mn
from mimonets.bindings import BINDINGS, Binding, BindingSettings, make_binding
from mimonets.models import SuperposedConfig
from small_networks import lived_in, small

IMAGES = torch.randn(5, 1, 8, 8)
WHERE = {"num_streams": 2, "bind_after": "0", "unbind_before": "2", "example": IMAGES[:1]}
KEYS = {"hadamard": {"stream_keys": "bipolar"}}


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


@pytest.mark.parametrize("name", BINDINGS)
@pytest.mark.parametrize("active", [1, 2])
def test_every_binding_joins_and_keeps_apart_as_it_says(name, active):
    binding = make_binding(name, BindingSettings(num_streams=2, bound_maps=6))
    x = torch.randn(3, active, 6, 4, 4)
    joined = binding(binding.views(x, active), active)
    assert joined.shape[:2] == (3, 6)
    assert (binding.split(joined, active).ndim == 5) is binding.keeps_apart
    assert binding.penalty().isfinite()
    alone = Binding.join_alone(binding, x, active)  # with zeros in the others' places
    assert_close(binding.join_alone(x, active), alone)


@pytest.mark.parametrize("name", BINDINGS)
def test_every_binding_is_for_both_kinds_of_networks(name):
    conv = lived_in(small(binding=name, **KEYS.get(name, {})))
    own = mn.superpose(network(), binding=name, **WHERE).eval()
    for active in (1, 2):
        assert conv(torch.randn(5, 3, 8, 8), active_streams=active).shape == (5, 5)
        assert own(IMAGES, active_streams=active).shape == (5, 8)
    assert BINDINGS[name].summary in own.summary


def test_older_names_are_those_of_today_with_a_warning():
    with pytest.warns(DeprecationWarning, match="binding='mbat' is now binding='matrix'"):
        assert small(binding="mbat") == small(binding="matrix")
    for old, new in (("matrix", "shared"), ("classifier", "stream")):
        with pytest.warns(DeprecationWarning, match=f"unbinding='{old}' is now readout='{new}'"):
            assert SuperposedConfig(unbinding=old).readout == new
    with pytest.warns(DeprecationWarning, match="readout='shared'"):
        mn.superpose(network(), unbinding="matrix", **WHERE)
    with pytest.raises(ValueError, match="unbinding='x' is not known: choose readout='shared'"):
        SuperposedConfig(unbinding="x")
    with pytest.warns(DeprecationWarning, match="MBATBinding is now mimonets.bindings.Matrix"):
        assert mn.bindings.MBATBinding is BINDINGS["matrix"]


def change_config(folder, **changes):
    path = folder / "config.json"
    description = json.loads(path.read_text())
    description["config"].update(changes)
    path.write_text(json.dumps(description))


def test_older_checkpoints_load_without_a_warning(tmp_path):
    conv = lived_in(small(binding="matrix"))
    change_config(mn.save(conv, tmp_path / "conv"), binding="mbat")
    layers = [nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 4)]
    own = mn.superpose(nn.Sequential(*layers), readout="stream", **WHERE).eval()
    change_config(mn.save(own, tmp_path / "own"), unbinding="classifier")
    former = mn.MIMOFormer(mn.MIMOFormerConfig(depth=1)).eval()
    change_config(mn.save(former, tmp_path / "former"), shared_keys=False)
    fresh = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mn.load(tmp_path / "conv").config == conv.config
        assert_close(mn.load(tmp_path / "own", network=fresh)(IMAGES), own(IMAGES))
        assert mn.load(tmp_path / "former").config == former.config


@pytest.mark.parametrize(
    ("model", "changes", "what"),
    [
        (lambda: lived_in(small()), {"binding": "tied"}, "binding='tied' was removed"),
        (
            lambda: mn.superpose(network(), **WHERE),
            {"binding": "tied"},
            "binding='tied' was removed",
        ),
        (
            lambda: mn.MIMOFormer(mn.MIMOFormerConfig(depth=1)),
            {"shared_keys": True},
            "shared_keys was removed",
        ),
    ],
)
def test_what_is_gone_names_the_last_version_that_had_it(model, changes, what, tmp_path):
    change_config(mn.save(model(), tmp_path / "old"), **changes)
    message = f"config.json does not describe a model: .*{re.escape(what)}: mimonets 0.2.0 is the"
    with pytest.raises(ValueError, match=message):
        mn.load(tmp_path / "old")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"binding": "hadamard"}, "stream_keys='gaussian' do not fit binding='hadamard'"),
        ({"stream_keys": "slots"}, "choose from gaussian, unitary, bipolar, or set binding='mat"),
        ({"slow": "full"}, "slow='full' is for binding='tiles': leave it out with binding='hrr'"),
        ({"binding": ["hrr"]}, "is not known: choose from hrr, matrix, hadamard, tiles"),
    ],
)
def test_settings_that_do_not_fit_a_binding_say_which_do(settings, message):
    with pytest.raises(ValueError, match=message):
        small(**settings)
