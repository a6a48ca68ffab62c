import pytest
import torch
from torch import nn

from mimonets import MIMOConv, MIMOConvConfig, MIMOFormer, MIMOFormerConfig
from mimonets.evaluation.accuracy import (
    evaluate,
    expected_calibration_error,
    final_token,
    wilson_interval,
)
from mimonets.models.base import eval_mode


class InMemory:
    """Batches of any sizes, cut one after the other out of the data."""

    def __init__(self, *data, sizes, num_classes=3):
        self.batches = list(zip(*(part.split(sizes) for part in data), strict=True))
        self.num_classes = num_classes

    def __len__(self):
        return len(self.batches)

    def epoch(self, epoch, start=0):
        yield from self.batches[start:]


def conv(num_streams=4):
    torch.manual_seed(0)
    config = MIMOConvConfig(
        depth=10, width=1, initial_width=1, num_classes=3, num_streams=num_streams, in_channels=1
    )
    return MIMOConv(config)


def images(count):
    torch.manual_seed(1)
    return torch.randn(count, 1, 8, 8), torch.randint(3, (count,))


@pytest.mark.parametrize("active", [1, 3, 4])
def test_the_ends_of_batches_do_not_matter(active):
    model, data = conv(), images(24)
    whole = evaluate(model, InMemory(*data, sizes=[24]), [active])
    pieces = evaluate(model, InMemory(*data, sizes=[5, 2, 10, 7]), [active])
    assert pieces[active].correct == whole[active].correct
    assert pieces[active].per_stream == whole[active].per_stream
    assert pieces[active].loss == pytest.approx(whole[active].loss, abs=1e-5)


def test_a_last_group_is_filled_with_inputs_that_count_once():
    model, (x, labels) = conv(), images(6)
    found = evaluate(model, InMemory(x, labels, sizes=[4, 2]))[4]
    with eval_mode(model):
        logits = torch.cat([model(x[:4]), model(torch.cat([x[4:], x[:2]]))[:2]])
    assert found.total == 6
    assert found.correct == int((logits.argmax(1) == labels).sum())
    assert found.loss == pytest.approx(float(nn.functional.cross_entropy(logits, labels)), abs=1e-5)


def test_accuracy_per_stream_belongs_to_the_place_in_the_group():
    class Knows(nn.Module):
        """Right for the first input of each pair only."""

        num_streams = 2

        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.zeros(1))

        def forward(self, x, active_streams=None):
            logits = torch.eye(3)[x[:, 0].long()]
            logits[1::2] = logits[1::2].roll(1, dims=1)
            return logits

    labels = torch.tensor([0, 1, 2, 2, 1, 0])
    found = evaluate(Knows(), InMemory(labels[:, None].float(), labels, sizes=[3, 3]))[2]
    assert found.per_stream == (1.0, 0.0)
    assert found.accuracy == 0.5
    assert found.interval[0] < 0.5 < found.interval[1]


def test_sequences_of_different_length_and_pairs_are_evaluated():
    torch.manual_seed(0)
    settings = {"vocab_size": 9, "max_length": 8, "num_classes": 3, "depth": 1, "dim": 8}
    settings |= {"heads": 1, "head_dim": 8, "hidden_dim": 8, "num_features": 8, "grid": (2, 2)}
    model = MIMOFormer(MIMOFormerConfig(**settings))
    short, long = torch.randint(9, (3, 5)), torch.randint(9, (4, 8))

    class Ragged(InMemory):
        def __init__(self):
            self.num_classes = 3
            self.batches = [
                (x, torch.ones_like(x, dtype=torch.bool), torch.zeros(len(x), dtype=torch.long))
                for x in (short, long)
            ]

    assert {mode: found.total for mode, found in evaluate(model, Ragged(), [1, 4]).items()} == {
        1: 7,
        4: 7,
    }
    pair = MIMOFormer(MIMOFormerConfig(**settings, head="pair"))
    tokens = torch.randint(9, (5, 2, 8))
    mask, labels = torch.ones_like(tokens, dtype=torch.bool), torch.zeros(5, dtype=torch.long)
    batches = InMemory(tokens, mask, labels, sizes=[3, 2])
    assert evaluate(pair, batches, [1, 3, 4])[3].total == 5


def test_next_tokens_are_judged_by_the_last_one_with_a_label():
    labels = torch.tensor([[5, 1, -100], [-100, -100, 2], [0, -100, -100]])
    logits = torch.randn(3, 3, 6)
    kept, wanted = final_token(logits, labels)
    assert wanted.tolist() == [1, 2, 0]
    assert torch.equal(kept, torch.stack([logits[0, 1], logits[1, 2], logits[2, 0]]))


def test_calibration_error_equals_the_sum_over_bins():
    torch.manual_seed(0)
    logits, labels = 3 * torch.randn(500, 4), torch.randint(4, (500,))
    confidence, answer = logits.softmax(1).max(1)
    wanted = 0.0
    for low in range(15):
        inside = (confidence >= low / 15) & (confidence < (low + 1) / 15)
        if inside.any():
            right = (answer == labels)[inside].float().mean()
            wanted += float(inside.float().mean() * (right - confidence[inside].mean()).abs())
    assert expected_calibration_error(logits, labels) == pytest.approx(wanted, abs=1e-5)
    for odd in (float("nan"), float("inf")):
        logits[3, 1] = odd
        with pytest.raises(ValueError, match="infinite or not a number"):
            expected_calibration_error(logits, labels)


@pytest.mark.parametrize(("correct", "total"), [(0, 1), (1, 1), (3, 7), (500, 500)])
def test_the_interval_holds_the_share_and_stays_a_share(correct, total):
    low, high = wilson_interval(correct, total)
    assert 0 <= low <= correct / total <= high <= 1
    assert low < high


def test_the_training_flag_of_every_module_comes_back():
    model = conv()
    model.train()
    model.stem.eval()
    with eval_mode(model):
        assert not any(module.training for module in model.modules())
    assert model.training
    assert not model.stem.training
    evaluate(model, InMemory(*images(4), sizes=[4]))
    assert model.training


def test_nothing_to_evaluate_and_impossible_modes_get_an_answer():
    with pytest.raises(ValueError, match="Nothing to evaluate"):
        evaluate(conv(), InMemory(*images(0), sizes=[]))
    with pytest.raises(ValueError, match="does not fit 4 superposition streams"):
        evaluate(conv(), InMemory(*images(4), sizes=[4]), [5])


def test_a_data_loader_is_evaluated_like_batches():
    from torch.utils.data import DataLoader, TensorDataset

    model, (x, labels) = conv(), images(10)
    loader = DataLoader(TensorDataset(x, labels), batch_size=3)
    assert evaluate(model, loader, [1, 4]) == evaluate(
        model, InMemory(x, labels, sizes=[3] * 3 + [1]), [1, 4]
    )
    with pytest.raises(ValueError, match="a DataLoader with a length, not a int"):
        evaluate(model, 3)
    with pytest.raises(ValueError, match=r"the loader gave a list of 1"):
        evaluate(model, DataLoader(TensorDataset(x), batch_size=3))


def test_a_network_of_others_without_weights_is_evaluated():
    class Sum(nn.Module):
        num_streams = 2
        input_spec = None

        def forward(self, x, *, active_streams=None):
            return nn.functional.one_hot(x.flatten(1).sum(dim=1).long() % 3, 3).float()

    data = torch.arange(7).float()[:, None], torch.arange(7) % 3
    assert evaluate(Sum(), InMemory(*data, sizes=[4, 3]), [1, 2])[2].correct == 7
