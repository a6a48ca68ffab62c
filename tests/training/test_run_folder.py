import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from mimonets._files import write_safely
from mimonets.training import loop, train
from mimonets.training.identity import Identity
from mimonets.training.lock import HOLDER_FILE
from mimonets.training.run_folder import RunFolder
from training import killed
from training.tiny import (
    TinyBatches,
    TinySequences,
    same_weights,
    sequence_config,
    tiny_config,
    tiny_conv,
    tiny_former,
)

TESTS = Path(__file__).parents[1]
KILLED = [sys.executable, str(TESTS / "training/killed.py")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}


class PowerCutError(Exception):
    pass


def cut_at(step):
    def cut(number):
        if number == step:
            raise PowerCutError

    return cut


def without_speed(history):
    return [{k: v for k, v in row.items() if k != "inputs_per_second"} for row in history]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return killed.run(tmp_path_factory.mktemp("whole") / "run")


# Batches 3, 7 and 8 are skipped, epochs end before 4, 8, 12; so these are all kinds of moments.
@pytest.mark.parametrize("steps", [(0, 4, 9), (2, 8), (1, 5, 23)], ids=str)
def test_a_run_that_was_cut_off_ends_with_the_same_weights(uninterrupted, tmp_path, steps):
    wanted, result = uninterrupted
    for step in steps:
        with pytest.raises(PowerCutError):
            killed.run(tmp_path / "run", before=cut_at(step))
    model, found = killed.run(tmp_path / "run")
    assert same_weights(model, wanted)
    assert without_speed(found.history) == without_speed(result.history)
    assert (found.skipped, found.final, found.steps) == (3, result.final, 24)
    states = [
        torch.load(folder / "checkpoints/last.pt", weights_only=True)
        for folder in (found.run_dir, result.run_dir)
    ]
    assert same_weights(*(state["average"]["values"] for state in states))


@pytest.mark.parametrize("seconds", [600, 0])
def test_going_on_from_an_older_checkpoint_comes_to_the_same_end(tmp_path, monkeypatch, seconds):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", seconds)
    config = sequence_config(epochs=3, curriculum=0.4, fast_share=0.5)
    models = []
    for name, cut in (("whole", -1), ("cut", 7)):
        for resume in (False, True):
            model = tiny_former(dropout=0.1)
            batches = TinySequences(4, before=cut_at(cut if not resume else -1))
            try:
                train(model, batches, config, run_dir=tmp_path / name, resume=resume)
            except PowerCutError:
                assert cut == 7
        models.append(model)
    assert same_weights(*models)


def written(folder):
    """Tell when the checkpoint of a run was written."""
    checkpoint = folder / "checkpoints/last.pt"
    return checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0


def kill_at_some_moment(processes, folder, rng, most):
    """Kill a training process up to ``most`` seconds after its first new checkpoint."""
    process = processes.Process(target=killed.run, args=(folder,))
    before = written(folder)
    process.start()
    if rng.random() < 0.3:  # while it starts or reads
        process.join(rng.uniform(0, 1))
    else:
        while written(folder) == before and process.is_alive():
            process.join(0.005)
        process.join(rng.uniform(0, most))
    process.kill()
    process.join()
    assert process.exitcode in (-signal.SIGKILL, 0), "it failed by itself"


def check_the_end(uninterrupted, folder):
    """Resume a run that was killed: it ends as if nothing had happened, and leaves nothing over."""
    model, found = killed.run(folder)
    wanted, result = uninterrupted
    assert same_weights(model, wanted)
    assert without_speed(found.history) == without_speed(result.history)
    assert not (folder / HOLDER_FILE).exists()
    assert not list(folder.rglob("*.part"))


def test_kill_9_at_any_moment_loses_nothing(uninterrupted, processes, tmp_path):
    rng = random.Random(0)  # which waits for a checkpoint twice
    for number in range(2):
        kill_at_some_moment(processes, tmp_path / "run", rng, 0.1)
        if number == 0:  # far from its end
            assert (tmp_path / "run" / HOLDER_FILE).exists(), "but the lock is free again"
    check_the_end(uninterrupted, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(4))
