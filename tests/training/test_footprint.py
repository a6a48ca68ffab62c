"""Memory, bytes and arithmetic of a step: counted without memory, compared with a real one."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

import mimonets as mn
from mimonets.evaluation.memory import LiveTensors
from mimonets.models import Performer, PerformerConfig
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import make_model
from mimonets.training import TrainConfig
from mimonets.training.config import drop_removed
from mimonets.training.footprint import fit_memory, peak_bytes, set_recompute, step_footprint
from mimonets.training.launch import training_setup

TEXT = PerformerConfig(
    vocab_size=9, max_length=32, num_classes=3, depth=2, dim=16, heads=2, head_dim=8
)
PLAIN = TrainConfig(batch_size=8, mixup=0, isometry=0, key_penalty=0, per_stream=False)


def real_step(model, config, inputs, **options):
    """Take a step with numbers in it, and count what lives."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    with LiveTensors() as live:
        logits = model(inputs, **options)
        cross_entropy(logits, torch.zeros(len(inputs), dtype=torch.long)).backward()
        del logits
        optimizer.step()
        optimizer.zero_grad()
    kept = [*model.parameters(), *model.parameters(), *model.buffers()]  # and their momentum
    return live.peak + sum(tensor.nbytes for tensor in kept)


def test_the_peak_is_that_of_a_real_step():
    model = Performer(TEXT).train()
    inputs = model.example_inputs(8)
    measured = real_step(model, PLAIN, inputs, mask=torch.ones_like(inputs, dtype=torch.bool))
    assert peak_bytes(TEXT, PLAIN) == pytest.approx(measured, rel=0.05)


def test_a_step_of_images_is_that_of_a_real_one_too():
    config = mn.WideResNetConfig(depth=10, width=2, image_size=16)
    model = mn.WideResNet(config).train()
    measured = real_step(model, PLAIN, model.example_inputs(8))
    assert peak_bytes(config, PLAIN) == pytest.approx(measured, rel=0.05)


def test_flops_are_three_times_those_of_the_forward_pass():
    from mimonets.evaluation import count_macs

    config = mn.WideResNetConfig(depth=10, width=2, image_size=16)
    forward = 2 * 8 * count_macs(config).plain
    assert step_footprint(config, PLAIN).flops == pytest.approx(3 * forward, rel=0.05)


def test_mixed_precision_recomputing_and_parts_take_less():
    whole = peak_bytes(TEXT, PLAIN)
    for change in ({"precision": "bf16"}, {"recompute": True}, {"accumulate": 4}):
        assert peak_bytes(TEXT, replace(PLAIN, **change)) < 0.98 * whole, change


def test_parts_are_as_few_as_fit():
    model = Performer(TEXT)
    auto = replace(PLAIN, accumulate="auto")
    peaks = {parts: peak_bytes(TEXT, replace(PLAIN, accumulate=parts)) for parts in (1, 2)}
    assert fit_memory(model, auto, None).accumulate == 1, "no limit is known on a CPU"
    for parts, peak in peaks.items():
        assert fit_memory(model, auto, int(peak / 0.9) + 1).accumulate == parts
    assert fit_memory(model, auto, 1).accumulate == 8, "one input at a time, at the least"
    assert fit_memory(model, PLAIN, 1) is PLAIN


def test_recomputing_changes_no_gradient():
    model = Performer(TEXT).train()
    inputs, found = model.example_inputs(4), []
    for wanted in (False, True):
        set_recompute(model, wanted)
        model.zero_grad()
        torch.manual_seed(0)  # of dropout
        model(inputs).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for kept, again in zip(*found, strict=True):
        assert torch.equal(kept, again)


def test_networks_without_linear_attention_refuse_to_recompute():
    recipe = load_recipe("digits-mimoconv-n4", ["train.recompute=true"])
    with (
        pytest.raises(ValueError, match=r"recompute=true.*MIMOConv has none: set"),
        training_setup(make_model(recipe), recipe.train, torch.device("cpu")),
    ):
        pass


def test_out_of_memory_is_one_sentence_with_what_to_set():
    device, model = torch.device("cpu"), Performer(TEXT)

    def fall_over(config):
        with (
            pytest.raises(ValueError, match="out of memory") as caught,
            training_setup(model, config, device),
        ):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return str(caught.value)

    said = fall_over(PLAIN)
    assert "a step takes about 0.0" in said
    assert "Set train.precision=bf16 or train.recompute=true or train.accumulate=auto." in said
    spent = replace(PLAIN, precision="bf16", recompute=True, accumulate=8)
    assert "Set a larger train.accumulate or a smaller train.batch_size." in fall_over(spent)


@pytest.mark.parametrize("wrong", ["many", 0, 1.5])
def test_parts_are_a_number_or_auto(wrong):
    with pytest.raises(ValueError, match="accumulate=.*must be an integer >= 1, or auto"):
        TrainConfig(accumulate=wrong)
    assert load_recipe("digits-mimoconv-n4", ["train.accumulate=auto"]).train.accumulate == "auto"
    assert load_recipe("digits-mimoconv-n4", ["train.accumulate=2"]).train.accumulate == 2
    assert drop_removed({"accumulate": 2}) == {"accumulate": 2}
