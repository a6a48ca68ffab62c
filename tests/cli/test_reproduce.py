import json
import re
import subprocess
from pathlib import Path

import pytest

from mimonets.cli.main import main
from mimonets.experiments import experiments

ROOT = Path(__file__).parents[2]


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


def test_the_list_as_json_has_the_commands(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # where the published results are
    _, out, _ = run(capsys, "--json", "--out", str(tmp_path))
    listed = {one["name"]: one for one in json.loads(out)}
    assert set(listed) == set(experiments())
    name = "lra-text-mimoformer-2x2"
    wanted = f"mimonets train {name} --set train.seed=4 --out runs/reproduce/{name}/seed-4 --resume"
    assert wanted in listed["lra"]["commands"]
    assert listed["cost-mimoconv"]["status"] == "published: 27 reproduced, 3 differs"


def test_an_experiment_is_written_down_and_shown_beside_the_paper(capsys, tmp_path):
    code, out, err = run(capsys, "cost-mimoconv", "--out", str(tmp_path))
    assert code == 0
    assert "cifar100-mimoconv-n4: total" in out
    assert f"wrote {tmp_path}/cost-mimoconv.json" in err
    record = json.loads((tmp_path / "cost-mimoconv.json").read_text())
    assert record["experiment"] == "cost-mimoconv"
    listed = {
        one["name"]: one for one in json.loads(run(capsys, "--out", str(tmp_path), "--json")[1])
    }
    assert listed["cost-mimoconv"]["status"] == "27 reproduced, 3 differs", "one's own comes first"


def test_nothing_is_written_into_published_results_unless_asked(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()
    code, _, err = run(capsys, "cost-mimoconv")
    assert code == 0
    assert "wrote runs/results/cost-mimoconv.json" in err
    assert list((tmp_path / "results").iterdir()) == []


def test_a_damaged_record_does_not_hide_the_list(capsys, tmp_path):
    (tmp_path / "mnist.json").write_text("{")
    code, out, _ = run(capsys, "--out", str(tmp_path), "--json")
    assert code == 0
    assert "cannot be read: delete it" in out


def test_a_report_without_runs_says_what_was_not_run(capsys, tmp_path):
    arguments = ("svhn", "--report", "--runs", str(tmp_path / "none"), "--out", str(tmp_path))
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert "3 not run" in out
    assert (tmp_path / "svhn.png").exists()


def test_runs_of_an_earlier_result_are_kept(capsys, tmp_path):
    published = json.loads((ROOT / "results" / "lra-cpu.json").read_text())
    path = tmp_path / "lra-cpu.json"
    path.write_text(json.dumps(published))
    arguments = ("lra-cpu", "--report", "--runs", str(tmp_path / "none"), "--out", str(tmp_path))
    code, _, err = run(capsys, *arguments, "--add")
    assert code == 0
    kept = json.loads(path.read_text())
    assert kept["runs"] == published["runs"]
    assert kept["rows"] == published["rows"]

    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert f"{len(published['runs'])} runs of {path} are not in --runs" in err
    assert "--add keeps them" in err
    assert json.loads(path.read_text()) == kept


def test_a_result_is_not_replaced_by_one_of_other_runs(capsys, tmp_path):
    published = json.loads((ROOT / "results" / "lra-cpu.json").read_text())
    path = tmp_path / "lra-cpu.json"
    path.write_text(json.dumps(published))
    where = ("lra-cpu", "--runs", str(tmp_path / "none"), "--out", str(tmp_path))
    code, _, err = run(capsys, *where, "--scale", "0.5")
    assert code == 2
    assert "was trained with --scale 1, and would be replaced by one with 0.5" in err
    published["runs"][0]["trial"] = "no-longer-there"
    path.write_text(json.dumps(published))
    for more in (("--add",), ("--add", "--report"), ()):
        code, _, err = run(capsys, *where, *more)
        assert code == 2
        assert "has runs of no-longer-there, which is no trial of lra-cpu any more" in err
    assert json.loads(path.read_text()) == published


@pytest.mark.parametrize(
    "option",
    [
        *(("--only", "x"), ("--add",), ("--scale", "0.5"), ("--workers", "auto")),
        *(("--set", "train.lr=1"), ("--precision", "32"), ("--array", "x"), ("--devices", "2")),
    ],
)
def test_options_of_training_are_refused_where_nothing_is_trained(capsys, tmp_path, option):
    code, _, err = run(capsys, "cost-mimoconv", *option, "--out", str(tmp_path))
    assert code == 2
    assert f"cost-mimoconv trains nothing: leave out {option[0]}" in err


def test_runs_of_former_names_are_not_lost(capsys, tmp_path):
    published = json.loads((ROOT / "results" / "synthetic.json").read_text())
    (tmp_path / "synthetic.json").write_text(json.dumps(published))
    where = ("--runs", str(tmp_path / "none"), "--out", str(tmp_path))
    code, _, err = run(capsys, "synthetic", "--report", "--add", *where)
    assert (code, "would be lost" in err) == (0, False)


def test_runs_of_other_results_count_too(capsys, tmp_path):
    published = json.loads((ROOT / "results" / "mnist-map.json").read_text())
    (tmp_path / "mnist-map.json").write_text(json.dumps(published))
    arguments = ("mnist", "--report", "--runs", str(tmp_path / "none"), "--out", str(tmp_path))
    code, _, _ = run(capsys, *arguments, "--add")
    assert code == 0
    found = json.loads((tmp_path / "mnist.json").read_text())["runs"]
    assert [run["trial"] for run in found].count("mnist-tiles-n16") == 3
    assert all(run in published["runs"] for run in found)
    assert not any(",taught" in run["trial"] for run in found)


def test_a_damaged_result_is_not_added_to(capsys, tmp_path):
    (tmp_path / "svhn.json").write_text("[")
    code, _, err = run(capsys, "svhn", "--report", "--add", "--out", str(tmp_path))
    assert code == 2
    assert "svhn.json is no result of `mimonets reproduce`" in err
    assert (tmp_path / "svhn.json").read_text() == "["


def test_a_part_of_the_runs_leaves_the_results_alone(capsys, tmp_path):
    where = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "results"))
    code, _, err = run(capsys, "mnist", "--only", "no such run", *where)
    assert code == 2
    assert "No run of mnist has 'no such run' in its name" in err
    assert "mnist-mimoconv-n1/seed-0" in err
    code, _, _ = run(capsys, "mnist", "--only", "n16", "--report", *where)
    assert code == 0
    assert not (tmp_path / "results").exists()


