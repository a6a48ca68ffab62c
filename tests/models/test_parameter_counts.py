"""The numbers of parameters that the paper states."""

import pytest
import torch
from torch import nn

from mimonets.models.registry import model_class_for
from mimonets.recipes import load_recipe


def make(recipe):
    config = load_recipe(recipe).model
    with torch.device("meta"):
        return model_class_for(config)(config)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_mimoconv_has_the_papers_parameters_beside_its_unbinding(streams):
    """Appendix A: 36.54 M in the other layers, which are the convolutions and the classifier."""
    model = make(f"cifar10-mimoconv-n{streams}")
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sum(count(layer) for layer in layers) == 36_539_338
    # The paper leaves out batch norm, slopes and keys, which are 0.07 % more.
    others = count(model) - count(model.unbinding)
    assert others == 36_539_338 + 19_008 + 128 + 8_384 + 64 * streams


def test_unbinding_has_the_papers_parameters_per_stream():
    model = make("cifar10-mimoconv-n4")
    assert model.unbinding.weight[0].numel() == 409_600
    assert count(model.unbinding) == 4 * (409_600 + 640)


def test_networks_of_the_synthetic_tasks_have_blocks_of_the_papers_size():
    """Two blocks of embedding 32 and hidden 128, whatever the attention: keys are no parameters.

    The paper states 30.5 K for the SimpleLM that DataMUX is built from. Ours has 27.5 K; the
    paper does not say what the others are.
    """
    for network in ("transformer", "performer", "mimoformer-2x2"):
        model = make(f"recall-{network}-source")
        assert count(model.blocks) == 2 * (4 * (32 * 32 + 32) + 2 * 32 * 128 + 128 + 32 + 4 * 32)
        assert count(model) == 27_488
