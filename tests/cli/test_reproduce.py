import json

import pytest

from mimonets.cli.main import main
from mimonets.experiments import experiments


def run(capsys, *arguments):
    code = main(["reproduce", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_list_names_every_experiment_and_how_it_stands(capsys, tmp_path):
    code, out, _ = run(capsys, "--out", str(tmp_path))
    assert code == 0
    for name in experiments():
        assert f"│ {name} " in out
    assert "not run: needs a GPU" in out
    assert "Also in the paper" in out


def test_the_list_as_json_has_the_commands(capsys):
    _, out, _ = run(capsys, "--json")
    listed = {one["name"]: one for one in json.loads(out)}
    assert set(listed) == set(experiments())
    assert "mimonets train lra-text-mimoformer-2x2 --seeds 5" in listed["lra"]["commands"]
    assert listed["cost-mimoconv"]["status"] == "27 reproduced, 3 differs"


def test_an_experiment_is_written_down_and_shown_beside_the_paper(capsys, tmp_path):
    code, out, err = run(capsys, "cost-mimoconv", "--out", str(tmp_path))
    assert code == 0
    assert "cifar100-mimoconv-n4: total" in out
    assert f"wrote {tmp_path}/cost-mimoconv.json" in err
    record = json.loads((tmp_path / "cost-mimoconv.json").read_text())
    assert record["experiment"] == "cost-mimoconv"
    assert run(capsys, "--out", str(tmp_path), "--json")[1].count("reproduced") == 1


def test_a_report_without_runs_says_what_was_not_run(capsys, tmp_path):
    arguments = ("svhn", "--report", "--runs", str(tmp_path / "none"), "--out", str(tmp_path))
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "3 not run" in out
    assert (tmp_path / "svhn.png").exists()


def test_a_part_of_the_runs_leaves_the_results_alone(capsys, tmp_path):
    where = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "results"))
    code, _, _ = run(capsys, "mnist", "--only", "no such run", *where)
    assert code == 0
    assert not (tmp_path / "results").exists()


def test_commands_can_be_shown(capsys):
    _, out, _ = run(capsys, "cifar", "--commands")
    assert out.splitlines()[0] == "mimonets train cifar10-wideresnet --seeds 5"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnst"], "did you mean 'mnist'"),
        (["lra"], "needs a GPU (25 to 47 hours"),
    ],
)
def test_wrong_turns_end_in_one_line(capsys, arguments, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
