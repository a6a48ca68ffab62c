import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mimonets.data import from_loader
from mimonets.data.interface import as_batches

ITEMS = TensorDataset(torch.arange(11.0)[:, None], torch.arange(11))


def labels(batches, epoch, start=0):
    return torch.cat([labels for _, labels in batches.epoch(epoch, start)]).tolist()


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_shuffling_loader_has_an_order_for_every_epoch(generator):
    batches = from_loader(DataLoader(ITEMS, 3, shuffle=True, generator=generator))
    first, second = labels(batches, 0), labels(batches, 1)
    torch.rand(5)  # other draws do not matter
    assert labels(batches, 0) == first != second
    assert sorted(first) == sorted(second) == list(range(11))
    assert labels(batches, 1, start=2) == second[6:]
    assert len(batches) == 4


def test_another_seed_is_another_order():
    loader = DataLoader(ITEMS, 3, shuffle=True)
    orders = [labels(from_loader(loader, seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return torch.randn(2), index


def test_random_items_are_the_same_when_an_epoch_is_resumed():
    batches = from_loader(DataLoader(Noisy(), 3, shuffle=True))
    whole = [inputs for inputs, _ in batches.epoch(0)]
    again = []
    for inputs, _ in batches.epoch(0, start=1):
        again.append(inputs)
        torch.rand(3)  # as dropout would
    assert torch.equal(torch.cat(whole[1:]), torch.cat(again))
    assert not torch.equal(whole[0], next(batches.epoch(1))[0])


def test_the_random_numbers_of_others_are_left_alone():
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    labels(from_loader(DataLoader(ITEMS, 3, shuffle=True)), 5)
    assert torch.equal(torch.rand(2), wanted)


def test_a_loader_that_does_not_shuffle_keeps_its_order_and_batches_stay_what_they_are():
    batches = from_loader(DataLoader(ITEMS, 4))
    assert labels(batches, 3) == list(range(11))
    assert as_batches(batches) is batches


def test_what_is_no_loader_or_gives_no_batch_gets_an_answer():
    with pytest.raises(ValueError, match="a DataLoader with a length, not a generator"):
        from_loader(x for x in [])
    with pytest.raises(ValueError, match="the loader gave a dict"):
        labels(from_loader(DataLoader([{"x": 1}])), 0)
