"""One protocol for everything that takes several inputs, ours or not."""

import pytest
import torch
from torch import nn

import mimonets as mn
from mimonets.models import MODELS, MultipleInput, alternatives_of, cost_part_of, name_of


class Foreign(nn.Module):
    """A network of somebody else that keeps to the protocol."""

    num_streams = 1
    input_spec = None

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 2))

    def forward(self, x, *, active_streams=None):
        return self.inner(x)

    def example_inputs(self, batch_size):
        return torch.randn(batch_size, 3)


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_keeps_to_the_protocol(kind):
    config = MODELS[kind].config_class()
    with torch.device("meta"):
        model = MODELS[kind](config)
        inputs = model.example_inputs(2)
    assert isinstance(model, MultipleInput)
    assert model.input_spec is None
    spec = model.default_input_spec()
    assert spec.shape == inputs.shape[1:]
    assert spec.kind == ("image" if inputs.is_floating_point() else "tokens")
    model.input_spec = spec
    assert model.input_spec is spec


def test_networks_of_others_need_only_four_names():
    model = Foreign()
    assert isinstance(model, MultipleInput)
    assert not isinstance(nn.Linear(3, 2), MultipleInput)
    assert name_of(model) == "Foreign"
    assert alternatives_of(model) == []
    assert cost_part_of(model, "inner.0") == "inner"


@pytest.mark.parametrize(
    ("model", "title"),
    [
        (mn.MIMOConvConfig(num_streams=2), "MIMOConv-28-10 (N=2)"),
        (mn.WideIsoNetConfig(depth=10), "WideIsoNet-10-10"),
        (mn.DataMUXConvConfig(), "DataMUXConv (N=4)"),
        (mn.TransformerConfig(), "Transformer"),
        (mn.MIMOFormerConfig(grid=(2, 3)), "MIMOFormer (2x3, attention)"),
        (mn.DataMUXFormerConfig(), "DataMUXFormer (N=2, index)"),
    ],
)
def test_every_model_has_a_title_as_in_the_paper(model, title):
    with torch.device("meta"):
        assert name_of(mn.models.registry.model_class_for(model)(model)) == title


def test_what_one_would_run_instead():
    with torch.device("meta"):
        conv = mn.MIMOConv(mn.MIMOConvConfig(depth=10, width=2, num_streams=3))
        former = mn.MIMOFormer(mn.MIMOFormerConfig(heads=2))
        datamux = mn.DataMUXFormer(mn.DataMUXFormerConfig(heads=2))
        lenet = mn.DataMUXConv(mn.DataMUXConvConfig())
    alone, plain = alternatives_of(conv)
    assert (alone.num_streams, alone.depth, alone.width) == (1, 10, 2)
    assert plain == mn.WideResNetConfig(depth=10, width=2)
    assert alternatives_of(former) == [mn.PerformerConfig(heads=2)]
    assert alternatives_of(datamux) == [mn.TransformerConfig(heads=2)]
    assert alternatives_of(lenet) == [mn.DataMUXConvConfig(num_streams=1)]


def test_layers_are_counted_under_the_rows_of_the_papers_table():
    with torch.device("meta"):
        conv, former = mn.MIMOConv(mn.MIMOConvConfig()), mn.MIMOFormer(mn.MIMOFormerConfig())
    assert cost_part_of(conv, "trunk.blocks.3.conv1") == "trunk"
    assert cost_part_of(former, "blocks.0.to_kv") == "K/Q/V"
    assert cost_part_of(former, "blocks.0.mlp.0") == "MLPs"
    assert set(former.cost_parts) >= {"K/Q/V", "MLPs"}
