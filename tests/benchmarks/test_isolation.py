import numpy as np
import pytest
import torch

import mimonets as mn
from benchmark_files import load_benchmark
from serving.fakes import TINY

isolation = load_benchmark("isolation")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = mn.MIMOConv(mn.MIMOConvConfig(num_streams=4, **TINY)).eval()
    return model.requires_grad_(False)


def test_neighbours_by_gradient_do_more_harm_than_noise(model):
    def answer(inputs, active):
        with torch.no_grad():
            return model(torch.from_numpy(inputs), active_streams=active).numpy()

    rng = np.random.default_rng(0)
    victims = rng.standard_normal((16, 1, 8, 8), dtype=np.float32)
    labels = answer(victims, 1).argmax(axis=1)
    attacks = {
        "noise": isolation.noise(1.0, rng),
        "gradient": isolation.by_gradient(model, limit=2.0, steps=5),
        "not finite": isolation.constant(float("nan")),
    }
    rows = isolation.measure_isolation(answer, victims, labels, attacks, (1, 4), rng=rng)
    found = {(row.neighbours, row.active_streams): row for row in rows}
    assert found["gradient", 4].flipped > found["noise", 4].flipped
    assert found["not finite", 4].lost == 1.0
    for name in attacks:
        assert found[name, 1].flipped == 0, "alone in its pass nobody can touch it"
