import json
import subprocess
import sys

import pytest

import mimonets as mn
from mimonets._files import what_it_is
from mimonets.cli.main import main
from mimonets.experiments import demo
from mimonets.recipes import load_recipe
from mimonets.training import TrainingInterrupted


def run(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


TINY = (
    "mnist-mimoconv-n2",
    "--batch-size",
    "4",
    "--rounds",
    "2",
    "--warmup",
    "0",
    "--threads",
    "1",
)


def test_help_teaches_and_does_not_wait_for_torch():
    code = (
        "import sys; from mimonets.cli.main import make_parser; make_parser().format_help(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_listing_recipes_does_not_wait_for_torch():
    code = (
        "import sys; from mimonets.cli.main import main; main(['recipes']); "
        "sys.exit(bool({'torch', 'jsonargparse', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0
    assert b"recall-mimoformer-2x2" in done.stdout


@pytest.mark.parametrize(("words", "code"), [(["recipes"], 0), (["no-such-command"], 2)])
def test_the_package_runs_as_the_command(words, code):
    command = [sys.executable, "-m", "mimonets", *words]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == code
    assert "recall-mimoformer-2x2" in done.stdout or "mimonets: error" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        [],
        *(
            [name]
            for name in (
                [
                    "cost",
                    "bench",
                    "recipes",
                    "train",
                    "evaluate",
                    "predict",
                    "demo",
                    "bounds",
                    "reproduce",
                ]
            )
        ),
    ],
)
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    assert "usage: mimonets" in capsys.readouterr().out


def test_recipes_lists_and_shows(capsys):
    code, out, _ = run(capsys, "recipes")
    assert code == 0
    assert "mnist-mimoconv-n16" in out
    code, out, _ = run(capsys, "recipes", "mnist-mimoconv-n16")
    assert "num_streams: 16" in out
    _, out, _ = run(capsys, "recipes", "--json")
    assert {"name", "summary"} == set(json.loads(out)[0])
    _, out, _ = run(capsys, "recipes", "mnist-mimoconv-n16", "--json")
    assert json.loads(out)["model"]["num_streams"] == 16


def test_cost_prints_both_conventions_as_table_and_json(capsys):
    code, out, _ = run(capsys, "cost", "cifar100-mimoconv-n4")
    assert code == 0
    assert "1339" in out
    assert "1337" in out
    _, out, _ = run(capsys, "cost", "cifar100-mimoconv-n4", "--json", "--active-streams", "4")
    (mode,) = json.loads(out)["macs_per_input"]
    assert round(mode["paper"]["total"] / 1e6) == 1339


def test_cost_is_looked_up_where_only_training_changes(capsys, monkeypatch):
    def count(config, points):
        raise AssertionError("counted")

    monkeypatch.setattr("mimonets.evaluation.count_points", count)
    setting = ("cost", "digits-mimoconv-n4", "--set")
    assert run(capsys, *setting, "train.epochs=3")[0] == 0
    with pytest.raises(AssertionError, match="counted"):
        run(capsys, *setting, "model.width=3")


def test_cost_of_a_saved_model(capsys, tmp_path):
    mn.save(mn.WideResNet(mn.WideResNetConfig(depth=10, width=1)), tmp_path)
    code, out, _ = run(capsys, "cost", str(tmp_path))
    assert code == 0
    assert "classifier" in out


def test_bench_prints_and_saves(capsys, tmp_path):
    files = ["--out", str(tmp_path / "new" / "b.json")]
    code, out, err = run(capsys, "bench", *TINY, *files)
    assert code == 0
    assert "inputs/s" in out
    assert err == ""  # no progress bar where nobody watches
    record = json.loads((tmp_path / "new" / "b.json").read_text())
    assert record["settings"]["threads"] == 1
    assert set(record["models"]) == {TINY[0]}
    assert len(record["contenders"]) == 4


def test_bench_looks_before_it_times(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("mimonets.evaluation.bench", None)  # would fail if it were called
    code, _, err = run(capsys, "bench", *TINY, "--out", str(tmp_path))
    assert code == 2
    assert "is a folder: pass the path of a file" in err


def test_bench_json_is_nothing_but_json(capsys):
    _, out, _ = run(capsys, "bench", *TINY, "--json", "--active-streams", "2")
    assert json.loads(out)["contenders"][0]["active_streams"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cost", "cifar100-mimocnv-n4"], "did you mean 'cifar100-mimoconv-n4'"),
        (["cost", "cifar100-mimoconv-n4", "--set", "model.widht=2"], "did you mean 'model.width'"),
        (["cost", "cifar100-mimoconv-n4", "--active-streams", "5"], "from 1 (slow) to 4 (fast)"),
        (["bench", *TINY, "--out", "/proc/no/speed.json"], "No such file"),
        (["bench", *TINY, "--device", "foo"], "There is no kind of device 'foo': use cpu"),
        (["bench", *TINY, "--device", "cuda"], "This machine has no device 'cuda'"),
        (
            ["cost", "digits-mimoconv-n4", "--set", "model.width=[1"],
            "cannot read the value of",
        ),
        (["cost", "digits-mimoconv-n4", "--set", "model.kind=[1]"], "model.kind=[1] is not known"),
        (["cost", "digits-mimoconv-n4", "--set", "model.pool="], "model.pool has no value"),
        (["compare", "mine.py", "--data", "pictures"], "write FILE.py:FUNCTION"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_two(capsys, arguments, message, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.startswith(f"mimonets {arguments[0]}: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cost", "x", "--active-streams", "1,fast"], "write integers with commas"),
        (["bench", "x", "--rounds", "0"], "must be an integer from 1 to 1000000"),
        (["bench", "x", "--batch-size", "9" * 400], "'99999999999999999...' must be an integer"),
        (["fly"], "invalid choice: 'fly'"),
    ],
)
def test_arguments_that_do_not_parse_end_in_exit_code_two(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_ctrl_c_is_no_traceback(capsys, monkeypatch):
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("mimonets.cli.recipes.run", interrupt)
    code, _, err = run(capsys, "recipes")
    assert code == 130
    assert err == "mimonets: stopped\n"


@pytest.mark.parametrize(
    ("command", "how"),
    [
        (["train", "digits-wideresnet"], "--resume resumes it."),
        (["demo"], "The same command resumes it."),
    ],
)
def test_stopped_training_says_how_this_command_resumes(command, how, capsys, monkeypatch):
    def interrupt(args):
        raise TrainingInterrupted(3, 8, "runs/here")

    monkeypatch.setattr(f"mimonets.cli.{command[0]}.run", interrupt)
    code, _, err = run(capsys, *command)
    assert code == 130
    saved = "Stopped after step 3 of 8; everything is saved in runs/here."
    assert err == f"mimonets: stopped: {saved} {how}\n"


SMALL = ["train.epochs=1", "train.batch_size=8", "model.width=1", "model.initial_width=1"]
TINY_RUN = [part for setting in [*SMALL, "data.limit=64"] for part in ("--set", setting)]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert main(["train", "digits-mimoconv-dynamic", "--out", str(folder), *TINY_RUN]) == 0
    return folder


def test_train_leaves_a_run_that_evaluate_and_cost_can_read(run_folder, capsys):
    for name in ("recipe.yaml", "environment.json", "metrics.jsonl", "result.json", "model"):
        assert (run_folder / name).exists()
    code, out, _ = run(capsys, "evaluate", str(run_folder), "--json")
    assert code == 0
    modes = json.loads(out)["modes"]
    assert [mode["active_streams"] for mode in modes] == [1, 2, 3, 4]
    assert all(0 <= mode["interval"][0] <= mode["accuracy"] <= 1 for mode in modes)
    code, out, _ = run(capsys, "evaluate", str(run_folder), "--active-streams", "max")
    assert "calibration error" in out
    assert run(capsys, "cost", str(run_folder))[0] == 0


def test_training_twice_into_one_folder_is_refused(run_folder, capsys):
    code, _, err = run(
        capsys, "train", "digits-mimoconv-dynamic", "--out", str(run_folder), *TINY_RUN
    )
    assert code == 2
    assert "already holds a run" in err
    assert "--resume" in err


def test_resuming_a_finished_run_only_shows_it(run_folder, capsys):
    arguments = ["--out", str(run_folder), "--resume", "--json", *TINY_RUN]
    code, out, _ = run(capsys, "train", "digits-mimoconv-dynamic", *arguments)
    assert code == 0
    found = json.loads(out)
    assert found["modes"] == []  # there is no validation data
    assert found["training"]["loss"] > 0
    code, out, _ = run(
        capsys, "train", "digits-mimoconv-dynamic", "--out", str(run_folder), "--resume", *TINY_RUN
    )
    assert "on the training data in the last epoch" in out
    assert f"Next: mimonets evaluate {run_folder}" in out


def test_resuming_a_finished_run_with_another_recipe_is_refused(run_folder, capsys):
    code, out, err = run(
        capsys, "train", "digits-wideresnet", "--out", str(run_folder), "--resume", *TINY_RUN
    )
    assert (code, out) == (2, "")
    assert "was started with another recipe: it differs in model" in err


def test_a_finished_run_without_its_metrics_is_still_shown(capsys, tmp_path):
    arguments = ["train", "digits-wideresnet", "--out", str(tmp_path / "run"), *TINY_RUN]
    assert run(capsys, *arguments)[0] == 0
    metrics = tmp_path / "run" / "metrics.jsonl"
    last = {**json.loads(metrics.read_text().splitlines()[-1]), "loss": None, "accuracy": None}
    metrics.write_text(json.dumps(last) + "\n")
    code, out, _ = run(capsys, *arguments, "--resume")
    assert code == 0
    assert "nothing was kept on the training data" in out


def test_the_next_command_can_be_pasted(capsys, tmp_path):
    folder = tmp_path / "my runs"
    code, out, _ = run(capsys, "train", "digits-wideresnet", "--out", str(folder), *TINY_RUN)
    assert code == 0
    assert f"mimonets evaluate '{folder}'" in out


def test_the_accuracy_on_held_out_data_is_shown(capsys, tmp_path):
    arguments = ["train", "digits-wideresnet", "--out", str(tmp_path / "run"), *TINY_RUN]
    arguments += ["--set", "data.validation=100"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    code, found, _ = run(capsys, *arguments, "--resume", "--json")
    (mode,) = json.loads(found)["modes"]
    shown = f"validation data {mode['accuracy']:.2%} (1 active)"
    assert (mode["active_streams"], mode["total"]) == (1, 64)  # data.limit
    assert shown in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "mnist-mimoconv-n4", "--data-dir", "nowhere", "--set", "data.download=false"],
            "nowhere",
        ),
        (["train", "digits-wideresnet", "--set", "train.epoch=3"], "did you mean 'train.epochs'"),
        (["train", "digits-wideresnet", "--set", "model.num_classes=7"], "10 classes"),
        (["evaluate", "nowhere"], "no recipe, no folder and no shipped network 'nowhere'"),
    ],
)
def test_mistakes_in_training_end_in_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_demo_says_which_is_which_and_draws(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "engine_name", lambda: "torch")  # exporting takes seconds
    monkeypatch.setattr(demo, "available_cores", lambda: 1)  # a process more imports torch again
    monkeypatch.setattr(demo, "load_recipe", lambda name: load_recipe(name, ["data.limit=200"]))
    for name, value in {"ROUNDS": 1, "WARMUP": 0, "BATCHES": (4, 64)}.items():
        monkeypatch.setattr(demo, name, value)
    folder = tmp_path / "demo"
    code, out, _ = run(capsys, "demo", "--out", str(folder), "--epochs", "1")
    assert code == 0
    for part in ("keys: slow", "keys: fast", "tiles: fast", "same size", "cost of fast", "Next:"):
        assert part in out
    assert "PyTorch (eager)" in out
    assert (folder / "accuracy-against-throughput.png").exists()
    record = json.loads((folder / "demo.json").read_text())
    rows = record["rows"]
    assert [row["inputs_per_pass"] for row in rows] == [1, 1, 2, 4, 1, 2, 4, 1]
    for row in rows:
        assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
        assert set(row["inputs_per_second"]) == {"4", "64"}
    fast, small = rows[3], rows[-1]
    assert small["macs"] == pytest.approx(fast["macs"], rel=0.1)  # plain network of equal cost
    assert set(record["teacher"].values()) == {rows[0]["recipe"]}
    # A second call finds all networks trained, and can speak JSON.
    monkeypatch.setattr("mimonets.recipes.execute.train", None)  # would fail if it were called
    code, out, _ = run(capsys, "demo", "--out", str(folder), "--epochs", "1", "--json")
    assert code == 0
    assert len(json.loads(out)["rows"]) == 8


