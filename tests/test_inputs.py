"""The description of inputs prepares them as training does, bit for bit, and survives JSON."""

import json

import numpy as np
import pytest
import torch

from mimonets._inputs import InputSpec
from mimonets.data.images.augment import centre_crop, channel_statistics, standardise


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
    ],
)
def test_what_is_no_description_is_refused(description, message):
    with pytest.raises(ValueError, match=message):
        InputSpec.from_dict(description)


def test_prepare_keeps_raw_images_without_statistics():
    spec = InputSpec(kind="image", shape=(1, 2, 2))
    assert spec.prepare(np.full((1, 2, 2), 7, dtype=np.uint8)).dtype == np.float32
