"""A run folder belongs to one run and one process; what is no run is left alone."""

import json
import os

import pytest
import torch
import yaml
from torch import nn

from mimonets.training import TrainConfig, train
from mimonets.training.config import REMOVED
from mimonets.training.identity import Identity
from mimonets.training.run_folder import RunFolder, read_recipe
from training.tiny import TinyBatches, tiny_config, tiny_conv


def tiny_run(folder, **options):
    settings = options.pop("settings", {})
    model = options.pop("model", None) or tiny_conv()
    return train(model, TinyBatches(), tiny_config(**settings), run_dir=folder, **options)


def test_a_second_process_is_told_who_is_training(tmp_path):
    refused = []

    def come_second(step):
        if step == 2 and not refused:
            with pytest.raises(ValueError, match="is being trained into") as error:
                tiny_run(tmp_path / "run", resume=True)
            refused.append(str(error.value))

    train(tiny_conv(), TinyBatches(before=come_second), tiny_config(), run_dir=tmp_path / "run")
    assert f"is being trained into by process {os.getpid()} on " in refused[0]
    assert "wait until it has ended" in refused[0]
    assert tiny_run(tmp_path / "run", resume=True).steps == 8


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_that_is_no_run_is_not_touched(tmp_path, resume):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.png").write_text("cat")
    with pytest.raises(ValueError, match=r"photos is no run and holds cat.png: choose another"):
        tiny_run(tmp_path / "photos", resume=resume)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]
    (tmp_path / "empty").mkdir()
    assert tiny_run(tmp_path / "empty", resume=resume).steps == 8


@pytest.mark.parametrize("there", [False, True])
def test_a_run_that_fails_at_its_first_batch_leaves_nothing_behind(tmp_path, there):
    if there:
        (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match="holds 9 inputs, and a step is made for 8"):
        train(tiny_conv(), TinyBatches(4, 9), tiny_config(), run_dir=tmp_path / "run")
    assert (tmp_path / "run").exists() == there
    assert not there or not list((tmp_path / "run").iterdir())
    assert tiny_run(tmp_path / "run").steps == 8


def test_moved_data_and_another_name_can_be_resumed(tmp_path):
    recipe = {"name": "old", "data": {"name": "tiny", "dir": "/there", "download": True}}
    tiny_run(tmp_path / "run", recipe=recipe)
    moved = {"name": "new", "data": {"name": "tiny", "dir": "/here", "download": False}}
    assert tiny_run(tmp_path / "run", recipe=moved, resume=True).steps == 8
    with pytest.raises(ValueError, match="it differs in data.name"):
        tiny_run(tmp_path / "run", recipe={"data": {"name": "other"}}, resume=True)


def without(folder, section, *names):
    """Take settings out of a run's record, as if they had not existed when it was started."""
    path = folder / "recipe.yaml"
    found = yaml.safe_load(path.read_text())
    for name in names:
        del found[section][name]
    path.write_text(yaml.safe_dump(found))


def test_a_run_from_before_a_setting_existed_can_be_resumed_if_nothing_changes(tmp_path):
    tiny_run(tmp_path / "run")
    without(tmp_path / "run", "train", "slow_inputs", "keep", "recalibrate_batches")
    without(tmp_path / "run", "model", "pool")
    default = {"recalibrate_batches": TrainConfig().recalibrate_batches}
    assert tiny_run(tmp_path / "run", resume=True, settings=default).steps == 8
    with pytest.raises(ValueError, match="it differs in train.recalibrate_batches"):
        tiny_run(tmp_path / "run", resume=True)


def test_a_run_of_0_2_0_resumes_unless_it_used_a_setting_that_is_gone(tmp_path):
    tiny_run(tmp_path / "run")
    path = tmp_path / "run/recipe.yaml"
    found = yaml.safe_load(path.read_text())
    found["train"] |= {**REMOVED, "checkpoint_every": 3}
    path.write_text(yaml.safe_dump(found))
    assert tiny_run(tmp_path / "run", resume=True).steps == 8
    found["train"]["stream_curriculum"] = 0.5
    path.write_text(yaml.safe_dump(found))
    with pytest.raises(ValueError, match=r"recipe.yaml: train.stream_curriculum=0.5: .* 0\.2\.0"):
        tiny_run(tmp_path / "run", resume=True)


