from dataclasses import asdict

import numpy as np
import pytest
import torch

import mimonets as mn
from mimonets._inputs import InputSpec
from mimonets.cli.open_models import open_network
from mimonets.inference.cascade import choose_threshold, thresholds
from mimonets.inference.manifest import read_manifest
from serving.fakes import TINY


def logits(classes, sure):
    """Make logits of given answers and confidences over three classes."""
    found = np.zeros((len(classes), 3))
    found[np.arange(len(classes)), classes] = np.log(2 * np.array(sure) / (1 - np.array(sure)))
    return found


def test_thresholds_count_what_a_loop_counts():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=200)
    sure = rng.uniform(0.4, 0.99, size=200)
    fast = logits(np.where(rng.uniform(size=200) < sure, labels, (labels + 1) % 3), sure)
    slow = logits(np.where(rng.uniform(size=200) < 0.97, labels, (labels + 1) % 3), sure)
    for row in thresholds(fast, slow, labels, active_streams=4, shares=(0.0, 0.1, 0.5, 1.0)):
        right = again = 0
        for one, two, label, how_sure in zip(fast, slow, labels, sure, strict=True):
            reruns = how_sure < row.confidence - 1e-12
            again += reruns
            right += (two if reruns else one).argmax() == label
        assert row.accuracy == pytest.approx(right / 200)
        assert row.rerun == pytest.approx(again / 200)
        assert row.cost == pytest.approx(0.25 + again / 200)


def test_rerunning_nothing_is_fast_and_rerunning_all_is_slow():
    labels = np.array([0, 1, 2, 0])
    fast, slow = logits([0, 1, 1, 1], [0.9, 0.8, 0.5, 0.6]), logits(labels, [0.9] * 4)
    none, half, everything = thresholds(
        fast, slow, labels, active_streams=4, shares=(0.0, 0.5, 1.0)
    )
    assert (none.accuracy, half.accuracy, everything.accuracy) == (0.5, 1.0, 1.0)
    assert choose_threshold([none, half, everything]) == half
    assert half.changed == 1.0


@pytest.mark.slow
def test_an_export_calibrates_thresholds_and_the_server_uses_them(tmp_path):
    torch.manual_seed(0)
    model = mn.MIMOConv(mn.MIMOConvConfig(num_streams=2, **TINY)).eval()
    model.input_spec = InputSpec(kind="image", shape=(1, 8, 8))
    images = torch.randn(40, 1, 8, 8)
    with torch.no_grad():
        slow, fast = (model(images, active_streams=active).numpy() for active in (1, 2))
    labels = slow.argmax(axis=1)
    batches = [(images[:20], labels[:20]), (images[20:], labels[20:])]
    folder = mn.export(
        model, tmp_path / "out", measure=False, options=mn.ExportOptions(validation=batches)
    )

    slowest, fastest = read_manifest(folder).modes
    assert (slowest.cascade, slowest.confidence) == ([], None)
    expected = thresholds(fast, slow, labels, active_streams=2)
    assert len(fastest.cascade) == len(expected)
    for found, wanted in zip(fastest.cascade, expected, strict=True):
        assert found == pytest.approx(asdict(wanted), abs=1e-5)
    assert fastest.confidence == pytest.approx(choose_threshold(expected).confidence, abs=1e-5)

    network = open_network("out", [folder], "onnxruntime", 1)
    assert [point.confidence for point in network.points] == [None, fastest.confidence]
    asked = open_network("out", [folder], "onnxruntime", 1, cascade=0.7)
    assert [point.confidence for point in asked.points] == [0.7, 0.7]
