import os
from pathlib import Path

import numpy as np
import pytest

import mimonets.serving.policy as policy_module
from mimonets.cli.main import main
from mimonets.cli.simulate import DIGITS
from mimonets.loadtest.comparison import Comparison, compare, contenders, fluid_bound, spike
from mimonets.loadtest.simulator import simulate, superposed_points
from mimonets.loadtest.workloads import poisson, read_trace
from mimonets.serving.operating_points import ServiceTime
from mimonets.serving.policy import Policy

# Arrival times of two services, CC BY 4.0, Patel et al. 2024: one time in seconds a line.
ARRIVALS = Path(os.environ.get("MIMONETS_ARRIVALS", "data/arrivals"))
SLO = 0.1


def example_points(call_ms=0.2):
    return superposed_points(DIGITS, ServiceTime(per_call=call_ms / 1000, per_pass=0.008))


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def table():
    """The comparison that serving is designed by, on one seed."""
    comparison = Comparison(
        points=example_points(), loads=(0.8, 1.2, 2.0, 3.0), requests=2500, small=(0.25, 0.98)
    )
    return {(row["load"], row["rule"]): row for row in compare(comparison)}


@pytest.mark.parametrize("load", [0.8, 1.2, 2.0, 3.0])
def test_the_drain_test_is_close_to_the_fluid_bound(table, load):
    ours, bound = table[load, "drain test"], table[load, "fluid bound"]
    assert bound["right_in_time"] - 0.0015 <= ours["right_in_time"] <= bound["right_in_time"] + 2e-3
    assert ours["refused"] == 0
    assert ours["late"] == 0
    assert ours["p99"] < 0.075


@pytest.mark.parametrize("load", [1.2, 2.0, 3.0])
@pytest.mark.parametrize(
    "rule", ["fixed, 1 active", "fixed, 2 active", "fixed, 4 active", "superpose what waits"]
)
def test_the_drain_test_beats_the_other_rules(table, load, rule):
    assert table[load, "drain test"]["right_in_time"] > table[load, rule]["right_in_time"]


def test_at_three_times_the_slow_capacity_it_answers_at_least_2_5_times_as_many(table):
    slow, ours = table[3.0, "fixed, 1 active"], table[3.0, "drain test"]
    assert ours["right_in_time"] > 2.5 * slow["right_in_time"]


@pytest.mark.parametrize("load", [4.0, 5.0])
def test_beyond_all_capacity_it_is_within_a_third_of_a_point_of_the_fastest_mode(load):
    points = example_points()
    arrivals = poisson(load / points[0].cost, 12.0, rng())
    ours, fastest = (
        simulate(Policy(chosen), arrivals, SLO, rng=rng(), truth=points).summary()["right_in_time"]
        for chosen in (points, points[-1:])
    )
    assert ours > fastest - 0.003


def test_a_spike_is_absorbed_at_once():
    lines = spike(Comparison(points=example_points(), requests=1000))
    ours, slow = lines["drain test"], lines["fixed, 1 active"]
    assert min(ours["right_in_time"]) > 0.95
    assert min(slow["right_in_time"]) < 0.5
    assert max(ours["active"]) > 3


def test_a_simulation_can_be_repeated():
    arrivals = poisson(200, 5, rng())
    first, second = (simulate(Policy(example_points()), arrivals, SLO, rng=rng()) for _ in range(2))
    assert first.summary() == second.summary()


def test_one_point_and_light_load_is_a_queue_with_constant_service():
    """M/D/1: the mean wait is rho / (2 mu (1 - rho)), by Pollaczek and Khinchine."""
    service, rho = 0.01, 0.5
    policy = Policy(superposed_points({1: 1.0}, ServiceTime(per_pass=service)))
    policy.settings = type(policy.settings)(passes=1, max_passes=1)
    arrivals = poisson(rho / service, 300, rng())
    found = simulate(policy, arrivals, 10.0, rng=rng(), noise=0.0)
    wait = float(np.mean(found.latency)) - service
    assert wait == pytest.approx(rho * service / (2 * (1 - rho)), rel=0.07)


