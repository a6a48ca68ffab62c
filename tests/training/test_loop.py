import json
import statistics
import sys
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import mimonets as mn
from mimonets.layers import untrained_modes
from mimonets.training import TrainingDivergedError, loop, stability, train
from mimonets.training.objective import penalty
from training.tiny import (
    TinyBatches,
    TinySequences,
    same_weights,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_former,
)


def test_a_model_learns_and_its_record_is_complete(tmp_path):
    model = tiny_conv()
    config = tiny_config(epochs=6, mixup=0, fast_share=0.5)
    rows = []
    result = train(
        model,
        TinyBatches(6),
        config,
        run_dir=tmp_path / "run",
        validation=TinyBatches(3),
        recipe={"data": {"name": "tiny"}},
        on_progress=rows.append,
    )
    assert result.history[-1]["loss"] < 0.8 * result.history[0]["loss"]
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert result.history == rows == [json.loads(line) for line in lines]
    assert result.final.keys() == {1, 2}
    assert result.final[2]["total"] == 24
    assert (result.steps, result.skipped, result.not_finite) == (36, 0, 0)
    assert same_weights(mn.load(result.model_dir), model)
    assert mn.load(result.run_dir / "best").num_streams == 2
    recipe = (tmp_path / "run/recipe.yaml").read_text()
    assert "name: tiny" in recipe
    assert "kind: mimoconv" in recipe
    assert "isometry: 0.0001" in recipe
    assert json.loads((tmp_path / "run/environment.json").read_text())["torch"]
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] == 36
    pytest.importorskip("tensorboardX")
    assert list((tmp_path / "run/tensorboard").iterdir())


def test_one_step_is_the_step_of_the_paper(tmp_path):
    model, twin = tiny_conv(), tiny_conv()
    config = tiny_config(steps=1, mixup=0, weight_decay=0, schedule="constant", momentum=(0.0, 0.0))
    train(model, TinyBatches(), config, run_dir=tmp_path / "run")
    images, labels = next(TinyBatches().epoch(0))
    loss = F.cross_entropy(twin.train()(images), labels)
    loss = loss + 1e-4 * twin.isometry_penalty() + 0.1 * twin.stream_key_penalty()
    loss.backward()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter -= config.lr * parameter.grad
    for (name, found), wanted in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(found, wanted, msg=name)


def test_sequences_start_on_half_the_grid(tmp_path):
    model, seen = tiny_former(grid=(2, 4)), []
    whole = model.encode

    def spy(tokens, mask, active_streams):
        seen.append((model.smaller_grid, len(tokens)))
        return whole(tokens, mask, active_streams)

    model.encode = spy
    config = sequence_config(steps=4, curriculum=0.5, slow_inputs="per-stream")
    train(model, TinySequences(4, 16), config, run_dir=tmp_path / "run")
    assert seen == [((1, 2), 4)] * 2 + [(None, 16)] * 2


def test_sequences_start_with_softmax_then_alone_then_together(tmp_path):
    model, seen = tiny_former(), []
    whole = model.encode

    def spy(tokens, mask, active_streams):
        seen.append((model.warm_up, len(tokens)))
        return whole(tokens, mask, active_streams)

    model.encode = spy
    config = sequence_config(steps=4, exact=0.25, solo=0.5)
    train(model, TinySequences(4, 8), config, run_dir=tmp_path / "run")
    assert seen == [("exact", 8), ("solo", 8), ("solo", 8), (None, 8)]


@pytest.mark.parametrize("cut", [1, 2, 3], ids=["exact", "solo", "superposed"])
def test_a_warm_up_goes_on_where_it_was_cut(tmp_path, monkeypatch, cut):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)

    def stop_at(step):
        if step == cut:
            raise KeyboardInterrupt

    config = sequence_config(epochs=2, exact=0.5, solo=0.25)
    whole, parts = tiny_former(), tiny_former()
    train(whole, TinySequences(2), config, run_dir=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(parts, TinySequences(2, before=stop_at), config, run_dir=tmp_path / "cut")
    parts = tiny_former()
    train(parts, TinySequences(2), config, run_dir=tmp_path / "cut", resume=True)
    assert same_weights(whole, parts)
    never = tiny_former()
    train(never, TinySequences(2), replace(config, solo=0.0), run_dir=tmp_path / "never")
    assert not same_weights(whole, never)


def test_images_may_start_alone_too(tmp_path):
    trained = {}
    for solo in (0.0, 0.5, 1.0):
        trained[solo] = tiny_conv()
        config = tiny_config(epochs=1, solo=solo)
        result = train(trained[solo], TinyBatches(), config, run_dir=tmp_path / str(solo))
        assert result.skipped == 0
    assert not same_weights(trained[0.0], trained[0.5])
    assert not same_weights(trained[0.5], trained[1.0])


def test_batch_size_may_count_all_inputs_of_a_step(tmp_path):
    model = tiny_former()
    config = sequence_config(epochs=1, batch_size=8, per_stream=False, fast_share=0.5)
    result = train(model, TinySequences(4, 8), config, run_dir=tmp_path / "run")
    assert result.history[0]["step"] == 4


def test_next_tokens_are_learnt(tmp_path):
    model = tiny_former(head="next_token", causal=True, dropout=0.0)
    result = train(
        model,
        TinySequences(next_token=True),
        sequence_config(epochs=10),
        run_dir=tmp_path / "run",
        validation=TinySequences(2, next_token=True),
    )
    assert result.history[-1]["loss"] < 0.9 * result.history[0]["loss"]
    assert result.final[4]["total"] == 16


def test_work_in_parts_is_the_same_step(tmp_path):
    settings = {"epochs": 1, "optimizer": "sgd", "grad_clip": 1.0}
    models = [tiny_former(dropout=0.0) for _ in range(2)]
    for accumulate, model in zip((1, 2), models, strict=True):
        config = sequence_config(**settings, accumulate=accumulate)
        train(model, TinySequences(), config, run_dir=tmp_path / str(accumulate))
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other)


