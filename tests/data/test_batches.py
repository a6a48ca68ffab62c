import pytest
import torch
from torch.testing import assert_close

from mimonets._inputs import InputSpec
from mimonets.data import (
    AugmentConfig,
    DataConfig,
    ImageBatches,
    ImageSet,
    SequenceBatches,
    SequenceSet,
    load_data,
    split_batches,
)
from mimonets.data.images.augment import (
    centre_crop,
    channel_statistics,
    crop_at,
    draw_offsets,
    flip_where,
    standardise,
)


def images(count=23, channels=3, size=8, classes=5):
    pixels = torch.randint(256, (count, channels, size, size), dtype=torch.uint8)
    return ImageSet(pixels, torch.arange(count) % classes, classes, "noise")


def sequences(count=11, width=200):
    lengths = torch.randint(1, width + 1, (count,))
    tokens = torch.randint(1, 9, (count, width), dtype=torch.uint8)
    return SequenceSet(tokens, lengths, torch.arange(count) % 2, 9, 2, "noise")


def same(left, right):
    left, right = list(left), list(right)
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        for x, y in zip(a, b, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("start", [0, 1, 4, 9])
def test_a_resumed_epoch_sees_the_batches_it_would_have_seen(start):
    batches = ImageBatches(
        images(), 5, shuffle=True, repeats=2, seed=3, augment=AugmentConfig(padding=2)
    )
    whole = list(batches.epoch(7))
    again = ImageBatches(
        batches.data, 5, shuffle=True, repeats=2, seed=3, augment=AugmentConfig(padding=2)
    )
    same(again.epoch(7, start=start), whole[start:])


def test_epochs_and_seeds_have_orders_of_their_own():
    data = images(200)
    orders = {
        tuple(
            torch.cat(
                [labels for _, labels in ImageBatches(data, 7, shuffle=True, seed=s).epoch(e)]
            )
        )
        for s in range(3)
        for e in range(3)
    }
    assert len(orders) == 9


def test_repeats_traverse_the_set_again_in_a_fresh_order():
    data = ImageSet(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10), 10, "ten")
    labels = torch.cat([y for _, y in ImageBatches(data, 4, shuffle=True, repeats=3)])
    rounds = labels.view(3, 10)
    assert all(sorted(row.tolist()) == list(range(10)) for row in rounds)
    assert not torch.equal(rounds[0], rounds[1])


@pytest.mark.parametrize("shuffle", [False, True])
def test_without_drop_last_every_item_comes_once(shuffle):
    data = images()
    batches = ImageBatches(data, 4, shuffle=shuffle)
    labels = torch.cat([labels for _, labels in batches])
    assert len(batches) == 6
    assert_close(labels.sort().values, data.labels.sort().values)


def test_drop_last_leaves_only_full_batches():
    batches = ImageBatches(images(), 5, drop_last=True)
    assert len(batches) == len(list(batches)) == 4
    with pytest.raises(ValueError, match="23 items x 1 do not fill one batch of 24"):
        ImageBatches(images(), 24, drop_last=True)


def test_batches_can_be_made_on_another_device():
    data, meta = images(24), torch.device("meta")
    batches = ImageBatches(data, 8, augment=AugmentConfig(padding=1))
    assert all(part.is_meta for batch in batches.to(meta) for part in batch)
    assert not any(part.is_meta for batch in batches for part in batch), "the others stay"
    sequenced = SequenceBatches(sequences(12), 4).to(meta)
    assert all(part.is_meta for batch in sequenced for part in batch)


def test_images_that_would_fill_a_device_stay_where_they_are(monkeypatch):
    monkeypatch.setattr("mimonets.data.batches.MOST_ON_DEVICE", 10)
    batches = ImageBatches(images(24), 8)
    assert batches.to(torch.device("meta")) is batches