def test_a_run_with_older_names_of_settings_can_be_resumed(tmp_path):
    run = tmp_path / "run"
    tiny_run(run, model=tiny_conv(binding="matrix"))
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["model"]["binding"] = "mbat"
    recipe["train"]["cross_decay"] = None
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert tiny_run(run, model=tiny_conv(binding="matrix"), resume=True).steps == 8
    assert read_recipe(run)["model"]["binding"] == "matrix"
    assert "cross_decay" not in read_recipe(run)["train"]
    with pytest.raises(ValueError, match="it differs in model.binding"):
        tiny_run(run, resume=True)


def test_an_old_dynamic_run_resumes_as_it_was(tmp_path):
    old = {"fast_share": 0.5, "slow_inputs": "per-stream"}
    tiny_run(tmp_path / "run", settings=old)
    without(tmp_path / "run", "train", "slow_inputs")
    with pytest.raises(ValueError, match="it differs in train.slow_inputs"):
        tiny_run(tmp_path / "run", resume=True, settings={"fast_share": 0.5})
    assert tiny_run(tmp_path / "run", resume=True, settings=old).steps == 8


DAMAGE = [
    "",
    "[]",
    "3",
    "{",
    '"text"',
    "{a: b: c}",
    "\x00",
    "null",
    '{"final": 3}',
    "{}",
    "[" * 5000,
]


@pytest.mark.parametrize("name", ["recipe.yaml", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize("text", DAMAGE, ids=range(len(DAMAGE)))
def test_damaged_records_get_one_sentence(tmp_path, name, text):
    run = RunFolder(tmp_path / "run", writes=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text(text)
    read = {
        "recipe.yaml": lambda: read_recipe(tmp_path / "run"),
        "metrics.jsonl": run.history,
        "result.json": run.result,
    }[name]
    # A last line that was cut short is what a kill leaves of a row of metrics.
    if name == "metrics.jsonl" and text in ("", "{", "{a: b: c}", "\x00"):
        assert read() == []
        return
    with pytest.raises(ValueError, match=name.replace(".", r"\.")) as error:
        read()
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_get_one_sentence(tmp_path):
    for name in ("recipe.yaml", "metrics.jsonl", "result.json"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00")
    run = RunFolder(tmp_path, writes=False)
    for read in (lambda: read_recipe(tmp_path), run.history, run.result):
        with pytest.raises(ValueError, match="damaged"):
            read()


@pytest.mark.parametrize("change", ["empty", "list", "no optimizer", "another model", "step"])
def test_a_checkpoint_of_another_shape_gets_one_sentence(tmp_path, change):
    tiny_run(tmp_path / "run")
    path = tmp_path / "run/checkpoints/last.pt"
    state = torch.load(path, weights_only=True)
    if change == "empty":
        path.write_bytes(b"")
    elif change == "list":
        torch.save([1, 2], path)
    elif change == "no optimizer":
        torch.save({name: value for name, value in state.items() if name != "optimizer"}, path)
    elif change == "another model":
        torch.save(state | {"model": nn.Linear(2, 2).state_dict()}, path)
    else:
        torch.save(state | {"step": "four"}, path)
    with pytest.raises(ValueError, match="last.pt") as error:
        tiny_run(tmp_path / "run", resume=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("accelerator", ["cuda", "mps", "foo"])
def test_a_device_that_is_not_there_gets_one_sentence(tmp_path, accelerator):
    if accelerator == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match=f"train.accelerator={accelerator} .*cpu always works"):
        tiny_run(tmp_path / "run", settings={"accelerator": accelerator})
    assert not (tmp_path / "run").exists()


def test_identity_knows_the_defaults_of_every_section():
    identity = Identity.of(tiny_conv(), TrainConfig(), {"data": TrainConfig(lr=0.5), "name": "x"})
    assert identity.settings["data"]["lr"] == 0.5
    assert identity.defaults["data"]["lr"] == TrainConfig().lr
    assert identity.defaults["model"]["depth"] == 28
    assert json.loads(json.dumps(identity.settings)) == identity.settings