def test_half_precision_trains(tmp_path):
    config = tiny_config(epochs=4, precision="bf16", mixup=0)
    result = train(tiny_conv(), TinyBatches(), config, run_dir=tmp_path / "run")
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert next(mn.load(result.model_dir).parameters()).dtype == torch.float32


def test_averaged_weights_are_what_is_saved(tmp_path):
    model = tiny_conv()
    config = tiny_config(epochs=3, ema=0.9, keep="last")
    result = train(
        model, TinyBatches(), config, run_dir=tmp_path / "run", validation=TinyBatches(2)
    )
    state = torch.load(tmp_path / "run/checkpoints/last.pt", weights_only=True)
    averages = state["average"]["values"]
    found = mn.load(result.model_dir)
    assert all(torch.equal(value, averages[name]) for name, value in found.named_parameters())
    assert not same_weights(state["model"], averages)
    assert result.history[-1]["validation"]["2"] == result.final[2]


def test_modes_that_were_not_trained_are_recalibrated(tmp_path):
    for batches, left in ((2, []), (0, [1, 2])):
        model = tiny_conv(num_streams=3)
        config = tiny_config(epochs=1, recalibrate_batches=batches)
        train(model, TinyBatches(2, 12), config, run_dir=tmp_path / str(batches))
        assert untrained_modes(model) == left


def test_a_spoilt_batch_leaves_no_trace_but_its_count(tmp_path):
    model = tiny_conv()
    config = tiny_config(epochs=2)
    result = train(model, TinyBatches(spoil={0, 5}), config, run_dir=tmp_path / "run")
    assert (result.skipped, result.not_finite) == (2, 2)
    assert [row["skipped"] for row in result.history] == [1, 1]
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_too_many_skipped_batches_stop_the_run_with_a_reason(tmp_path, monkeypatch):
    config = tiny_config(epochs=2)
    with monkeypatch.context() as patch:
        patch.setattr(stability, "MAX_SKIPS", 3)
        with pytest.raises(TrainingDivergedError, match="3 batches in a row were skipped.*not fin"):
            train(tiny_conv(), TinyBatches(spoil={0, 1, 2}), config, run_dir=tmp_path / "row")
    with pytest.raises(TrainingDivergedError, match="3 of the 4 batches of an epoch were skipped"):
        train(tiny_conv(), TinyBatches(spoil={0, 2, 3}), config, run_dir=tmp_path / "epoch")


def test_training_leaves_the_world_as_it_was(tmp_path):
    model = tiny_conv().eval()
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    train(model, TinyBatches(), tiny_config(epochs=1), run_dir=tmp_path / "run")
    assert torch.equal(torch.rand(3), wanted)
    assert not model.training


def test_what_does_not_fit_is_refused_before_it_starts(tmp_path):
    config = tiny_config(curriculum=0.5)
    data = TinyBatches()
    data.num_classes = 7
    with pytest.raises(ValueError, match="train.curriculum=0.*set model.num_classes=7"):
        train(tiny_conv(), data, config, run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="takes token ids: set train.mixup=0"):
        train(tiny_former(), TinySequences(), tiny_config(), run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="names 3 active streams, but the model has 2"):
        train(tiny_conv(), TinyBatches(), tiny_config(modes={3: 1.0}), run_dir=tmp_path / "run")
    single = mn.Performer(mn.PerformerConfig(vocab_size=5, max_length=8, num_classes=3))
    with pytest.raises(ValueError, match="solo=0.5 is a warm-up that Performer does not have"):
        train(single, TinySequences(size=2), sequence_config(solo=0.5), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="holds 9 inputs, and a step is made for 8"):
        train(tiny_conv(), TinyBatches(4, 9), tiny_config(), run_dir=tmp_path / "size")


def test_data_that_ends_early_is_noticed(tmp_path):
    class Short(TinyBatches):
        def __len__(self):
            return 5

    with pytest.raises(ValueError, match="ended before the 5 batches it promised"):
        train(tiny_conv(), Short(4), tiny_config(), run_dir=tmp_path / "run")


def test_a_missing_extra_is_met_with_its_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(ValueError, match=r"pip install -e '.\[train\]' in a clone"):
        train(tiny_conv(), TinyBatches(), tiny_config(), run_dir=tmp_path / "run")


def test_curves_are_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    train(tiny_conv(), TinyBatches(), tiny_config(epochs=1), run_dir=tmp_path / "run")
    assert not (tmp_path / "run/tensorboard").exists()


@pytest.mark.slow
def test_the_loop_costs_little_more_than_forward_and_backward(tmp_path):
    config = tiny_config(steps=30, batch_size=128, recalibrate_batches=0)
    settings = {"num_streams": 16, "num_classes": 10, "image_size": 20}
    model, twin = tiny_conv(**settings), tiny_conv(**settings).train()
    ratios = []

    class Timed:
        """Time each step from outside, and beside it forward and backward alone."""

        num_classes = 10

        def __len__(self):
            return 1000

        def epoch(self, epoch, start=0):
            images, labels = torch.randn(2048, 1, 20, 20), torch.randint(10, (2048,))
            while True:
                began = time.perf_counter()
                yield images, labels
                step = time.perf_counter() - began
                began = time.perf_counter()
                loss = F.cross_entropy(twin(images), labels)
                (loss + penalty(twin, config)).backward()
                ratios.append(step / (time.perf_counter() - began))

    train(model, Timed(), config, run_dir=tmp_path / "run")
    assert statistics.median(ratios[3:]) < 1.15
