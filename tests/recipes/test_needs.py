"""GPU-hours and memory of recipes and plans, told before anything is trained."""

import json
from dataclasses import replace

import pytest

from mimonets.cli.main import main
from mimonets.experiments.cost import plan_needs, total_needs
from mimonets.experiments.plan import load_plan
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import run_recipe
from mimonets.recipes.needs import count_step, known_needs, needs_line, needs_of, total_steps

PAPER = {"cifar100-mimoconv-n4": 11.0, "lra-text-performer": 5.89}  # hours on an A100


@pytest.mark.parametrize(("recipe", "hours"), PAPER.items())
def test_the_estimate_is_about_what_the_paper_took(recipe, hours):
    assert known_needs(recipe).hours("32") == pytest.approx(hours, rel=0.2)


@pytest.mark.parametrize("name", ["cifar", "lra"])
def test_every_row_of_the_papers_tables_has_hours_and_memory(name):
    plan = load_plan(name)
    rows = plan_needs(plan, count=False)
    assert [row["what"] for row in rows] == [trial.title for trial in plan.trials]
    assert all(row["hours"] > 0.1 and row["peak"] > 5e8 for row in rows)
    half = plan_needs(plan.changed(["train.precision=bf16"]), count=False)
    assert all(
        b["peak"] <= a["peak"] and b["hours"] < a["hours"] for a, b in zip(rows, half, strict=True)
    )
    runs = sum(len(trial.seeds) for trial in plan.trials)
    assert total_needs(rows).startswith(f"{runs} runs, about ")


@pytest.mark.parametrize("name", ["lra-text-performer", "lra-image-mimoformer-2x2"])
def test_the_table_says_about_what_counting_says(name):
    recipe = load_recipe(name)
    needs = needs_of(recipe)
    for (_, _, peak), precision in zip(count_step(recipe), ("32", "bf16"), strict=True):
        assert needs.peak[precision] == pytest.approx(peak, rel=0.2), "`make costs` counts anew"


def test_steps_are_known_before_the_data_is_read():
    changes = ["data.limit=64", "train.batch_size=8", "train.epochs=3"]
    assert total_steps(load_recipe("digits-mimoconv-n4", changes)) == 24
    assert total_steps(load_recipe("lra-text-performer")) == 40_000
    assert total_steps(load_recipe("mnist-mimoconv-n4")) == 50 * (55_000 // 128)


def test_cost_tells_what_training_needs(capsys):
    assert main(["cost", "lra-text-performer", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["training"]
    assert found["steps"] == 40_000
    assert found["peak_bytes"]["bf16"] < found["peak_bytes"]["32"]
    main(["cost", "lra-text-performer"])
    assert "Training of 40,000 steps, by estimate: float32" in capsys.readouterr().out
    main(["cost", "digits-mimoconv-n4", "--set", "model.width=1"])
    assert "GB at the peak" in capsys.readouterr().out


def test_cost_tells_what_a_plan_needs(capsys):
    assert main(["cost", "cifar"]) == 0
    out = capsys.readouterr().out
    assert "A100-hours a run" in out
    assert "60 runs, about" in out


def test_a_run_says_what_it_needs_and_what_to_set_if_that_is_too_much():
    recipe = load_recipe("lra-text-performer")
    line = needs_line(recipe, memory=80e9)
    assert line.startswith("lra-text-performer needs about ")
    assert line.endswith("61.7 GB of GPU memory, by estimate.")
    assert needs_line(recipe, memory=40e9).endswith(
        "This device has 40.0 GB: set train.precision=bf16 or train.recompute=true or "
        "train.accumulate=auto."
    )


def test_it_is_said_before_a_run_starts_on_a_gpu(monkeypatch, capsys, tmp_path):
    properties = type("Properties", (), {"total_memory": 10**6})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)

    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("mimonets.recipes.execute.load_data", stop)
    recipe = load_recipe("digits-mimoconv-n4", ["train.epochs=1"])
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, tmp_path / "run")
    assert "This device has 0.001 GB: set train.precision=bf16" in capsys.readouterr().err
    on_cpu = replace(recipe, train=replace(recipe.train, accelerator="cpu"))
    with pytest.raises(KeyboardInterrupt):
        run_recipe(on_cpu, tmp_path / "run")
    assert not capsys.readouterr().err
