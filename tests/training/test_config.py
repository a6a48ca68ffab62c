from dataclasses import fields

import pytest
import yaml
from jsonargparse import ArgumentParser

from mimonets.training import TrainConfig
from mimonets.training.config import REMOVED, drop_removed


def test_the_defaults_are_the_papers():
    config = TrainConfig()
    assert config.lr_range == pytest.approx((0.008, 0.2, 2e-5))
    assert (config.epochs, config.batch_size, config.momentum) == (1200, 128, (0.95, 0.85))
    assert (config.isometry, config.key_penalty, config.mixup) == (1e-4, 0.1, 1.0)
    assert (config.weight_decay, config.grad_filter, config.warmup) == (1e-5, 10, 0.3)


def test_every_mistake_is_named_at_once():
    with pytest.raises(ValueError, match="epochs=0.*optimizer='sdg'.*lr=-1.*momentum=.*ema=1.5"):
        TrainConfig(epochs=0, optimizer="sdg", lr=-1, ema=1.5, momentum=(0.9, 1.0))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"steps": 0}, "steps=0 must be an integer >= 1, or null"),
        ({"warmup": 1.5}, "neither a fraction of the steps"),
        ({"modes": {1: 0.5, 4: 0.4}}, "shares that add up to 1"),
        ({"modes": {0: 1.0}}, "numbers of active streams"),
        ({"fast_share": 1.1}, "must be a number >= 0 and <= 1"),
        ({"solo": -0.1}, "solo=-0.1 must be a number >= 0 and <= 1"),
        ({"exact": 0.6, "solo": 0.5}, "add up to more than 1"),
        ({"label_smoothing": True}, "label_smoothing=True must be a number"),
        ({"betas": 0.9}, "betas=0.9 must be a list of 2, each a number >= 0 and < 1"),
        ({"precision": "fp8"}, "choose from 32, bf16"),
        ({"grad_filter": 1}, "grad_filter=1 must be a number > 1"),
        ({"modes": 0.5}, "modes=0.5 must be keys with values, or null"),
        ({"warmup": float("inf")}, "warmup=inf must be a number >= 0"),
        ({"lr": float("nan")}, "lr=nan must be a number > 0"),
        ({"keep": "first"}, "keep='first' is not known: choose from best, last"),
    ],
)
def test_nonsense_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**setting)


def test_modes_are_shares_of_batches():
    assert TrainConfig().mode_shares(4) == {4: 1.0}
    assert TrainConfig(fast_share=0.8).mode_shares(1) == {1: 1.0}
    assert TrainConfig(modes={"1": 0.5, "2": 0.0, "4": 0.5}).mode_shares(4) == {1: 0.5, 4: 0.5}


def test_a_recipe_can_write_all_of_it():
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--train", type=TrainConfig)
    text = "train: {modes: {1: 0.25, 4: 0.75}, momentum: [0.9, 0.8], warmup: 175, steps: 70000}"
    config = parser.instantiate(parser.parse_object(yaml.safe_load(text))).train
    assert config.mode_shares(4) == {1: 0.25, 4: 0.75}
    assert config.momentum == (0.9, 0.8)
    assert config.total_steps(7) == 70000


def test_a_setting_that_may_be_null_may_and_no_other():
    nullable = {
        *("steps", "modes", "teacher", "grad_filter", "grad_clip", "ema"),
        *("threads", "keep"),
    }
    for name in vars(TrainConfig()):
        if name in nullable:
            assert getattr(TrainConfig(**{name: None}), name) is None
        elif "bool" not in str(TrainConfig.__dataclass_fields__[name].type) and name not in (
            "accelerator",
        ):
            with pytest.raises(ValueError, match=f"{name}=None"):
                TrainConfig(**{name: None})


def test_there_are_few_settings_and_none_is_both_there_and_gone():
    names = [field.name for field in fields(TrainConfig)]
    assert len(names) < 45
    assert not REMOVED.keys() & names


def test_settings_of_old_runs_that_are_gone_are_dropped_at_their_default_and_refused_otherwise():
    old = {"lr": 0.1, **REMOVED, "checkpoint_every": 5}
    assert drop_removed(old) == {"lr": 0.1}
    with pytest.raises(ValueError, match=r"train.max_skips=2: mimonets 0.2.0 is the last version"):
        drop_removed({**old, "max_skips": 2})


@pytest.mark.parametrize(("rule", "lr"), [("keep", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_a_multiplied_batch_says_what_becomes_of_the_learning_rate(rule, lr):
    config = TrainConfig(batch_size=32, lr=0.1, lr_ends=(0.01, None)).multiplied(4, rule)
    assert (config.batch_size, config.lr) == (128, pytest.approx(lr))
    assert config.lr_ends == (pytest.approx(lr / 10), None)
