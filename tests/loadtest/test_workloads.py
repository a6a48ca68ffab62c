import numpy as np
import pytest

from mimonets.loadtest.workloads import WORKLOADS, mmpp, poisson, read_trace, step


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_have_the_rate_they_say(name):
    times = WORKLOADS[name](100.0, 200.0, rng())
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0
    assert times[-1] <= 200
    rate = len(times) / 200
    wanted = 100 * (1 + 5 * 0.4) if name == "step" else 100
    assert rate == pytest.approx(wanted, rel=0.15)


def test_bursts_vary_more_than_poisson():
    def dispersion(times):
        counts = np.bincount(times.astype(int), minlength=200)
        return counts.var() / counts.mean()

    assert dispersion(poisson(100, 200, rng())) < 1.5
    assert dispersion(mmpp(100, 200, rng())) > 5


def test_a_trace_is_read_and_scaled(tmp_path):
    path = tmp_path / "trace.txt"
    path.write_text("0\n1\n2\n4\n8\n")
    assert read_trace(path).tolist() == [0, 1, 2, 4, 8]
    assert read_trace(path, rate=2.5).tolist() == [0, 0.25, 0.5, 1, 2]
    assert read_trace(path, rate=2.0, most=3).tolist() == [0, 0.75, 1.5]
    path.write_text("1700000001\n1700000000\n1700000004\n")
    assert read_trace(path).tolist() == [0, 1, 4], "times count from the first arrival"
    path.write_text("3\n3\n")
    with pytest.raises(ValueError, match="fewer than two arrivals at different times"):
        read_trace(path, rate=1.0)
    path.write_text("0\nsoon\n")
    with pytest.raises(ValueError, match="one arrival time in seconds a line"):
        read_trace(path)


def test_a_spike_of_step_lies_in_the_middle():
    times = step(100, 10, rng(), times=5, share=0.2)
    counts = np.bincount(times.astype(int), minlength=10)
    assert counts[4:6].min() > 2 * counts[[0, 1, 2, 3, 6, 7, 8, 9]].max()
