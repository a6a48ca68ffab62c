"""Third-party networks on the command line: --import names the module with their builder."""

import json
import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mimonets as mn
from mimonets.cli._options import import_modules
from mimonets.cli.main import main
from mimonets.cli.open_models import open_network
from mimonets.models import builders
from mimonets.training import TrainConfig, train

CODE = """
import mimonets as mn
from torch import nn

@mn.register_builder("my-cnn")
def my_cnn(maps):
    return nn.Sequential(nn.Conv2d(1, maps, 3, padding=1), nn.ReLU(), nn.Conv2d(maps, 8, 3),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A network that was saved with a builder, which this process has forgotten since."""
    monkeypatch.setattr(builders, "BUILDERS", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_networks", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_networks.py").write_text(CODE)
    exec(CODE, {})
    settings = {"num_streams": 2, "bind_after": "1", "unbind_before": "5", "builder": "my-cnn"}
    model = mn.superpose(
        example=torch.zeros(1, 1, 8, 8), builder_settings={"maps": 6}, **settings
    ).eval()
    mn.save(model, tmp_path / "mine")
    builders.BUILDERS.clear()
    yield "mine"
    sys.modules.pop("my_networks", None)


def run(capsys, *arguments):
    code = main([*arguments, "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if printed.out else printed.err


def test_cost_and_bench_build_it_with_the_module_that_is_named(folder, capsys):
    code, found = run(capsys, "cost", folder, "--import", "my_networks")
    assert code == 0
    trunk = [mode["plain"]["trunk"] for mode in found["macs_per_input"]]
    assert trunk[0] == 2 * trunk[1] > 0
    quick = ("--rounds", "1", "--warmup", "0", "--batch-size", "2")
    code, found = run(capsys, "bench", folder, "--import", "my_networks", *quick)
    assert code == 0
    assert found["models"][folder]["builder"] == "my-cnn"


def groups(folder, backend):
    network = open_network("mine", [folder], backend, 1)  # as `mimonets serve` does
    return [point.inputs_per_pass for point in network.points]


def test_serve_builds_it_too(folder, tmp_path):
    import_modules(["my_networks"])
    assert groups(tmp_path / folder, "auto") == [1, 2]


def test_the_run_of_a_network_of_others_is_served_and_its_data_are_not_guessed(
    folder, capsys, tmp_path
):
    import_modules(["my_networks"])
    model = mn.load(tmp_path / folder)
    batch = torch.randn(8, 1, 8, 8), torch.zeros(8, dtype=torch.long)
    loader = DataLoader(TensorDataset(*batch), batch_size=8)
    config = TrainConfig(epochs=1, batch_size=4, mixup=0.0, fast_share=0.5)
    train(model, loader, config, run_dir=tmp_path / "run")
    assert set(groups(tmp_path / "run", "auto")) <= {1, 2}  # those that were trained
    capsys.readouterr()
    for command in (["evaluate", "run"], ["export", "run", "--out", "out"]):
        code, error = run(capsys, *command)
        assert code == 2
        assert "measure it from Python, and export or serve run/model" in error
        assert error.count("\n") == 1


@pytest.mark.slow
def test_an_export_is_served_without_the_code_of_the_network(folder, capsys, tmp_path):
    pytest.importorskip("onnxruntime")
    code, found = run(capsys, "export", folder, "--out", "out", "--import", "my_networks")
    assert code == 0
    assert [mode["active_streams"] for mode in found["modes"]] == [1, 2]
    builders.BUILDERS.clear()
    assert groups(tmp_path / "out", "onnxruntime") == [1, 2]


@pytest.mark.parametrize("command", ["cost", "bench", "export", "predict"])
def test_without_the_module_one_sentence_says_how_to_name_it(folder, capsys, command):
    more = {"export": ["--out", "out"], "predict": ["a.png"]}.get(command, [])
    code, error = run(capsys, command, folder, *more)
    assert code == 2
    assert "'my-cnn' is not registered" in error
    assert "--import MODULE" in error
    assert error.count("\n") == 1


def test_a_module_that_fails_is_named(folder, capsys, tmp_path):
    code, error = run(capsys, "cost", folder, "--import", "my_netwroks")
    assert (code, "--import my_netwroks fails: No module named" in error) == (2, True)
    (tmp_path / "broken.py").write_text("raise RuntimeError('first\\nsecond')")
    code, error = run(capsys, "cost", folder, "--import", "broken")
    assert (code, "--import broken fails: first second" in error) == (2, True)


def test_a_network_without_a_builder_says_what_to_do_instead(folder, capsys, tmp_path):
    exec(CODE, {})
    network = builders.build("my-cnn", {"maps": 6})
    settings = {"num_streams": 2, "bind_after": "1", "unbind_before": "5"}
    model = mn.superpose(network, example=torch.zeros(1, 1, 8, 8), **settings)
    mn.save(model, tmp_path / "other")
    code, error = run(capsys, "export", "other", "--out", "out")
    assert code == 2
    assert "mimonets.export it from there, or save it with builder=" in error
