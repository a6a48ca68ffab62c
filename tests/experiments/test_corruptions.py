import math

import pytest
import torch

from mimonets.experiments.corruptions import CORRUPTIONS, STRENGTHS, corrupt


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (12, 3, 11, 11), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_same_seed_damages_alike_and_strength_damages_more(images, kind):
    damage = []
    for strength in STRENGTHS:
        found = corrupt(images, kind, strength, seed=3)
        assert (found.dtype, found.shape) == (images.dtype, images.shape)
        assert torch.equal(found, corrupt(images, kind, strength, seed=3))
        damage.append((found.float() - images.float()).square().mean())
    if kind != "shift":  # noise looks no more like itself one pixel away
        assert damage == sorted(damage)
    assert damage[0] > 0


def test_what_is_random_depends_on_the_seed(images):
    for kind in ("noise", "shift"):
        assert not torch.equal(corrupt(images, kind, 1, seed=0), corrupt(images, kind, 1, seed=1))


def test_a_blurred_pixel_is_the_weighted_mean_of_its_neighbours(images):
    sigma, side = 0.03 * 2 * 11, 11
    reach = math.ceil(3 * sigma)
    found = corrupt(images, "blur", 2)
    for y, x in ((5, 5), (0, 10), (3, 1)):
        total = weight = 0.0
        for down in range(-reach, reach + 1):
            for right in range(-reach, reach + 1):
                w = math.exp(-(down**2 + right**2) / (2 * sigma**2))
                row, column = (min(max(v, 0), side - 1) for v in (y + down, x + right))
                total += w * images[4, 1, row, column].item()
                weight += w
        assert found[4, 1, y, x].item() == pytest.approx(total / weight, abs=0.51)


def test_contrast_keeps_the_mean(images):
    found = corrupt(images, "contrast", 3).float()
    assert found.mean().item() == pytest.approx(images.float().mean().item(), abs=0.1)
    ratio = found.std(dim=(1, 2, 3)) / images.float().std(dim=(1, 2, 3))
    assert ratio.tolist() == pytest.approx([0.15] * 12, abs=0.005)


def test_a_shift_moves_every_image_one_way(images):
    reach = 3  # 3/16 of 11 pixels, rounded up
    found = corrupt(images, "shift", 3)
    inside = slice(reach, -reach)
    ways = set()
    for before, after in zip(images, found, strict=True):
        fits = [
            way
            for way, move in enumerate([(0, reach), (0, -reach), (reach, 0), (-reach, 0)])
            if torch.equal(before.roll(move, (1, 2))[:, inside, inside], after[:, inside, inside])
        ]
        assert len(fits) == 1
        ways.update(fits)
    assert ways == {0, 1, 2, 3}


def test_an_unknown_corruption_or_strength_is_answered_with_those_there_are(images):
    with pytest.raises(ValueError, match="'blurr'.*did you mean 'blur'"):
        corrupt(images, "blurr", 1)
    with pytest.raises(ValueError, match="strength=4 must be one of 1, 2, 3"):
        corrupt(images, "blur", 4)
