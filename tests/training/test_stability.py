import math

import pytest
import torch

from mimonets.training.stability import (
    GradientFilter,
    Statistics,
    TrainingDivergedError,
    WeightAverage,
    averaged,
)
from training.tiny import same_weights, tiny_config, tiny_conv


def test_the_first_epoch_sets_the_limit_of_the_second():
    judge = GradientFilter(tiny_config())
    assert judge.accepts(1.0)
    assert judge.accepts(1e9)  # no limit yet
    assert not judge.accepts(math.nan)
    assert not judge.accepts(math.inf)
    assert judge.accepts(5.0)
    assert judge.accepts(1.0 - 6.0 + 5.0)
    assert judge.end_epoch() == pytest.approx((1e9 + 6.0) / 4)
    assert judge.accepts(2e9)
    assert not judge.accepts(2.6e9)
    assert (judge.total_skipped, judge.total_not_finite) == (3, 2)


def test_the_filter_can_be_off_and_still_refuses_what_is_not_finite():
    judge = GradientFilter(tiny_config(grad_filter=None))
    judge.accepts(1.0)
    judge.end_epoch()
    assert judge.accepts(1e30)
    assert not judge.accepts(math.nan)


def test_skipping_again_and_again_says_what_to_change():
    judge = GradientFilter(tiny_config(max_skips=2))
    judge.accepts(1.0)
    judge.end_epoch()
    assert not judge.accepts(11.0)
    with pytest.raises(
        TrainingDivergedError, match="norm, 12 at last, is above 10 times.* mean of 1"
    ):
        judge.accepts(12.0)


def test_the_filter_remembers_everything():
    judge, other = GradientFilter(tiny_config()), GradientFilter(tiny_config())
    for norm in (1.0, math.nan, 3.0):
        judge.accepts(norm)
    other.load_state_dict(judge.state_dict())
    assert vars(other) == {**vars(judge), "config": other.config}


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
    assert all(counts.tolist() == [0, 1] for counts in seen)