def test_kill_9_at_100_random_moments_loses_nothing(uninterrupted, processes, tmp_path, seed):
    rng, runs = random.Random(seed), [tmp_path / "0"]
    for _ in range(25):
        if (runs[-1] / "result.json").exists():
            runs.append(tmp_path / str(len(runs)))
        kill_at_some_moment(processes, runs[-1], rng, 0.5)
    for folder in runs:
        check_the_end(uninterrupted, folder)
    print(f"{len(runs)} runs")
    assert any((folder / "checkpoints").exists() for folder in runs)


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "disk"), [(10, 0), (1000, 0), (300_000, 0), (0, 8), (0, 2200)])
def test_a_disk_that_fills_up_is_one_sentence_and_the_run_resumes(
    uninterrupted, tmp_path, limit, disk
):
    """Either files or a whole disk, in kB, may only become so large."""
    if disk:
        how = ["mount", "-t", "tmpfs", "-o", f"size={disk}k", "tmpfs", str(tmp_path)]
        if subprocess.run(how, capture_output=True, check=False).returncode:
            pytest.skip("no small disk can be mounted here")
    try:
        full = subprocess.run(
            [*KILLED, str(tmp_path / "run"), str(limit)],
            env=ENVIRONMENT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert full.returncode == 1
        assert re.search(r"\nsaid: .* could not be written .* Make room and try again; .*\n$",
                         "\n" + full.stderr)  # fmt: skip
        assert "Traceback" not in full.stderr
        assert not list(tmp_path.rglob("*.part"))
        if disk:
            subprocess.run(["mount", "-o", "remount,size=20m", str(tmp_path)], check=True)
        check_the_end(uninterrupted, tmp_path / "run")
    finally:
        if disk:
            subprocess.run(["umount", str(tmp_path)], check=True)


def test_what_a_killed_process_left_over_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = socket.gethostname()
    names = (
        f".file.{host}.{ended.pid}",
        f".file.{host}.1",
        f".other.{host}.{ended.pid}",
        ".file.1",
    )
    left = [tmp_path / f"{name}.part" for name in names]
    for path in left:
        path.touch()
    write_safely({tmp_path / "file": lambda part: part.write_text("new")})
    assert {path.name for path in tmp_path.iterdir()} == {"file", *(one.name for one in left[1:])}


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory):
    model = tiny_conv()
    train(model, TinyBatches(), tiny_config(), run_dir=tmp_path_factory.mktemp("never") / "run")
    return model


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(never_stopped, processes, tmp_path, number):
    folder = tmp_path / "run"  # another process: a signal that nobody handles ends the tests
    stopped = processes.Process(target=killed.run_and_stop, args=(folder, number))
    stopped.start()
    stopped.join(120)
    assert stopped.exitcode == 0
    assert re.search("after step 3 of 8; .*Resume it with", (tmp_path / "run.txt").read_text())
    model = tiny_conv()
    result = train(model, TinyBatches(), tiny_config(), run_dir=folder, resume=True)
    assert same_weights(model, never_stopped)
    assert len(result.history) == 2