@pytest.mark.slow
def test_the_demo_trains_in_several_processes_and_times_onnx_runtime(capsys, tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(demo, "available_cores", lambda: 2)
    code, out, _ = run(capsys, "demo", "--out", str(tmp_path), "--epochs", "1")
    assert code == 0
    assert "ONNX Runtime" in out
    assert "epoch 1" in (tmp_path / f"{demo.KEYS}.log").read_text()
    assert (tmp_path / "exports" / demo.KEYS / "manifest.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trian"], ("invalid choice: 'trian'", "did you mean 'train'")),
        (["bench", "digits-mimoconv-n4", "--rounds", "0"], ("--rounds",)),
        (["bounds", "plann"], ("did you mean 'plan'",)),
    ],
)
def test_arguments_that_do_not_parse_get_one_line(capsys, arguments, words):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert all(word in err for word in words)


def test_a_folder_that_is_something_else_is_called_what_it_is(tmp_path):
    run = tmp_path / "runs" / "a"
    (run / "model").mkdir(parents=True)
    (run / "recipe.yaml").write_text("")
    assert what_it_is(tmp_path / "no", "config.json").startswith("does not exist")
    assert f"its model is {run / 'model'}" in what_it_is(run, "config.json")
    assert f"a model of the run {run}" in what_it_is(run / "model", "recipe.yaml")
    assert "a in it do" in what_it_is(tmp_path / "runs", "recipe.yaml")
    (run / "model" / "manifest.json").write_text("{}")
    assert "it is an export" in what_it_is(run / "model", "config.json")


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")]
)
def test_too_little_memory_is_said_in_one_line(monkeypatch, capsys, error):
    def fail(*arguments, **settings):
        raise error

    monkeypatch.setattr("mimonets.evaluation.count_points", fail)
    assert main(["cost", "digits-mimoconv-n4", "--set", "model.width=9"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_quiet_and_verbose(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("MIMONETS_QUIET", raising=False)
    small = ["--set", "data.limit=64", "--set", "train.epochs=1", "--set", "model.width=1"]
    loud = run(capsys, "train", "digits-wideresnet", *small, "--out", str(tmp_path / "a"))
    assert "epoch 1" in loud[2]
    monkeypatch.setenv("MIMONETS_QUIET", "")  # so that it is taken back
    quiet = run(capsys, "-q", "train", "digits-wideresnet", *small, "--out", str(tmp_path / "b"))
    assert (quiet[0], quiet[2]) == (0, "")
    monkeypatch.setattr("logging.basicConfig", lambda **_: None)
    code, _, err = run(capsys, "-v", "cost", "nothing")
    assert code == 2
    assert "Traceback" in err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_commands_and_options(capsys, shell):
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit) as stop:
        main(["--completion", shell])
    assert stop.value.code == 0
    script = capsys.readouterr().out
    for word in ("evaluate", "--active-streams", "reproduce"):
        assert word in script
