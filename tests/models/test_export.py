"""torch.export and torch.compile, on a network small enough to compile in a test."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.testing import assert_close

from mimonets import MIMOConv, MIMOConvConfig
from mimonets.layers import StreamBatchNorm, running

CONFIG = MIMOConvConfig(depth=10, width=1, initial_width=1, num_streams=4, num_classes=5)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = MIMOConv(CONFIG)
    for norm in model.modules():
        if isinstance(norm, StreamBatchNorm):  # every mode has statistics of its own
            torch.nn.init.uniform_(norm.running_mean, -0.3, 0.3)
            torch.nn.init.uniform_(norm.running_var, 0.7, 1.3)
            norm.batches_seen.fill_(1)
    return model.eval()


@pytest.mark.parametrize("active", [1, 3, 4])
def test_export_gives_the_same_answers_for_two_or_more_groups(model, active):
    example = torch.randn(3 * active, 3, 8, 8)
    groups = torch.export.Dim("groups", min=2, max=64)
    program = torch.export.export(
        model,
        (example,),
        {"active_streams": active},
        dynamic_shapes={"images": {0: active * groups}, "active_streams": None},
    ).module()
    for batch in (2 * active, 5 * active):
        images = torch.randn(batch, 3, 8, 8)
        found = program(images, active_streams=active)
        assert_close(found, model(images, active_streams=active))


def test_export_of_a_short_batch_keeps_all_answers(model):
    images = torch.randn(6, 3, 8, 8)
    program = torch.export.export(model, (images,))
    assert_close(program.module()(images), model(images))


@pytest.mark.parametrize(
    "modes", [(3, 4, 3), pytest.param((4, 1, 2, 3, 4), marks=pytest.mark.slow)], ids=str
)
def test_a_compiled_model_changes_its_mode_with_the_argument(model, modes):
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    images = torch.randn(12, 3, 8, 8)
    with torch.inference_mode():
        for active in modes:
            wanted = model(images, active_streams=active)
            assert_close(compiled(images, active_streams=active), wanted, rtol=1e-4, atol=1e-5)


def test_a_compiled_trunk_follows_the_mode_around_it(model):
    trunk = torch.compile(model.trunk, fullgraph=True, backend="aot_eager")
    bundles = torch.randn(3, 16, 8, 8)
    with torch.inference_mode():
        for active in (4, 1, 2, 1):
            with running(active):
                assert_close(trunk(bundles), model.trunk(bundles), rtol=1e-4, atol=1e-5)


def test_threads_get_the_modes_they_ask_for(model):
    images = torch.randn(8, 3, 8, 8)
    wanted = {active: model(images, active_streams=active) for active in (1, 2, 3, 4)}

    def many(active):
        return all(
            torch.equal(model(images, active_streams=active), wanted[active]) for _ in range(5)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, [1, 2, 3, 4, 4, 3, 2, 1]))


@pytest.mark.slow  # a C++ compiler at work
@pytest.mark.timeout(240)
def test_compile_gives_the_same_answers(model):
    compiled = torch.compile(model, fullgraph=True)
    images = torch.randn(6, 3, 8, 8)
    with torch.inference_mode():
        assert_close(compiled(images), model(images), rtol=1e-4, atol=1e-5)
