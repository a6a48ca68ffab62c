"""Training asks a network for num_streams and forward(inputs, active_streams=...), no more."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mimonets.data.interface import as_batches
from mimonets.training import loop, train
from training.tiny import TinyBatches, same_weights, tiny_config


class Foreign(nn.Module):
    """Two images per pass, as the two channels of one; nothing of ours."""

    num_streams = 2

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.PReLU(), nn.Flatten())
        self.heads = nn.Linear(8 * 36, 6)

    def forward(self, x, active_streams=None):
        if active_streams == 1:
            return self.heads(self.trunk(x.expand(-1, 2, -1, -1))).unflatten(1, (2, 3)).mean(dim=1)
        pairs = x.unflatten(0, (-1, 2)).squeeze(2)
        return self.heads(self.trunk(pairs)).unflatten(1, (2, 3)).flatten(0, 1)


def foreign():
    torch.manual_seed(0)
    return Foreign()


def loader(batch_size=8, **options):
    batches = [batch for epoch in range(4) for batch in TinyBatches().epoch(epoch)]
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return DataLoader(TensorDataset(images, labels), batch_size=batch_size, **options)


def test_a_small_network_and_a_data_loader_train(tmp_path):
    model = foreign()
    config = tiny_config(epochs=4, mixup=0, fast_share=0.7)
    result = train(
        model, loader(shuffle=True), config, run_dir=tmp_path / "run", validation=loader()
    )
    assert result.history[-1]["loss"] < 0.5 * result.history[0]["loss"]
    assert result.final.keys() == {1, 2}
    assert result.slopes.keys() == {"trunk.2"}
    weights = load_file(result.model_dir / "model.safetensors")
    assert same_weights(weights, model.state_dict())
    assert "kind: Foreign" in (tmp_path / "run/recipe.yaml").read_text()


def test_a_shuffled_loader_resumes_to_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)

    class PowerCutError(Exception):
        pass

    def stop(row):
        if row["epoch"] == 1:
            raise PowerCutError

    config = tiny_config(epochs=2)
    whole, parts = foreign(), foreign()
    train(whole, loader(shuffle=True), config, run_dir=tmp_path / "whole")
    with pytest.raises(PowerCutError):  # after the epoch, before its checkpoint
        train(
            foreign(),
            loader(shuffle=True),
            config,
            run_dir=tmp_path / "cut",
            on_progress=stop,
        )
    train(parts, loader(shuffle=True), config, run_dir=tmp_path / "cut", resume=True)
    assert same_weights(whole, parts)


@pytest.mark.parametrize("own_generator", [False, True])
def test_the_order_of_a_loader_follows_from_the_epoch(own_generator):
    def shuffled():
        generator = torch.Generator() if own_generator else None
        return as_batches(loader(shuffle=True, generator=generator))

    state = torch.get_rng_state()
    first, again = ([labels for _, labels in shuffled().epoch(3)] for _ in range(2))
    assert torch.equal(torch.cat(first), torch.cat(again))
    rest = [labels for _, labels in shuffled().epoch(3, start=9)]
    assert all(map(torch.equal, first[9:], rest))
    assert len(rest) == len(first) - 9
    other = [labels for _, labels in shuffled().epoch(4)]
    assert not all(map(torch.equal, first, other))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_trained_is_told_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="num_streams and forward.* Linear is none: .* is None"):
        train(nn.Linear(2, 3), loader(), tiny_config(), run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="batches .* or a DataLoader .* not a generator"):
        train(foreign(), (i for i in ()), tiny_config(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
