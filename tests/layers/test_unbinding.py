import pytest
import torch
from torch.testing import assert_close

from mimonets.layers import StreamUnbinding


def test_each_stream_has_its_own_matrix_and_copies_are_averaged():
    layer = StreamUnbinding(5, num_streams=3)
    torch.nn.init.normal_(layer.bias)
    pooled = torch.randn(2, 5)
    answers = [torch.relu(pooled @ w.T + b) for w, b in zip(layer.weight, layer.bias, strict=True)]
    assert_close(layer(pooled, 3), torch.stack(answers, dim=1))
    averaged = [(answers[0] + answers[2]) / 2, answers[1]]
    assert_close(layer(pooled, 2), torch.stack(averaged, dim=1))


def test_the_relu_is_an_option():
    layer = StreamUnbinding(5, num_streams=2, relu=False)
    assert (layer(torch.randn(50, 5), 2) < 0).any()
    assert (StreamUnbinding(5, num_streams=2)(torch.randn(50, 5), 2) >= 0).all()


def test_the_authors_start_is_smaller_and_has_a_bias():
    generator = torch.Generator().manual_seed(0)
    ours = StreamUnbinding(64, 16, generator=generator)
    theirs = StreamUnbinding(64, 16, start="fan-out", generator=generator)
    assert float(ours.weight.detach().std()) == pytest.approx(0.125, rel=0.02)
    assert not ours.bias.any()
    assert float(theirs.weight.detach().std()) == pytest.approx(0.0442, rel=0.02)
    assert 0.12 < float(theirs.bias.detach().abs().max()) <= 1 / 8
