import pytest
import torch

from mimonets.experiments.foreign import printed_letters

pytest.importorskip("matplotlib")


def test_letters_are_drawn_alike_by_the_same_seed_and_fill_their_square():
    letters = printed_letters(40, 20, seed=1)
    assert (letters.shape, letters.dtype) == ((40, 1, 20, 20), torch.uint8)
    assert torch.equal(letters, printed_letters(40, 20, seed=1))
    assert not torch.equal(letters, printed_letters(40, 20, seed=2))
    ink = letters[:, 0] > 64
    for sides in (ink.any(dim=1), ink.any(dim=2)):  # columns, rows
        assert sides.sum(dim=1).amin() >= 6
    extent = torch.stack([ink.any(dim=1).sum(dim=1), ink.any(dim=2).sum(dim=1)]).amax(dim=0)
    assert extent.amin() >= 15, "the longer side fills most of the square"
    assert (letters.flatten(1).float().mean(dim=1) > 20).all()
    assert (letters[:, :, 0, 0] < 128).float().mean() > 0.9, "black behind them"
