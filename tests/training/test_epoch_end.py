"""Which model a run keeps, and what it says about it."""

import json

import pytest
import torch
from torch import nn

import mimonets as mn
from mimonets.layers import recalibrate, untrained_modes
from mimonets.models import fixed_at
from mimonets.training import epoch_end, train
from training.tiny import TinyBatches, same_weights, tiny_config, tiny_conv, tiny_slimmable


def accuracy_by_epoch(monkeypatch, accuracies):
    """Let validation say what the test wants; returns the list of calls."""
    calls = []

    class Found:
        def __init__(self, accuracy):
            self.accuracy = accuracy

        def as_dict(self):
            return {"accuracy": self.accuracy}

    def evaluate(model, batches, modes):
        calls.append({name: value.clone() for name, value in model.state_dict().items()})
        return {mode: Found(accuracies[len(calls) - 1]) for mode in modes}

    monkeypatch.setattr(epoch_end, "evaluate", evaluate)
    return calls


@pytest.mark.parametrize("ema", [None, 0.9])
def test_the_best_on_the_validation_data_is_kept_and_handed_over(tmp_path, monkeypatch, ema):
    calls = accuracy_by_epoch(monkeypatch, [0.5, 0.9, 0.7])
    model = tiny_conv()
    config = tiny_config(epochs=3, ema=ema)
    result = train(model, TinyBatches(), config, run_dir=tmp_path / "run", validation=TinyBatches())
    assert len(calls) == 3  # the last epoch once
    assert (result.keep, result.model_dir) == ("best", tmp_path / "run/best")
    best = mn.load(result.model_dir)
    assert same_weights(best, model)
    for name, value in best.named_parameters():
        assert torch.equal(value, calls[1][name]), name
    last = mn.load(tmp_path / "run/model")
    assert all(torch.equal(value, calls[2][name]) for name, value in last.named_parameters())
    # The best was written in the middle of training: it has statistics of every mode all the same.
    assert untrained_modes(best) == untrained_modes(last) == []
    written = json.loads((tmp_path / "run/result.json").read_text())
    assert written["keep"] == "best"
    assert written["final"]["2"] == {"accuracy": 0.9}, "of the model that is kept"


def test_the_last_is_kept_on_request_and_without_validation_data(tmp_path, monkeypatch):
    calls = accuracy_by_epoch(monkeypatch, [0.9, 0.5])
    model = tiny_conv()
    result = train(
        model,
        TinyBatches(),
        tiny_config(keep="last"),
        run_dir=tmp_path / "last",
        validation=TinyBatches(),
    )
    assert (result.keep, result.model_dir) == ("last", tmp_path / "last/model")
    assert same_weights(mn.load(result.model_dir), model)
    assert (tmp_path / "last/best").is_dir()
    result = train(tiny_conv(), TinyBatches(), tiny_config(), run_dir=tmp_path / "none")
    assert len(calls) == 2
    assert (result.keep, result.final) == ("last", {})
    assert not (result.run_dir / "best").exists()
    assert result.training == {name: result.history[-1][name] for name in ("loss", "accuracy")}
    with pytest.raises(ValueError, match="keep=best chooses .* there is none: hold some out"):
        train(tiny_conv(), TinyBatches(), tiny_config(keep="best"), run_dir=tmp_path / "refused")


