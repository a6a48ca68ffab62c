"""What a step asks of a GPU, counted on the meta device: operators, bytes and memory layouts."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from gpu_cost import Cost, on_meta
from mimonets import MIMOConv, MIMOConvConfig
from mimonets._device import to_channels_last
from mimonets.attention import ReLUFeatures, favor_s
from mimonets.layers import StreamBatchNorm
from mimonets.models.registry import model_class_for
from mimonets.recipes import load_recipe
from mimonets.training.batch import Batch
from mimonets.training.objective import Learner, penalty
from mimonets.training.state import TrainState
from mimonets.training.step import learn, plan_step, prepare
from training.test_step import OnMeta
from training.tiny import (
    TinyBatches,
    TinySequences,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_former,
    tiny_slimmable,
)
from training.together import tiny_superposed


def cost_of_a_step(name, data):
    """Count a whole step of a recipe, up to the update, on inputs from the meta device."""
    recipe = load_recipe(name)
    model = on_meta(model_class_for(recipe.model), recipe.model)
    state = TrainState(OnMeta(), model, recipe.train, steps_per_epoch=10)
    with Cost() as cost:
        plan = plan_step(recipe.train, model, 0, 10)
        learn(state, plan, prepare(state, data, plan))
        state.gradient_norm()
        state.optimizer.step()
    return cost


def test_a_step_of_mimoconv_is_within_what_was_promised():
    data = torch.empty(512, 3, 32, 32, device="meta"), torch.empty(512, device="meta").long()
    cost = cost_of_a_step("cifar100-mimoconv-n4", data)
    assert cost.operators <= 1500
    assert cost.gigabytes <= 46


def test_the_penalties_of_mimoconv_are_within_what_was_promised():
    recipe = load_recipe("cifar100-mimoconv-n4")
    model = on_meta(MIMOConv, recipe.model)
    with Cost() as cost:
        penalty(model, recipe.train).backward()
    assert cost.operators <= 450


def test_a_step_of_the_text_performer_is_within_what_was_promised():
    tokens, mask = torch.zeros(2, 32, 4096, dtype=torch.long, device="meta")
    cost = cost_of_a_step("lra-text-performer", (tokens, mask.bool(), tokens[:, 0]))
    assert cost.gigabytes <= 530


@pytest.mark.parametrize("masked", [False, True])
def test_causal_attention_of_a_grid_is_few_operators(masked):
    with torch.device("meta"):
        features = ReLUFeatures(64, 256)
        x, stream_keys = torch.empty(8, 2, 2, 8, 4096, 64), torch.empty(2, 2, 8, 64)
        mask = torch.ones(8, 2, 2, 4096, dtype=torch.bool) if masked else None
    with Cost() as cost:
        favor_s(x, x, x, stream_keys, features, mask=mask, causal=True)
    assert cost.operators <= 300


BINDINGS = {
    "keys": {},
    "matrices": {"binding": "matrix"},
    "signs": {"binding": "hadamard", "stream_keys": "bipolar"},
    "tiles": {"binding": "tiles"},
    "finer tiles": {"binding": "tiles", "slow": "full", "stem_stride": 2},
    "later": {"bind_after_stage": 1},
}


def channels_last_model(**settings):
    small = {"depth": 28, "width": 1, "image_size": 16, "num_classes": 3, "num_streams": 4}
    model = MIMOConv(MIMOConvConfig(**small, **settings)).train()
    to_channels_last(model)
    return model


@pytest.mark.parametrize("name", BINDINGS)
def test_no_block_loses_channels_last(name):
    """On a CPU with numbers: there, as on a GPU, convolutions keep the layout that they get."""
    model = channels_last_model(**BINDINGS[name])
    kept = []

    def look(module, inputs, output):
        kept.append(output.is_contiguous(memory_format=torch.channels_last))

    for block in model.trunk.blocks:
        block.register_forward_hook(look)
    images = torch.randn(6, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    for active in (4, 3, 1):
        model(images, active_streams=active)
    with model.warming_up("solo"):
        model(images)
    assert kept == [True] * 48


@pytest.mark.parametrize("active", [4, 3, 1])
@pytest.mark.parametrize("name", BINDINGS)
def test_no_gradient_of_a_norm_loses_channels_last(name, active):
    """With another layout than its input's, a norm's backward pass takes twelve times as long."""
    model = channels_last_model(**BINDINGS[name], shortcut_norm=True)
    kept = []

    def look(gradient):
        kept.append(gradient.is_contiguous(memory_format=torch.channels_last))

    def follow(module, inputs, output):
        output.register_hook(look)

    norms = [one for one in model.modules() if isinstance(one, StreamBatchNorm | nn.BatchNorm2d)]
    for norm in norms:
        norm.register_forward_hook(follow)
    images = torch.randn(6, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    model(images, active_streams=active).square().sum().backward()
    assert len(kept) == len(norms)
    assert all(kept)


CASES = {
    "mimoconv": (tiny_conv, tiny_config, {}),
    "tiles": (lambda: tiny_conv(binding="tiles"), tiny_config, {}),
    "squared error": (tiny_conv, tiny_config, {"loss": "squared_error", "label_smoothing": 0.1}),
    "many maps": (lambda: tiny_conv(width=4), tiny_config, {"mixup": 0}),
    "slimmable": (tiny_slimmable, tiny_config, {"isometry": 0}),
    "superposed": (tiny_superposed, tiny_config, {}),
    "mimoformer": (tiny_former, sequence_config, {}),
    "causal": (lambda: tiny_former(head="next_token", causal=True), sequence_config, {}),
    "mlp": (lambda: tiny_former(superpose="attention+mlp"), sequence_config, {}),
    "bf16": (tiny_conv, tiny_config, {"precision": "bf16"}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # PyTorch's
@pytest.mark.parametrize("name", CASES)
def test_forward_penalties_and_loss_are_one_graph(name):
    make, make_config, settings = CASES[name]
    config, model = make_config(**settings), make().train()
    torch._dynamo.reset()  # graphs of the cases before count, too
    counter = CompileCounter()
    step = torch.compile(Learner(model, config), fullgraph=True, backend=counter, dynamic=False)
    kind = TinySequences(next_token=name == "causal") if make_config is sequence_config else None
    for number, data in enumerate((kind or TinyBatches()).epoch(0)):
        plan = plan_step(config, model, number, 4)
        batch = Batch.of(data, torch.device("cpu"))[: plan.inputs].mix(plan.share, plan.seed)
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
            found = step(batch.tensors(), plan.point.options)
        found[0].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert counter.frame_count == len(
        {plan_step(config, model, n, 4).point.number for n in range(4)}
    )
