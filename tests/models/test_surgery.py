"""What superpose() cannot open is refused at construction, in a sentence that says what to do."""

import re

import pytest
import torch
from torch import nn

import mimonets as mn
from models.own_networks import Residual, Twice, plain_cnn, superposed_cnn


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: superposed_cnn(bind_after="22"), "bind_after='22' names no module of Sequential"),
        (
            lambda: mn.superpose(
                Residual(),
                num_streams=2,
                bind_after="steam",
                unbind_before="head",
                example=torch.randn(1, 1, 8, 8),
            ),
            "did you mean 'stem'",
        ),
        (lambda: superposed_cnn(bind_after="8", unbind_before="2"), "choose a later module"),
        (lambda: superposed_cnn(bind_after="7"), "'7' gives (15, 20): superpositions need feature"),
        (lambda: superposed_cnn(readout="stream", unbind_before="6"), "nn.Linear"),
        (lambda: superposed_cnn(num_streams=0), "num_streams=0 must be an integer >= 1"),
        (lambda: superposed_cnn(binding="sum"), "binding='sum' is not known"),
        (lambda: superposed_cnn(bindng="hrr"), "no setting 'bindng' (did you mean 'binding'?)"),
        (lambda: mn.superpose((nn.Flatten(), "x"), num_streams=2), "not (Flatten, str)"),
        (lambda: mn.superpose("resnet", num_streams=2), "takes a torch.nn.Module, not a str"),
        (lambda: mn.superpose(plain_cnn(), num_streams=1, example=[1]), "example must be a tensor"),
        (
            lambda: mn.superpose(
                Residual(),
                num_streams=2,
                bind_after="first",
                unbind_before="head",
                example=torch.randn(1, 1, 8, 8),
            ),
            "a skip connection or a side input crosses bind_after='first'",
        ),
        (
            lambda: mn.superpose(
                Twice(),
                num_streams=2,
                bind_after="block",
                unbind_before="head",
                example=torch.randn(1, 1, 8, 8),
            ),
            "bind_after='block' runs 2 times in a pass",
        ),
        (
            lambda: mn.superpose(
                Twice(),
                num_streams=2,
                bind_after="stem",
                unbind_before="block",
                example=torch.randn(1, 1, 8, 8),
            ),
            "unbind_before='block' runs 2 times in a pass",
        ),
        (
            lambda: mn.superpose(plain_cnn(), num_streams=2, bind_after="2", unbind_before="8"),
            "pass example=",
        ),
        (
            lambda: mn.superpose(
                plain_cnn(),
                num_streams=2,
                bind_after="2",
                unbind_before="8",
                example=torch.randn(1, 3, 9, 9),
            ),
            "The network itself fails on the example",
        ),
        (
            lambda: mn.superpose(
                nn.Sequential(
                    nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Unflatten(0, (-1, 3)), nn.Linear(144, 2)
                ),
                num_streams=3,
                bind_after="0",
                unbind_before="3",
                example=torch.randn(1, 1, 8, 8),
            ),
            "must keep the batch axis first",
        ),
    ],
)
def test_wrong_use_fails_at_construction_with_a_sentence(make, message):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        make()
    assert "\n" not in str(error.value)