@pytest.mark.parametrize("cut", [5, 9])
def test_the_best_survives_a_run_that_was_cut_and_resumed(tmp_path, monkeypatch, cut):
    def stop(step):
        if step == cut:
            raise KeyError

    models = []
    for name, cuts in (("whole", [lambda step: None]), ("cut", [stop, lambda step: None])):
        scores = [0.5, 0.9, 0.7]
        accuracy_by_epoch(monkeypatch, scores)
        for number, before in enumerate(cuts):
            model = tiny_conv()
            if number:  # what remains to be measured after the cut
                accuracy_by_epoch(monkeypatch, scores[cut // 4 :])
            try:
                train(
                    model,
                    TinyBatches(before=before),
                    tiny_config(epochs=3),
                    run_dir=tmp_path / name,
                    validation=TinyBatches(),
                    resume=True,
                )
            except KeyError:
                assert number == 0
        models.append(model)
    assert same_weights(*models)
    assert same_weights(mn.load(tmp_path / "whole/best"), mn.load(tmp_path / "cut/best"))


def test_modes_that_are_not_trained_get_statistics_of_the_final_weights(tmp_path):
    model = tiny_conv(num_streams=4)
    data = TinyBatches(size=16)
    config = tiny_config(epochs=3, mixup=0, recalibrate_batches=4)
    train(model, data, config, run_dir=tmp_path / "run")
    as_saved = mn.load(tmp_path / "run/model")
    measured = mn.load(tmp_path / "run/model")
    recalibrate(measured, [images for images, _ in data.epoch(0)], [1, 2, 3])
    images = next(data.epoch(0))[0]
    for mode in (1, 2, 3):
        wanted = measured(images[:12], active_streams=mode)
        torch.testing.assert_close(as_saved(images[:12], active_streams=mode), wanted)


def test_time_and_slopes_are_kept_with_every_run(tmp_path):
    model = tiny_conv()
    result = train(model, TinyBatches(), tiny_config(), run_dir=tmp_path / "run")
    written = json.loads((tmp_path / "run/result.json").read_text())
    slopes = {
        name: module.weight.mean().item()
        for name, module in model.named_modules()
        if isinstance(module, nn.PReLU)
    }
    assert slopes
    assert written["slopes"] == result.slopes == slopes
    assert 0 < written["seconds"] < 300
    spent = torch.load(tmp_path / "run/checkpoints/last.pt", weights_only=True)["seconds"]
    assert 0 < spent <= result.seconds
    again = train(tiny_conv(), TinyBatches(), tiny_config(), run_dir=tmp_path / "run", resume=True)
    assert again.seconds > round(spent, 3)  # what an earlier process spent counts too
    assert again.slopes == slopes


@pytest.mark.parametrize("slow_inputs", ["all", "per-stream"])
def test_a_slow_step_runs_all_inputs_or_as_many_superpositions(tmp_path, slow_inputs):
    model = tiny_conv(num_streams=4)
    passes = []
    model.trunk.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    config = tiny_config(
        steps=12, fast_share=0.5, batch_size=2, slow_inputs=slow_inputs, recalibrate_batches=0
    )
    train(model, TinyBatches(4), config, run_dir=tmp_path / "run")
    # 8 inputs: two superpositions of four, or eight of one; slow costs four times as much as fast.
    assert set(passes) == ({2, 8} if slow_inputs == "all" else {2})


def means_of(model):
    return {name: value for name, value in model.state_dict().items() if "running_mean" in name}


@pytest.mark.parametrize("make", [tiny_conv, tiny_slimmable])
def test_after_mixup_batch_norm_is_measured_on_unmixed_inputs_in_every_mode(tmp_path, make):
    data = TinyBatches(size=4 * make().num_streams)
    kept = {}
    for on in (True, False):
        model = make()
        settings = {
            "mixup": 1.0,
            "fast_share": 0.5,
            "recalibrate_batches": 4 if on else 0,
        }
        train(model, data, tiny_config(epochs=2, **settings), run_dir=tmp_path / str(on))
        kept[on] = mn.load(tmp_path / str(on) / "model")
    assert all(
        torch.equal(value, dict(kept[False].named_parameters())[name])
        for name, value in kept[True].named_parameters()
    )
    images = [images for images, _ in data.epoch(0)]
    once_more = kept[False]
    for network in {fixed_at(once_more, point) for point in once_more.operating_points}:
        recalibrate(network, images, range(1, once_more.num_streams + 1), shared=True)
    wanted = means_of(once_more)
    before = means_of(mn.load(tmp_path / "False" / "model"))
    for name, value in means_of(kept[True]).items():
        torch.testing.assert_close(value, wanted[name])
        assert not torch.allclose(value, before[name], atol=1e-4), name
