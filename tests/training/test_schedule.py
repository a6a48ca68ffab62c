from collections import Counter

import pytest
import torch

from mimonets import WideIsoNet, WideIsoNetConfig
from mimonets.training.schedule import (
    decay_groups,
    make_optimizer,
    make_scheduler,
    warmup_steps,
)
from mimonets.training.step import plan_step
from training.tiny import sequence_config, tiny_config, tiny_conv, tiny_former


def followed(config, steps):
    """Learning rate and momentum (or first beta) at every step."""
    optimizer = make_optimizer(torch.nn.Linear(2, 2), config)
    scheduler = make_scheduler(optimizer, config, steps)
    found = []
    for step in range(steps):
        group = optimizer.param_groups[0]
        found.append((group["lr"], group.get("momentum", group.get("betas", [None])[0])))
        optimizer.step()
        if step + 1 < steps:
            scheduler.step()
    return found


def test_one_cycle_goes_through_the_papers_numbers():
    found = followed(tiny_config(lr=0.2), 1000)
    assert found[0] == pytest.approx((0.008, 0.95))
    assert found[299] == pytest.approx((0.2, 0.85))
    assert found[-1] == pytest.approx((2e-5, 0.95))
    assert found[149][0] == pytest.approx((0.008 + 0.2) / 2, rel=0.02)  # half way of a cosine
    assert max(lr for lr, _ in found) == pytest.approx(0.2)


def test_long_range_arena_rises_and_falls_in_lines():
    config = sequence_config(lr=1e-4, warmup=50, cycle_momentum=False)
    found = followed(config, 1000)
    assert found[0] == pytest.approx((4e-6, 0.9))
    assert found[49] == pytest.approx((1e-4, 0.9))
    assert found[-1] == pytest.approx((1e-8, 0.9))
    assert found[524][0] == pytest.approx(5e-5, rel=0.01)
    assert followed(sequence_config(lr=1e-4), 10)[0] == pytest.approx((4e-6, 0.95))


def test_warm_up_rises_in_a_line_and_stays():
    found = [lr for lr, _ in followed(sequence_config(schedule="warmup", lr=1.0, warmup=0.1), 100)]
    assert found[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert found[10:] == pytest.approx([1.0] * 90)
    assert followed(sequence_config(schedule="warmup", lr=1.0, warmup=0), 2) == [(1.0, 0.9)] * 2
    assert followed(tiny_config(schedule="constant", lr=1.0), 2) == [(1.0, 0.95)] * 2


def test_warm_up_may_be_followed_by_a_cosine_to_the_final_rate():
    config = sequence_config(schedule="warmup-cosine", lr=1.0, lr_ends=(None, 0.1), warmup=0.1)
    found = [lr for lr, _ in followed(config, 100)]
    assert found[:11] == pytest.approx([0.1 * (step + 1) for step in range(10)] + [1.0])
    assert found[10:] == sorted(found[10:], reverse=True)
    assert found[-1] == pytest.approx(0.1)
    assert found[54:56] == pytest.approx([0.55, 0.55], abs=0.02)


@pytest.mark.parametrize("warmup", [0, 0.3, 1, 2, 5, 500])
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "schedule", ["onecycle", "linear-onecycle", "warmup-cosine", "warmup", "constant"]
)
def test_even_the_shortest_training_has_a_schedule(schedule, steps, warmup):
    rates = [lr for lr, _ in followed(tiny_config(schedule=schedule, warmup=warmup), steps)]
    assert all(0 < lr <= 0.05 + 1e-9 for lr in rates)
    assert 0 <= warmup_steps(tiny_config(warmup=warmup), steps) <= steps


def test_the_paper_spares_activations_stream_keys_and_unbinding():
    for activation, parameter in (("prelu", "activation.weight"), ("srelu", "activation.bend")):
        model = tiny_conv(activation=activation)
        _, spared = decay_groups(model, tiny_config())
        names = {
            name for name, p in model.named_parameters() if any(p is s for s in spared["params"])
        }
        keys = {"binding.stream_keys", "unbinding.weight", "unbinding.bias"}
        assert keys <= names
        rest = names - keys
        assert rest == {name for name, _ in model.named_parameters() if name.endswith(parameter)}
        assert spared["weight_decay"] == 0


def test_sequence_models_may_spare_biases_norms_and_embeddings():
    model = tiny_former()
    assert len(decay_groups(model, sequence_config())) == 1
    decayed, spared = decay_groups(model, sequence_config(decay_all=False, weight_decay=0.1))
    assert decayed["weight_decay"] == 0.1
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    inside = {id(parameter) for parameter in spared["params"]}
    assert {id(parameter) for parameter in model.embedding.parameters()} <= inside
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_frozen_keys_are_left_to_no_optimiser():
    model = tiny_conv(trainable_keys=False)
    optimizer = make_optimizer(model, tiny_config())
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert id(model.binding.stream_keys) not in given


def test_a_step_is_decided_by_seed_and_number():
    model = tiny_conv()
    config = tiny_config(fast_share=0.7, slow_inputs="per-stream")
    plans = [plan_step(config, model, step, 2000) for step in range(2000)]
    assert plans == [plan_step(config, model, step, 2000) for step in range(2000)]
    assert plans != [
        plan_step(tiny_config(fast_share=0.7, seed=1), model, s, 2000) for s in range(2000)
    ]
    share = Counter(plan.active_streams for plan in plans)
    assert share.keys() == {1, 2}
    assert share[2] / 2000 == pytest.approx(0.7, abs=0.03)
    assert {(plan.active_streams, plan.inputs) for plan in plans} == {(1, 4), (2, 8)}
    whole = tiny_config(fast_share=0.7)
    assert all(plan_step(whole, model, step, 2000).inputs == 8 for step in range(20))
    # Beta(1, 1) is uniform.
    assert sum(plan.share for plan in plans) / 2000 == pytest.approx(0.5, abs=0.03)


def test_warm_ups_take_the_first_shares_of_the_steps():
    config, model = sequence_config(exact=0.2, solo=0.3), tiny_former()
    plans = [plan_step(config, model, step, 10) for step in range(10)]
    assert [plan.warm_up for plan in plans] == ["exact"] * 2 + ["solo"] * 3 + [None] * 5
    both = plan_step(sequence_config(solo=0.3, curriculum=0.5), model, 0, 10)
    with both.warming_up(model):
        assert (model.warm_up, model.smaller_grid) == ("solo", (1, 1))
    with plans[9].warming_up(object()):  # the last steps ask nothing of a network
        assert (model.warm_up, model.smaller_grid) == (None, None)


def test_a_network_without_streams_has_one_mode():
    model = WideIsoNet(WideIsoNetConfig(depth=10, width=1, num_classes=3))
    plan = plan_step(tiny_config(mixup=0), model, 0, 1)
    assert (plan.active_streams, plan.inputs, plan.share) == (1, 4, 1.0)
