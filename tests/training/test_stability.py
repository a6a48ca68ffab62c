import math

import pytest
import torch

from mimonets.training import stability
from mimonets.training.stability import (
    PATIENCE,
    GradientFilter,
    Statistics,
    TrainingDivergedError,
    WeightAverage,
    averaged,
)
from training.tiny import same_weights, tiny_config, tiny_conv


def test_the_first_epoch_sets_the_limit_of_the_second():
    gradients = GradientFilter(tiny_config())
    assert gradients.judge(1.0)
    assert gradients.judge(1e9)  # no limit yet
    assert not gradients.judge(math.nan)
    assert not gradients.judge(math.inf)
    assert gradients.judge(5.0)
    assert gradients.judge(1.0 - 6.0 + 5.0)
    assert gradients.end_epoch() == pytest.approx((1e9 + 6.0) / 4)
    assert gradients.judge(2e9)
    assert not gradients.judge(2.6e9)
    assert (gradients.total_skipped, gradients.total_not_finite) == (3, 2)


def test_the_filter_can_be_off_and_still_refuses_what_is_not_finite():
    gradients = GradientFilter(tiny_config(grad_filter=None))
    gradients.judge(1.0)
    gradients.end_epoch()
    assert gradients.judge(1e30)
    assert not gradients.judge(math.nan)


def test_skipping_again_and_again_says_what_to_change(monkeypatch):
    monkeypatch.setattr(stability, "MAX_SKIPS", 2)
    gradients = GradientFilter(tiny_config())
    gradients.judge(1.0)
    gradients.end_epoch()
    assert not gradients.judge(11.0)
    with pytest.raises(
        TrainingDivergedError, match="norm, 12 at last, is above 10 times.* mean of 1"
    ):
        gradients.judge(12.0)


def test_after_ten_skipped_batches_one_is_taken_clipped():
    gradients = GradientFilter(tiny_config())
    gradients.judge(1.0)
    gradients.end_epoch()
    for _ in range(PATIENCE):
        assert gradients.judge(40.0) == 0
    assert gradients.judge(math.nan) == 0, "never what is not finite"
    assert gradients.judge(40.0) == 10.0
    assert gradients.judge(40.0) == 0
    assert gradients.judge(9.0) == math.inf
    assert (gradients.accepted, gradients.norm_sum) == (2, 19.0)


def test_an_epoch_of_skipped_batches_gives_the_reason():
    gradients = GradientFilter(tiny_config())
    gradients.judge(1.0)
    gradients.end_epoch()
    for _ in range(4):
        gradients.judge(20.0)
    with pytest.raises(TrainingDivergedError, match="4 of the 4 .* norm, 20 at last, is above 10"):
        gradients.end_epoch()


def test_the_filter_remembers_everything():
    gradients, other = GradientFilter(tiny_config()), GradientFilter(tiny_config())
    for norm in (1.0, math.nan, 3.0):
        gradients.judge(norm)
    other.load_state_dict(gradients.state_dict())
    assert vars(other) == {**vars(gradients), "config": other.config}


def test_a_batch_can_be_forgotten():
    model = tiny_conv().train()
    statistics = Statistics(model)
    model(torch.randn(4, 1, 8, 8))
    statistics.remember()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.randn(4, 1, 8, 8) * torch.nan)
    assert not same_weights(before, model)
    statistics.restore()
    assert same_weights(before, model)


def test_an_average_follows_the_weights_and_comes_and_goes():
    model = tiny_conv()
    average = WeightAverage(model, decay=0.5)
    wanted = model.classifier.bias.detach().clone()
    for update in range(3):
        with torch.no_grad():
            model.classifier.bias += 1
        decay = min(0.5, (1 + update) / (10 + update))
        wanted = decay * wanted + (1 - decay) * model.classifier.bias.detach()
        average.update()
    torch.testing.assert_close(average.values["classifier.bias"], wanted)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    with averaged(average):
        assert same_weights(model, average.values)
    assert same_weights(model, own)
    with averaged(None):
        assert same_weights(model, own)


def test_modes_that_ran_count_as_trained_in_the_average():
    model = tiny_conv().train()
    average = WeightAverage(model, decay=0.999)
    model(torch.randn(4, 1, 8, 8))
    average.update()
    seen = [value for name, value in average.values.items() if name.endswith("batches_seen")]
    assert seen
    assert all(counts.tolist() == [0, 1] for counts in seen)