@pytest.mark.skipif(
    not ARRIVALS.exists(), reason="set MIMONETS_ARRIVALS to a folder with azure-llm-2023-*.txt"
)
@pytest.mark.parametrize("name", ["azure-llm-2023-code", "azure-llm-2023-conv"])
def test_recorded_arrivals_are_served_about_as_well_as_by_the_best_fixed_mode_or_better(name):
    points = example_points()
    rate = 1.5 / points[0].cost
    arrivals = read_trace(ARRIVALS / f"{name}.txt", rate=rate)[:5000]
    found = {
        rule: simulate(policy, arrivals, SLO, rng=rng(), truth=points).summary()["right_in_time"]
        for rule, policy in contenders(points).items()
        if "fixed" in rule or rule == "drain test"
    }
    ours = found.pop("drain test")
    # The bursts of one trace exceed even the fastest mode: there it has to be as fast as that.
    assert ours > max(found.values()) - 0.003
    assert ours > 1.2 * found["fixed, 1 active"]


def test_the_fluid_bound_is_never_crossed():
    points = example_points(call_ms=0.0)
    for load in (1.2, 2.0, 6.0):
        share, accuracy = fluid_bound(points, load / points[0].cost)
        arrivals = np.arange(3000) / (load / points[0].cost)  # evenly: no luck involved
        found = simulate(Policy(points), arrivals, SLO, rng=rng(), noise=0.0).summary()
        after_the_end = 1 + SLO / arrivals[-1]  # what was queued then is still answered
        assert found["right_in_time"] <= share * accuracy * after_the_end + 1e-9


def test_the_command_prints_a_table_and_writes_a_plot(tmp_path, capsys):
    plot, out = tmp_path / "p.png", tmp_path / "o.json"
    arguments = ["simulate", "--loads", "1,3", "--requests", "300", "--small", "0.25:0.98"]
    assert main([*arguments, "--plot", str(plot), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    for text in ("drain test", "fluid bound", "big/small switch"):
        assert text in printed
    assert plot.stat().st_size > 10_000
    assert "right_in_time" in out.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loads", "0"], "loads=(0.0,) must be numbers above 0"),
        (["--slo-ms", "nan"], "slo=nan s must be longer than a single pass"),
        (["--loads", "nan"], "must be numbers above 0"),
        (["--small", "0:2"], "must be a fraction of the cost and an accuracy"),
        (["--seed", "-1"], "seed=-1 must be an integer >= 0"),
        (["--slo-ms", "5"], "slo=0.005 s must be longer than a single pass"),
        (["--theta", "2"], "theta=2.0 must be a number > 0 and <= 1"),
        (["--pass-ms", "0"], "--pass-ms 0 and --call-ms 0.2 must be numbers of milliseconds"),
    ],
)
def test_the_command_names_mistakes(arguments, message, capsys):
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0:0.5", "1:99", "one:0.5"])
def test_modes_that_are_none_are_named(text, capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "--modes", text])
    assert f"{text!r} is no list of modes with accuracies" in capsys.readouterr().err


class Pauses:
    """Draws no noise, but makes every so many jobs take several times as long."""

    def __init__(self, every, times):
        self.every, self.times, self.jobs = every, times, 0

    def normal(self, *_):
        self.jobs += 1
        return np.log(self.times) if self.jobs % self.every == 0 else 0.0


def test_a_machine_that_pauses_now_and_then_breaks_few_promises_under_overload(monkeypatch):
    points = example_points()
    arrivals = poisson(8 / points[0].cost, 40.0, rng())

    def late():
        outcome = simulate(Policy(points), arrivals, 0.25, rng=Pauses(100, 3.0)).summary()
        return outcome["late"] * outcome["offered"], outcome["in_time"]

    few, answered = late()
    monkeypatch.setattr(policy_module, "LARGEST_RESERVE", policy_module.LEAST_RESERVE)
    many, answered_then = late()
    assert few < many / 3
    assert answered > answered_then - 0.01, "a shorter queue answers as many"
