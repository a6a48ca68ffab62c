"""Sequence models on a GPU, as far as a machine without one can tell.

Fake tensors of device cuda refuse to meet those of another device. Tensors of device meta do too,
have a backward pass, and have no values: whatever waits for one raises.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import mimonets as mn
from fake_gpu import fake_gpu, move_to_fake_gpu

SMALL = {
    "vocab_size": 11,
    "max_length": 9,
    "num_classes": 3,
    "depth": 1,
    "heads": 2,
    "head_dim": 5,
    "dim": 6,
    "hidden_dim": 7,
}
KINDS = {
    "transformer": (mn.Transformer, mn.TransformerConfig, {}),
    "performer": (mn.Performer, mn.PerformerConfig, {}),
    "datamux-index": (mn.DataMUXFormer, mn.DataMUXFormerConfig, {"num_streams": 3}),
    "datamux-slots": (
        mn.DataMUXFormer,
        mn.DataMUXFormerConfig,
        {"num_streams": 3, "demux": "slots"},
    ),
    **{
        extent: (mn.MIMOFormer, mn.MIMOFormerConfig, {"superpose": extent, "grid": (2, 3)})
        for extent in ("attention", "attention+mlp", "attention+mlp+qkv")
    },
}
every_kind = pytest.mark.parametrize("kind", KINDS)
SETTINGS = {
    "plain": {},
    "causal": {"causal": True, "head": "next_token"},
    "fixed-cls": {"pooling": "cls", "positions": "fixed"},
    "pair": {"head": "pair"},
}
every_setting = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
FEATURES = ("relu", "softmax", "dpfp")


def build(kind, settings):
    """Make a model; without further settings, one with each feature map that it can have."""
    model_class, config_class, more = KINDS[kind]
    options = {**SMALL, **more, **settings}
    names = FEATURES if hasattr(config_class, "features") and not settings else ()
    maps = [{"features": name} for name in names] or [{}]
    return [model_class(config_class(**options, **chosen)) for chosen in maps]


def inputs(settings, device):
    shape = (7, 2, 9) if settings.get("head") == "pair" else (7, 9)
    tokens = torch.zeros(shape, dtype=torch.long, device=device)
    return tokens, torch.ones(shape, dtype=torch.bool, device=device)


class Invert(TorchFunctionMode):
    """Let a build without CUDA invert masks of a fake GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.logical_not if function is torch.Tensor.__invert__ else function
        return function(*args, **(kwargs or {}))


@every_kind
@every_setting
def test_a_forward_pass_stays_on_the_gpu(kind, settings):
    models = build(kind, settings)
    with fake_gpu(), Invert():
        tokens, mask = inputs(settings, "cuda")
        for model in map(move_to_fake_gpu, models):
            assert model(tokens).device.type == "cuda"
            assert model(tokens, mask=mask, active_streams=1).device.type == "cuda"


@every_kind
@every_setting
def test_a_training_step_waits_for_no_value(kind, settings):
    tokens, mask = inputs(settings, "meta")
    with torch.device("meta"):
        models = build(kind, settings)
    for model in models:
        model(tokens).square().mean().backward()
        model(tokens, mask=mask, active_streams=1).square().mean().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())


def test_values_that_are_waited_for_raise_on_the_meta_device():
    """Otherwise the test before this one could not fail."""
    with pytest.raises(RuntimeError, match="meta"):
        bool(torch.zeros(1, device="meta").sum() > 0)


class Operations(TorchDispatchMode):
    """Count the operations, each of which launches a kernel on a GPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["performer", "attention", "attention+mlp", "attention+mlp+qkv"])
def test_a_gpu_launches_as_many_kernels_for_a_long_sequence_as_for_a_short_one(kind):
    counts = []
    for length in (64, 4096):
        settings = {"max_length": length, "heads": 8, "head_dim": 64}
        model = build(kind, settings)[0]
        with fake_gpu():
            move_to_fake_gpu(model)
            tokens = torch.zeros(32, length, dtype=torch.long, device="cuda")
            with Operations() as operations:
                model(tokens)
        counts.append(operations.count)
    assert counts[0] == counts[1]