def test_batches_are_standardised_with_the_training_statistics():
    data = images(500)
    pixels = torch.cat([batch for batch, _ in ImageBatches(data, 64)])
    assert_close(pixels.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert_close(pixels.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)


def test_channel_statistics_match_a_float_copy():
    data = images(50).images
    mean, std = channel_statistics(data)
    assert_close(mean, data.double().mean(dim=(0, 2, 3)).float())
    assert_close(std, data.double().std(dim=(0, 2, 3), correction=0).float())
    assert_close(
        channel_statistics(torch.full((2, 1, 2, 2), 7, dtype=torch.uint8))[1], torch.ones(1)
    )


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_crops_are_windows_of_the_padded_image(mode):
    pixels = images(9).images
    offsets = draw_offsets(9, 3, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(
        pixels.float(), (3,) * 4, mode="constant" if mode == "zero" else mode
    ).byte()
    expected = [
        image[:, y : y + 8, x : x + 8]
        for image, (y, x) in zip(padded, offsets.tolist(), strict=True)
    ]
    assert torch.equal(crop_at(pixels, offsets, 3, mode), torch.stack(expected))


def test_flips_mirror_only_the_chosen_images():
    pixels = images(3).images
    flipped = flip_where(pixels, torch.tensor([True, False, True]))
    assert torch.equal(flipped[0], pixels[0].flip(-1))
    assert torch.equal(flipped[1], pixels[1])
    assert torch.equal(flipped[2], pixels[2].flip(-1))


def test_offsets_reach_every_place():
    offsets = draw_offsets(2000, 2, generator=torch.Generator().manual_seed(0))
    assert {tuple(pair) for pair in offsets.tolist()} == {
        (y, x) for y in range(5) for x in range(5)
    }


def test_standardise_is_the_formula():
    pixels = images(4).images
    mean, std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    expected = (pixels.float() - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert_close(standardise(pixels, mean, std), expected)


def test_wrong_use_is_answered_in_one_line():
    with pytest.raises(ValueError, match="a crop of 9x9 does not fit images of 8x8"):
        centre_crop(images().images, 9)
    with pytest.raises(ValueError, match="cannot be reflected by 8: use padding below 8"):
        crop_at(images().images, torch.zeros(23, 2), 8, "reflect")
    with pytest.raises(ValueError, match="batch_size=0 must be at least 1"):
        ImageBatches(images(), 0)
    with pytest.raises(ValueError, match="padding=-1 .* mode='wrap' is not known"):
        AugmentConfig(padding=-1, mode="wrap")
    with pytest.raises(ValueError, match="start=9 lies outside the 6 steps"):
        next(ImageBatches(images(), 4).epoch(0, start=9))
    grey = channel_statistics(images(channels=1).images)
    with pytest.raises(ValueError, match="statistics of 1 channels.*with 3"):
        ImageBatches(images(), 4, statistics=grey)


def test_sequences_are_cut_to_the_longest_and_masked_by_length():
    data = sequences()
    index = 0
    for tokens, mask, labels in SequenceBatches(data, 3, round_to=16):
        lengths = data.lengths[index : index + len(labels)]
        width = min(-(-int(lengths.max()) // 16) * 16, 200)
        assert tokens.shape == mask.shape == (len(labels), width)
        assert tokens.dtype == torch.int64
        assert torch.equal(mask.sum(dim=1), lengths)
        assert torch.equal(tokens, data.tokens[index : index + len(labels), :width].long())
        index += len(labels)
    assert index == len(data)


def test_round_to_none_keeps_the_width():
    assert {t.shape[1] for t, _, _ in SequenceBatches(sequences(), 3, round_to=None)} == {200}


def test_pairs_keep_their_second_axis():
    data = SequenceSet(
        torch.ones(4, 2, 100, dtype=torch.uint8),
        torch.tensor([[1, 2], [70, 3], [4, 4], [5, 5]]),
        torch.zeros(4, dtype=torch.int64),
        2,
        2,
        "pairs",
    )
    shapes = [(tokens.shape, mask.sum().item()) for tokens, mask, _ in SequenceBatches(data, 2)]
    assert shapes == [((2, 2, 100), 76), ((2, 2, 64), 18)]


def test_next_tokens_are_not_scored_on_padding():
    tokens = torch.tensor([[1, 2, 3], [1, 2, 0]], dtype=torch.uint8)
    labels = torch.tensor([[2, 3, 1], [2, 3, 3]])
    data = SequenceSet(tokens, torch.tensor([3, 2]), labels, 4, 4, "next")
    ((_, _, scored),) = SequenceBatches(data, 2)
    assert scored.tolist() == [[2, 3, 1], [2, 3, -100]]


@pytest.mark.parametrize("start", [0, 2])
def test_resumed_sequences_are_the_same(start):
    data = sequences(12)
    alone = list(SequenceBatches(data, 4, shuffle=True, seed=5).epoch(1))
    same(SequenceBatches(data, 4, shuffle=True, seed=5).epoch(1, start=start), alone[start:])


@pytest.mark.slow
def test_a_batch_of_images_takes_few_milliseconds():
    import statistics
    import time

    batches = ImageBatches(
        images(4096, 1, 20), 1024, shuffle=True, augment=AugmentConfig(padding=0)
    )
    steps = iter(batches.epoch(0))
    next(steps)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        next(steps)
        times.append(time.perf_counter() - begin)
    assert statistics.median(times) < 0.01


def test_test_images_are_prepared_as_the_model_says(monkeypatch):
    config = DataConfig(limit=30)
    train = ImageBatches(load_data(config).train, 8)
    mean, deviation = (tuple(value.tolist()) for value in train.statistics)
    spec = InputSpec(kind="image", shape=(1, 8, 8), mean=mean, deviation=deviation)
    wanted = list(split_batches(config))
    monkeypatch.setattr("mimonets.data.registry.channel_statistics", None)  # nothing is counted
    same(split_batches(config, spec=spec), wanted)
    plain = next(iter(split_batches(DataConfig(limit=30, standardise=False))))[0]
    assert (plain.min(), plain.max()) == (0, 1)
    with pytest.raises(ValueError, match="digits has no validation data"):
        split_batches(config, "validation")
