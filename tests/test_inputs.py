"""The description of inputs prepares them as training does, bit for bit, and survives JSON."""

import json

import numpy as np
import pytest
import torch

from mimonets._inputs import InputSpec
from mimonets.data.images.augment import centre_crop, channel_statistics, standardise
from mimonets.data.images.reading import to_input


def test_prepared_images_are_those_of_training():
    images = torch.randint(256, (5, 3, 9, 8), dtype=torch.uint8)
    cropped = centre_crop(images, 6)
    mean, deviation = channel_statistics(cropped)
    spec = InputSpec(
        kind="image",
        shape=(3, 6, 6),
        mean=tuple(mean.tolist()),
        deviation=tuple(deviation.tolist()),
        crop=6,
    )
    assert torch.equal(
        torch.from_numpy(spec.prepare(images.numpy())), standardise(cropped, mean, deviation)
    )


def test_a_description_survives_json():
    spec = InputSpec(kind="tokens", shape=(7,), vocab_size=3, labels=("no", "yes"))
    assert InputSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    assert spec.label(1) == "yes"
    assert InputSpec(kind="tokens", shape=(7,)).label(1) == "1"


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"kind": "sound", "shape": [3]}, "kind='sound' is not known: choose from image, tokens"),
        ({"kind": "image", "shape": [3]}, r"shape=\(3,\) must be \(channels, height, width\)"),
        ({"kind": "image", "shape": [3, 8, 8], "mean": [1.0]}, "one number for each of 3 channels"),
        ({"kind": "image", "shape": [1, 8, 8], "colour": 1}, "no description of inputs.*colour"),
        ({"shape": [1, 8, 8]}, "no description of inputs"),
        ({"kind": "image", "shape": [1, 8, 8], "mean": [1.0]}, "mean is given without deviation"),
        ({"kind": "image", "shape": [1, 8, 8], "deviation": [1.0]}, "deviation is .* without mean"),
        ({"kind": "image", "shape": [1, 8, 8], "crop": 9}, r"crop=9 must be the height and width"),
        (
            {"kind": "image", "shape": [1, 8, 8], "crop": 8, "original": [7, 9]},
            r"original=\(7, 9\) must be no smaller than the crop",
        ),
        (
            {"kind": "image", "shape": [1, 8, 8], "original": []},
            "must be a list of 2, each an integer",
        ),
    ],
)
def test_what_is_no_description_is_refused(description, message):
    with pytest.raises(ValueError, match=message):
        InputSpec.from_dict(description)


def test_an_image_smaller_than_the_crop_is_refused():
    spec = InputSpec(kind="image", shape=(1, 8, 8), crop=8)
    with pytest.raises(ValueError, match="9x7 pixels.*crop of 8"):
        spec.prepare(np.zeros((1, 9, 7), dtype=np.uint8))


def test_a_crop_of_images_of_unknown_size_takes_them_as_they_are():
    image = np.random.default_rng(0).integers(256, size=(10, 12), dtype=np.uint8)
    crop = InputSpec(kind="image", shape=(1, 8, 8), crop=8)
    assert (to_input(image, crop)[0] == image[1:9, 2:10]).all()
    assert to_input(image, InputSpec(kind="image", shape=(1, 5, 6))).shape == (1, 5, 6)
    known = InputSpec(kind="image", shape=(1, 8, 8), crop=8, original=(20, 24))
    assert not (to_input(image, known)[0] == image[1:9, 2:10]).all()


def test_prepare_keeps_raw_images_without_statistics():
    spec = InputSpec(kind="image", shape=(1, 2, 2))
    assert spec.prepare(np.full((1, 2, 2), 7, dtype=np.uint8)).dtype == np.float32
