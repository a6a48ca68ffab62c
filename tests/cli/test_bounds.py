import json
from pathlib import Path

import pytest

from mimonets.cli.main import main

ROOT = Path(__file__).parents[2]


def run(capsys, *arguments):
    code = main(["bounds", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_bounds_prints_every_bound_beside_its_simulation(capsys):
    code, out, err = run(capsys, "--samples", "20", "--seed", "3")
    assert code == 0
    assert "≤ 0.785" in out
    assert "≤ 0.0474" in out
    assert "Bernstein" in out
    assert err == ""


def test_bounds_json_is_the_record_that_reproduce_writes(capsys):
    code, out, _ = run(capsys, "--samples", "20", "--seed", "3", "--json")
    assert code == 0
    record = json.loads(out)
    assert (record["report"]["seed"], record["report"]["samples"]) == (3, 20)
    assert len(record["report"]["rows"]) == 34
    published = json.loads((ROOT / "results" / "bounds.json").read_text())
    assert list(record) == list(published)
    assert [row["what"] for row in record["rows"]] == [row["what"] for row in published["rows"]]


def test_plan_answers_in_numbers_and_in_words(capsys):
    code, out, _ = run(capsys, "plan", "--dim", "64", "--streams", "4")
    assert code == 0
    words = " ".join(out.split())
    assert "at most 0.0474" in words
    assert "attention: 2 x 2" in words
    assert "Learned keys" in words
    assert "Nonlinear trunks" in words


def test_plan_passes_every_option_on(capsys):
    asked = {"angle": 60, "probability": 0.01, "alpha": 0.3, "cosine": 0.8, "items": 7, "tokens": 9}
    options = [part for name, value in asked.items() for part in (f"--{name}", str(value))]
    _, out, _ = run(capsys, "plan", "--dim", "512", "--streams", "6", *options, "--json")
    found = json.loads(out)
    for name, value in {**asked, "dim": 512, "num_streams": 6}.items():
        assert found[name] == value
    assert found["grid"] == [2, 3]


def test_json_is_heard_on_either_side_of_plan(capsys):
    plan = ["plan", "--dim", "64", "--streams", "4"]
    assert json.loads(run(capsys, "--json", *plan)[1]) == json.loads(
        run(capsys, *plan, "--json")[1]
    )


def test_vacuous_and_endless_answers_are_said_in_words(capsys):
    _, out, _ = run(capsys, "plan", "--dim", "8", "--streams", "4096", "--alpha", "0.01")
    assert "says nothing" in out
    assert "over a million" in out
    _, out, _ = run(capsys, "plan", "--dim", "4096", "--streams", "2")
    assert "4096 or more" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--samples", "3"], "draw at least 10"),
        (["plan", "--dim", "0", "--streams", "4"], "dim=0 does not fit"),
        (["plan", "--dim", "64", "--streams", "4", "--angle", "120"], "0 to 90 degrees"),
        (["plan", "--dim", "64", "--streams", "4", "--probability", "5"], "such as 0.05"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_two(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("mimonets bounds: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "--dim", "64"], "--streams"),
        (["plan", "--dim", "wide", "--streams", "4"], "invalid int value: 'wide'"),
        (["blan"], "invalid choice: 'blan'"),
        (["--dim", "64"], "--dim belongs to the planner: mimonets bounds plan --dim 64"),
    ],
)
def test_arguments_that_do_not_parse_end_in_exit_code_two(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["bounds", *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [["bounds"], ["bounds", "plan"]])
def test_help_teaches(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "usage: mimonets bounds" in out
    assert "leaves out" in out or "mimonets bounds plan --dim 64 --streams 4" in out