def test_commands_are_shown_run_by_run(capsys):
    _, out, _ = run(capsys, "cifar", "--commands", "--precision", "bf16", "--runs", "here")
    lines = out.splitlines()
    assert len(lines) == len(set(lines)) == 60
    assert lines[0] == (
        "mimonets train cifar10-wideresnet --set train.precision=bf16 "
        "--out here/cifar10-wideresnet,precision=bf16/seed-0 --resume"
    )


def test_a_job_array_has_a_task_per_run_and_teachers_first(capsys, tmp_path):
    script = tmp_path / "seeds.sbatch"
    code, _, err = run(capsys, "demo-seeds", "--array", str(script))
    assert (code, "say how to submit it" in err) == (0, True)
    text = script.read_text()
    first, last = map(int, re.findall(r"sbatch --array=(?:0|\d+)-(\d+)", text))
    assert f"#   sbatch --array=0-{first} {script}" in text
    taught = f"--array={first + 1}-{last} --dependency=afterok:ID_OF_THE_JOB_BEFORE {script}"
    assert f"#   sbatch {taught}" in text
    for task, wanted in ((0, "seed-0 --resume"), (last, "taught/seed-2 --resume")):
        ran = subprocess.run(
            ["bash", str(script)],
            env={"SLURM_ARRAY_TASK_ID": str(task), "PATH": f"{stand_in(tmp_path)}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip().endswith(wanted)
        assert ("train.teacher=" in ran.stdout) == (task == last)


def stand_in(folder):
    """Make a program called mimonets that prints its arguments."""
    program = folder / "bin" / "mimonets"
    program.parent.mkdir(exist_ok=True)
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    return program.parent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnst"], "did you mean 'mnist'"),
        (["lra"], "needs a GPU (25 to 47 hours"),
        (["cost-mimoconv", "--scale", "0.5"], "trains nothing: leave out --scale"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_turns_end_in_one_line(capsys, arguments, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
