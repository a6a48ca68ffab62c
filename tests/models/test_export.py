"""torch.export and torch.compile, on a network small enough to compile in a test."""

import pytest
import torch
from torch.testing import assert_close

from mimonets import MIMOConv, MIMOConvConfig

CONFIG = MIMOConvConfig(depth=10, width=1, initial_width=1, num_streams=4, num_classes=5)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return MIMOConv(CONFIG).eval()


@pytest.mark.parametrize("active", [1, 3, 4])
def test_export_gives_the_same_answers_for_two_or_more_groups(model, active):
    example = torch.randn(3 * active, 3, 8, 8)
    groups = torch.export.Dim("groups", min=2, max=64)
    program = torch.export.export(
        model,
        (example,),
        {"active_streams": active},
        dynamic_shapes={"images": {0: active * groups}, "active_streams": None},
    )
    for batch in (2 * active, 5 * active):
        images = torch.randn(batch, 3, 8, 8)
        found = program.module()(images, active_streams=active)
        assert_close(found, model(images, active_streams=active))


def test_export_of_a_short_batch_keeps_all_answers(model):
    images = torch.randn(6, 3, 8, 8)
    program = torch.export.export(model, (images,))
    assert_close(program.module()(images), model(images))


@pytest.mark.timeout(240)
def test_compile_gives_the_same_answers(model):
    compiled = torch.compile(model, fullgraph=True)
    images = torch.randn(6, 3, 8, 8)
    with torch.inference_mode():
        assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)
