"""Warming up by naming the tokens of the inputs, as DataMUX does."""

import pytest
import torch
import torch.nn.functional as F

from mimonets.training import TrainConfig, loop, train
from mimonets.training.batch import Batch
from mimonets.training.step import plan_step
from training.tiny import TinySequences, same_weights, sequence_config, tiny_datamux, tiny_former


def test_it_takes_a_share_of_the_first_steps_and_changes_nothing_else():
    model, config = tiny_datamux(), sequence_config(retrieval=0.3)
    plans = [plan_step(config, model, step, 10) for step in range(10)]
    assert [plan.warm_up for plan in plans] == ["retrieval"] * 3 + [None] * 7
    without = [plan_step(sequence_config(), model, step, 10) for step in range(10)]
    assert not any(plan.warm_up for plan in without)
    assert [plan.seed for plan in plans] == [plan.seed for plan in without]


def test_real_tokens_are_the_labels_and_padding_is_not():
    tokens, mask = torch.tensor([[4, 3], [2, 0]]), torch.tensor([[True, True], [True, False]])
    batch = Batch(tokens, torch.tensor([1, 1]), mask).naming_tokens()
    assert batch.labels.tolist() == [[4, 3], [2, -100]]
    assert batch.scored == 3
    assert Batch(tokens, torch.tensor([1, 1])).naming_tokens().labels.equal(tokens)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_step_is_a_step_on_the_tokens(tmp_path, accumulate):
    settings = {"optimizer": "sgd", "schedule": "constant", "momentum": (0, 0), "weight_decay": 0}
    config = sequence_config(
        steps=1, retrieval=1.0, batch_size=4, accumulate=accumulate, **settings
    )
    model, twin = tiny_datamux(dropout=0.0), tiny_datamux(dropout=0.0)
    result = train(model, TinySequences(), config, run_dir=tmp_path / "run")
    tokens, mask, _ = next(TinySequences().epoch(0))
    logits = twin.retrieval_logits(tokens, mask=mask)
    loss = F.cross_entropy(logits[mask], tokens[mask])
    loss.backward()
    assert result.history[0]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for (name, value), start in zip(model.named_parameters(), twin.parameters(), strict=True):
        wanted = start if start.grad is None else start - config.lr * start.grad
        torch.testing.assert_close(value, wanted, msg=name)
        assert name.startswith("readout") == (start.grad is None)


@pytest.mark.parametrize("next_token", [False, True])
def test_a_run_that_was_cut_off_while_it_warmed_up_ends_with_the_same_weights(
    tmp_path, monkeypatch, next_token
):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    settings = {"head": "next_token", "causal": True} if next_token else {}
    config = sequence_config(retrieval=0.5, batch_size=4)

    def stop_at(step):
        def before(number):
            if number == step:
                raise KeyError

        return before

    def run(folder, step=-1, *, resume=False):
        model = tiny_datamux(dropout=0.1, **settings)
        batches = TinySequences(next_token=next_token, before=stop_at(step))
        train(model, batches, config, run_dir=tmp_path / folder, resume=resume)
        return model

    whole = run("whole")
    for step in (2, 5):
        with pytest.raises(KeyError):
            run(f"cut-{step}", step)
        assert same_weights(run(f"cut-{step}", resume=True), whole)


def test_models_that_cannot_and_shares_that_are_none_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match="retrieval=0.1 .* MIMOFormer does not have: set train.retr"
    ):
        train(
            tiny_former(), TinySequences(), sequence_config(retrieval=0.1), run_dir=tmp_path / "run"
        )
    with pytest.raises(ValueError, match="retrieval=1.5 must be a number >= 0 and <= 1"):
        TrainConfig(retrieval=1.5)