def test_training_works_in_another_thread(tmp_path):
    done = []

    def work():
        done.append(train(tiny_conv(), TinyBatches(), tiny_config(), run_dir=tmp_path / "run"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done[0].steps == 8


def test_a_finished_run_can_be_asked_again(uninterrupted):
    wanted, result = uninterrupted
    model, again = killed.run(result.run_dir)
    assert same_weights(model, wanted)
    assert again.history == result.history


def test_a_folder_that_holds_a_run_is_not_trained_into(uninterrupted, tmp_path):
    _, result = uninterrupted
    with pytest.raises(ValueError, match="already holds a run: resume it .*--resume"):
        killed.run(result.run_dir, resume=False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file: a run is a folder"):
        killed.run(tmp_path / "file")


def test_another_recipe_gets_one_clear_line(uninterrupted):
    _, result = uninterrupted
    arguments = {"run_dir": result.run_dir, "resume": True}
    with pytest.raises(ValueError, match=r"another recipe: it differs in .*train.lr") as error:
        train(tiny_conv(), TinyBatches(), replace(killed.settings(), lr=0.01), **arguments)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="model.activation"):
        train(tiny_conv(activation="relu"), TinyBatches(), killed.settings(), **arguments)
    recipe = {"data": {"name": "other"}}
    with pytest.raises(ValueError, match="it differs in data"):
        train(tiny_conv(), TinyBatches(), killed.settings(), recipe=recipe, **arguments)


def test_another_format_and_a_damaged_file_get_one_clear_line(tmp_path):
    train(tiny_conv(), TinyBatches(), tiny_config(), run_dir=tmp_path / "run")
    path = tmp_path / "run/checkpoints/last.pt"
    torch.save(torch.load(path, weights_only=True) | {"format_version": 99}, path)
    arguments = {"run_dir": tmp_path / "run", "resume": True}
    with pytest.raises(ValueError, match="is of format version 99, and this mimonets resumes 1"):
        train(tiny_conv(), TinyBatches(), tiny_config(), **arguments)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="cannot be read .*: it is damaged"):
        train(tiny_conv(), TinyBatches(), tiny_config(), **arguments)


def test_data_of_another_length_is_another_run(tmp_path):
    train(tiny_conv(), TinyBatches(4), tiny_config(), run_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="epochs of 4 batches, and these have 5"):
        train(tiny_conv(), TinyBatches(5), tiny_config(), run_dir=tmp_path / "run", resume=True)


def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.open(Identity({}, {}), resume=False)
    run.begin()
    run.save_checkpoint({"weights": torch.ones(10)})
    run.flush()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        run.save_checkpoint({"weights": torch.ones(1_000_000)})
        with pytest.raises(OSError, match="could not be written .* before is untouched. Make room"):
            run.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert torch.equal(run.load_checkpoint()["weights"], torch.ones(10))
    assert [path.name for path in run.checkpoint.parent.iterdir()] == ["last.pt"]


def opened(folder):
    run = RunFolder(folder)
    run.open(Identity({}, {}), resume=False)
    run.begin()
    return run


def test_the_last_two_checkpoints_are_kept_and_training_may_go_on_meanwhile(tmp_path):
    run, weights = opened(tmp_path / "run"), torch.zeros(10)
    for step in (1, 2, 3):
        weights.fill_(step)
        run.save_checkpoint({"weights": weights, "scheduler": {"rates": [step]}})
    weights.fill_(4)  # the state was copied
    run.close()
    assert run.load_checkpoint()["weights"].unique().tolist() == [3]
    names = sorted(path.name for path in run.checkpoint.parent.iterdir())
    assert names == ["last.pt", "previous.pt"]
    run.checkpoint.write_bytes(b"damaged")
    with pytest.raises(
        ValueError, match=r"last\.pt cannot be read.*Remove it to resume from the one"
    ):
        run.load_checkpoint()
    run.checkpoint.unlink()  # as after a kill between the two renames
    assert run.load_checkpoint()["scheduler"] == {"rates": [2]}


@pytest.mark.parametrize("noticed_by", ["save_checkpoint", "flush", "close", "finish"])
def test_a_write_that_failed_in_the_background_is_said_at_the_next_chance(tmp_path, noticed_by):
    run = opened(tmp_path / "run")
    run.checkpoint.parent.rmdir()
    run.save_checkpoint({})
    arguments = {"save_checkpoint": ({},), "finish": (None,)}.get(noticed_by, ())
    with pytest.raises(OSError, match="next.pt could not be written"):
        getattr(run, noticed_by)(*arguments)
    run.close()


def test_training_stops_if_its_checkpoint_cannot_be_written(tmp_path):
    def remove(step):
        if step == 5:
            shutil.rmtree(tmp_path / "run/checkpoints")

    with pytest.raises(OSError, match="could not be written"):
        train(tiny_conv(), TinyBatches(before=remove), tiny_config(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run/result.json").exists()


def test_a_line_of_metrics_cut_short_is_made_again(tmp_path):
    run = RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert run.rewind(1) == [{"step": 1}]
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    write_safely({path: lambda part: part.write_text("old")})

    def fail(part):
        part.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        write_safely({path: fail})
    assert path.read_text() == "old"


def test_free_settings_may_change_on_the_way(tmp_path):
    with pytest.raises(PowerCutError):
        train(tiny_conv(), TinyBatches(before=cut_at(5)), tiny_config(), run_dir=tmp_path / "run")
    config = tiny_config(threads=2, compile=False, keep="last")
    result = train(tiny_conv(), TinyBatches(), config, run_dir=tmp_path / "run", resume=True)
    assert result.steps == 8
    assert yaml.safe_load((tmp_path / "run/recipe.yaml").read_text())["train"]["epochs"] == 2
    assert json.loads((tmp_path / "run/result.json").read_text())["skipped"] == 0
