import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from mimonets import WideResNet, WideResNetConfig
from mimonets.training.batch import Batch
from mimonets.training.objective import count_right, penalty, task_loss
from training.tiny import TinyBatches, tiny_config, tiny_conv, tiny_former


def test_a_mixture_is_scored_by_both_its_labels():
    torch.manual_seed(0)
    images, labels = next(TinyBatches().epoch(0))
    batch = Batch.of((images, labels), torch.device("cpu")).mix(0.3, seed=1)
    order = [
        next(
            j
            for j in range(8)
            if torch.allclose(mixed, 0.3 * images[i] + 0.7 * images[j], atol=1e-6)
        )
        for i, mixed in enumerate(batch.inputs)
    ]
    assert sorted(order) == list(range(8))
    logits = torch.randn(8, 3)
    wanted = 0.3 * F.cross_entropy(logits, labels) + 0.7 * F.cross_entropy(logits, labels[order])
    assert_close(task_loss(logits, batch, tiny_config()), wanted)
    assert count_right(F.one_hot(labels[order], 3), batch) == 8  # the larger part's label


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_equal_their_definition(smoothing):
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 5, 3), torch.randint(3, (4, 5))
    labels[:, -2:] = -100
    batch = Batch(torch.zeros(4, 5), labels)
    kept, wanted = logits[:, :3].reshape(-1, 3), labels[:, :3].reshape(-1)
    target = F.one_hot(wanted, 3) * (1 - smoothing) + smoothing / 3
    found = task_loss(logits, batch, tiny_config(label_smoothing=smoothing))
    assert_close(found, -(target * kept.log_softmax(-1)).sum(-1).mean())
    config = tiny_config(loss="squared_error", label_smoothing=smoothing)
    assert_close(task_loss(logits, batch, config), ((kept - (2 * target - 1)) ** 2).mean())
    assert batch.scored == 12


def test_penalties_are_asked_only_of_models_that_have_them():
    model, config = tiny_conv(), tiny_config(isometry=0.5, key_penalty=2.0)
    wanted = 0.5 * model.isometry_penalty() + 2.0 * model.stream_key_penalty()
    assert_close(penalty(model, config), wanted)
    plain = WideResNet(WideResNetConfig(depth=10, width=1))
    assert_close(penalty(plain, config), 0.5 * plain.isometry_penalty())
    assert penalty(tiny_former(), config) == 0
    assert penalty(model, tiny_config(isometry=0, key_penalty=0)) == 0


@pytest.mark.parametrize("parts", [1, 2, 3, 9])
def test_parts_hold_whole_groups_and_lose_nothing(parts):
    batch = Batch(torch.arange(14.0), torch.arange(14), torch.ones(14, 2), torch.arange(14))
    pieces = batch.split(parts, group=4)
    assert len(pieces) <= parts
    assert all(len(piece.inputs) % 4 == 0 for piece in pieces[:-1])
    for name in ("inputs", "labels", "mask", "mixed_in"):
        joined = torch.cat([getattr(piece, name) for piece in pieces])
        assert torch.equal(joined, getattr(batch, name))
