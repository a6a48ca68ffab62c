"""compare() trains candidates alike, measures them, and may advise against superposition."""

import copy
import json
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mimonets as mn
from mimonets.cli._options import imported
from mimonets.cli.main import main
from mimonets.experiments import compare_training
from mimonets.experiments.advice import advise, pareto
from mimonets.experiments.compare import compare
from mimonets.serving.networks import superposed

MINE = """
from torch import nn

def make(maps=16):
    first, second = nn.Conv2d(1, maps, 3, padding=1), nn.Conv2d(maps, maps, 3, 2, 1)
    layers = first, nn.ReLU(), second, nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(maps, 10))

def small():
    return make(8)
"""


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    found = pytest.importorskip("sklearn.datasets").load_digits()
    path = tmp_path_factory.mktemp("data") / "digits.npz"
    images = (found.images * 15).astype(np.uint8)
    np.savez(path, images=images[:600], labels=found.target[:600])
    return path


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "compared_network.py"
    path.write_text(MINE)
    return path


@pytest.mark.slow  # exports seven networks; test_examples.py exports five
def test_one_command_gives_table_plot_advice_and_models_to_serve(mine, digits, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["compare", "--import", f"{mine}:make", "--data", str(digits), "--out", str(out)]
    words += ["--steps", "30", "--seeds", "2", "--speed", "1.1", "--no-int8"]
    words += ["--sibling", f"small={mine}:small"]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert "At 1.1x the speed" in printed.out
    assert "minutes of training left" in printed.err
    result = json.loads((out / "compare.json").read_text())
    names = [row["name"] for row in result["rows"]]
    assert names[:3] == ["as it is", "half resolution", "small"]
    assert {"keys, N=2", "tiles, N=4"} <= {*names}
    assert (out / "compare.png").stat().st_size > 1000
    rows = {row["name"]: row for row in result["rows"]}
    assert rows["as it is"]["speed"] == 1.0
    assert rows["half resolution"]["macs"] < 0.3 * rows["as it is"]["macs"]
    assert all(0 < row["interval"] <= 1 and row["memory"] > 0 for row in result["rows"])
    engine = mn.Engine(rows["tiles, N=4"]["served"], "auto")
    answers = engine(torch.randn(4, 1, 8, 8).numpy(), 4)
    assert answers.shape == (4, 10)

    accuracies = [row["by_seed"] for row in result["rows"]]
    assert main([*words, "--json"]) == 0  # resumes: nothing is trained again
    again = json.loads(capsys.readouterr().out)
    assert [row["by_seed"] for row in again["rows"]] == accuracies


LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def loaders():
    images, labels = torch.randn(64, 1, 8, 8), torch.arange(64) % 4
    return [DataLoader(TensorDataset(images, labels), 16) for _ in range(2)]
"""


@pytest.mark.usefixtures("torch_only")
def test_a_saved_network_and_loaders_of_ones_own_are_taken(tmp_path, capsys):
    sizes = {"depth": 10, "width": 1, "in_channels": 1, "image_size": 8, "num_classes": 4}
    mn.save(mn.create("wideresnet", **sizes), tmp_path / "saved")
    thin = mn.SlimmableWideResNetConfig(**sizes, widths=(0.5,), shrinks=(1,))
    mn.save(mn.SlimmableWideResNet(thin), tmp_path / "thin")
    (tmp_path / "given.py").write_text(LOADERS)
    words = ["compare", str(tmp_path / "saved"), "--data", f"{tmp_path}/given.py:loaders"]
    words += ["--out", str(tmp_path / "out"), "--steps", "1", "--seeds", "1", "--batch-size", "4"]
    words += ["--sibling", f"thin={tmp_path / 'thin'}"]
    assert main([*words, "--json"]) == 0
    rows = {one["name"]: one for one in json.loads(capsys.readouterr().out)["rows"]}
    assert {"as it is", "thin", "keys, N=4", "tiles, N=2", "slimmable, width 0.5"} <= {*rows}
    assert rows["slimmable, width 0.25"]["macs"] < rows["as it is"]["macs"] / 3


def row(name, accuracy, speed, streams=1):
    return {
        **{"name": name, "accuracy": accuracy, "interval": 0.005, "speed": speed},
        **{"inputs_per_pass": streams, "macs": 1e6 / speed},
    }


ROWS = [
    row("as it is", 0.95, 1.0),
    row("half resolution", 0.912, 3.2),
    row("tiles, N=4", 0.901, 3.4, 4),
    row("keys, N=4", 0.84, 3.5, 4),
]


def test_the_advice_can_be_against_superposition():
    assert advise(ROWS, speed=3) == (
        "At 3x the speed: half resolution 91.2 ± 0.5, tiles, N=4 90.1 ± 0.5, keys, N=4 84.0 ± 0.5: "
        "take half resolution."
    )
    assert "take half resolution" in advise(ROWS, macs=0.5e6)
    # At the cost of the cheapest superposed one, whatever speeds a busy machine gives.
    cost = {"as it is": 10e6, "half resolution": 2.77e6, "tiles, N=4": 2.94e6, "keys, N=4": 3.74e6}
    for drift in (0.5, 1.0, 3.0):
        again = [
            {**one, "macs": cost[one["name"]], "speed": one["speed"] * drift} for one in ROWS[:2]
        ] + [{**one, "macs": cost[one["name"]]} for one in ROWS[2:]]
        assert advise(again).endswith("take half resolution.")
        assert advise(again).startswith("At 2.94 MMAC: half resolution")
    assert "no candidate gets there; the fastest is keys" in advise(ROWS, speed=9)
    assert "the cheapest is keys, N=4, 0.286 MMAC" in advise(ROWS, macs=1.0)


def test_a_candidate_is_listed_once_as_float32_or_int8():
    int8 = {"name": "half resolution, int8", "base": "half resolution"}
    rows = [*ROWS, {**ROWS[1], **int8, "accuracy": 0.7}, {**ROWS[1], **int8, "accuracy": 0.913}]
    listed = "At 3x the speed: half resolution, int8 91.3 ± 0.5, tiles, N=4 90.1"
    assert advise(rows, speed=3).startswith(listed)


def test_candidates_within_their_intervals_are_named():
    rows = [ROWS[0], row("a", 0.9, 3.0), row("b", 0.897, 3.1)]
    assert advise(rows, speed=3).endswith("take a (within the intervals: b).")
    rows = [ROWS[0], row("a", 0.897, 3.0), row("b", 0.9, 3.1, 4), row("c", 0.8, 3.1)]
    assert advise(rows, speed=3).endswith("take a (within the intervals: b).")  # the plainest


def test_of_losses_the_smallest_is_taken():
    def lost(name, loss, speed):
        return {**row(name, 0, speed), "loss": loss}

    rows = [lost("as it is", 0.1, 1.0), lost("tiles", 0.3, 3.0), lost("half", 0.2, 3.1)]
    for one in rows:
        del one["accuracy"]
    found = "At 3x the speed: half loss 0.2 ± 0.005, tiles loss 0.3 ± 0.005: take half."
    assert advise(rows, speed=3) == found


def test_the_pareto_front_has_no_row_that_another_one_beats():
    rows = [{**one, "inputs_per_second": one["speed"]} for one in (*ROWS, row("slow", 0.95, 0.9))]
    assert [one["name"] for one in pareto(rows)] == [one["name"] for one in ROWS]


def refuses(tmp_path, match, network=None, data=None, **settings):
    def cnn():
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 10))

    out = tmp_path / "out"
    with pytest.raises(ValueError, match=match):
        compare(network or cnn, data, out=out, **settings)
    assert not out.exists()


TAKEN = {"tiles, N=2": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}


def test_bad_input_gets_one_sentence_and_nothing_is_written(digits, tmp_path, monkeypatch):
    refuses(tmp_path, "minutes=.*at least minutes", data=digits, minutes=1e-5)
    refuses(tmp_path, "seeds=0", data=digits, seeds=0)
    refuses(tmp_path, "speed and macs.*give one", data=digits, speed=2, macs=1e6)
    refuses(tmp_path, r"streams=\(1,\)", data=digits, streams=(1,))
    refuses(tmp_path, "no file", data=tmp_path / "no.npz")
    refuses(tmp_path, "sibling 'tiles, N=2'.*choose another", data=digits, siblings=TAKEN)
    refuses(tmp_path, "data=int", data=3)
    refuses(tmp_path, "fails on the example", lambda: nn.Conv2d(3, 8, 3), digits)
    one = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    refuses(tmp_path, "the same network twice: let it make", lambda: one, digits)
    frozen = copy.deepcopy(one).requires_grad_(False)
    refuses(tmp_path, "no weights.*requires_grad", frozen, digits)
    nowhere = copy.deepcopy(one)
    nn.init.constant_(nowhere[1].bias, float("nan"))
    refuses(tmp_path, "loss.*not a number", nowhere, digits)
    monkeypatch.setitem(sys.modules, "ray", None)
    refuses(tmp_path, "workers > 1 needs ray", one, digits, workers=2)
    np.savez(tmp_path / "two.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.arange(2))
    refuses(tmp_path, "smallest class.*at least 2", data=tmp_path / "two.npz")
    texts = np.array(["cat", "dog"] * 10)
    np.savez(tmp_path / "texts.npz", images=np.zeros((20, 8, 8), np.uint8), labels=texts)
    refuses(tmp_path, "labels", data=tmp_path / "texts.npz")
    for name, sizes in (("several", (8, 9)), ("single", (8,))):
        for letter in "ab":
            (tmp_path / name / letter).mkdir(parents=True)
            for side in sizes:
                image = Image.fromarray(np.zeros((side, side), np.uint8))
                image.save(tmp_path / name / letter / f"{side}.png")
    refuses(tmp_path, "bring all images to one size", data=tmp_path / "several")
    refuses(tmp_path, "at least 2 per class", data=tmp_path / "single")


def test_a_misspelt_sibling_is_refused_before_anything_is_trained(mine, digits, tmp_path, capsys):
    words = ["compare", f"{mine}:make", "--data", str(digits), "--out", str(tmp_path / "out")]
    for siblings, said in (
        ([f"small={mine}:smal"], "has no function smal"),
        ([f"small={mine}:small"] * 2, "--sibling small is there twice"),
    ):
        assert main([*words, *(word for one in siblings for word in ("--sibling", one))]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_another_folder_is_not_touched(digits, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="out=.*name another folder"):
        compare(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits, out=tmp_path / "out")


@pytest.mark.usefixtures("torch_only")
def test_results_of_another_network_are_not_taken_up(digits, tmp_path):
    def cnn(maps):
        return nn.Sequential(nn.Conv2d(1, maps, 3), nn.Flatten(), nn.Linear(36 * maps, 10))

    def stop(line):
        if "seed 0" in line:
            raise KeyboardInterrupt

    settings = {"out": tmp_path / "out", "steps": 2, "seeds": 1, "streams": (2,)}
    with pytest.raises(KeyboardInterrupt):  # after the first training
        compare(lambda: cnn(8), digits, tell=stop, **settings)
    with pytest.raises(ValueError, match="out=.*weights.*name another folder"):
        compare(lambda: cnn(12), digits, **settings)


SHORT = {"steps": 3, "seeds": 1, "streams": (2,)}


def loaders(images, labels):
    data = torch.utils.data.TensorDataset(images, labels)
    return [torch.utils.data.DataLoader(data, size) for size in (16, 32)]


@pytest.mark.usefixtures("torch_only")
def test_numbers_and_maps_are_compared_by_their_loss(tmp_path):
    images = torch.randn(64, 1, 8, 8)

    def make():
        sizes = (1, 8), (8, 8), (8, 8), (8, 1)
        layers = [nn.Conv2d(*size, 3, padding=1) for size in sizes]
        return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), *layers[2:])

    found = compare(make, loaders(images, images / 2), out=tmp_path / "out", **SHORT)
    names = [one["name"] for one in found["rows"]]
    assert names == ["as it is", "half resolution", "keys, N=2", "tiles, N=2"]
    assert all(one["loss"] > 0 and one["interval"] > 0 for one in found["rows"])
    assert found["plan"]["loss"] == "squared_error"
    assert (tmp_path / "out" / "compare.png").exists()


@pytest.mark.usefixtures("torch_only")
def test_a_trained_network_is_measured_as_it_is_and_teaches_the_others(tmp_path, monkeypatch):
    labels = torch.arange(128) % 2
    images = (2.0 * labels - 1).view(-1, 1, 1, 1).expand(-1, 1, 8, 8)

    def make():
        network = nn.Sequential(nn.Conv2d(1, 8, 1), nn.Conv2d(8, 8, 1), nn.ReLU(), Head())
        for p in network.parameters():
            nn.init.constant_(p, 0.1)
        network[3].weight.data = torch.tensor([[0.0] * 8, [1.0] * 8])
        network[3].bias.data = torch.tensor([1.5, 0.0])
        return network

    class Head(nn.Linear):
        def __init__(self):
            super().__init__(8, 2)

        def forward(self, x):
            return super().forward(x.mean((2, 3)))

    teachers = []
    train = compare_training.train
    monkeypatch.setattr(
        compare_training,
        "train",
        lambda *a, teacher, **k: teachers.append(teacher) or train(*a, teacher=teacher, **k),
    )
    said = []
    found = compare(make, loaders(images, labels), out=tmp_path / "out", tell=said.append, **SHORT)
    first = found["rows"][0]
    assert (first["name"], first["accuracy"]) == ("as it is", 1.0)
    assert found["plan"]["distilled"]
    assert any("trained already" in line for line in said)
    assert len(teachers) == len(found["rows"]) - 1  # all others were trained
    assert all(isinstance(teacher, nn.Sequential) for teacher in teachers)


@pytest.mark.usefixtures("torch_only")
def test_a_candidate_that_fails_says_why_and_the_others_go_on(digits, tmp_path, monkeypatch):
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, x):
            if self.training and len(x) > 2:
                raise RuntimeError("no batches, please")
            return self.linear(x.flatten(1))

    def plain():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    found = compare(plain, digits, out=tmp_path / "out", siblings={"fragile": Fragile}, **SHORT)
    assert "no batches, please" in found["refused"]["fragile"]
    assert "fails on the example" in found["refused"]["half resolution"]
    assert [one["name"] for one in found["rows"]] == ["as it is"]


def test_where_no_training_works_it_says_so_in_a_sentence(digits, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(compare_training, "train", fail)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(
        ValueError, match="nothing to compare with.*as it is: training failed: out of memory"
    ):
        compare(network, digits, out=tmp_path / "out", **SHORT)


@pytest.mark.slow
def test_int8_of_each_takes_part_and_is_served(digits, mine, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(mine.parent))
    from compared_network import make

    found = compare(make, digits, out=tmp_path / "out", **{**SHORT, "steps": 60})
    rows = {one["name"]: one for one in found["rows"]}
    for name in ("as it is", "tiles, N=2"):
        plain, int8 = rows[name], rows[f"{name}, int8"]
        assert int8["engine"].endswith("int8")
        assert abs(int8["accuracy"] - plain["accuracy"]) < 0.1
    network = superposed("mine", mn.Engine(rows["tiles, N=2"]["served"], "onnxruntime-int8"))
    network.run_every_graph()
    assert network.answer_shapes == {"values": (10,)}


OWN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, i):
        return torch.full((1, 8, 8), 2.0 * (i % 2) - 1), i % 2

class Net(nn.Sequential):
    def __init__(self):
        maps = [nn.Conv2d(*sizes, 3, padding=1) for sizes in ((1, 16), (16, 16), (16, 16))]
        super().__init__(*maps, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))
        for p in self.parameters():
            nn.init.constant_(p, 0.1 if p.ndim > 1 else 0.0)
        self[-1].weight.data[0] *= -1  # trained already: it teaches the others

def loaders():
    return [DataLoader(Rows(), 16) for _ in range(2)]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("torch_only")
def test_workers_train_in_processes_of_their_own(tmp_path):
    ray = pytest.importorskip("ray")
    (tmp_path / "own_network.py").write_text(OWN)  # not where the processes of Ray start
    make = partial(imported, f"{tmp_path}/own_network.py:Net")
    data = imported(f"{tmp_path}/own_network.py:loaders")
    alone = compare(make, data, out=tmp_path / "alone", **SHORT)
    assert alone["plan"]["distilled"]
    try:
        shared = compare(make, data, out=tmp_path / "shared", workers=2, **SHORT)
    finally:
        ray.shutdown()
    assert len(alone["rows"]) > 2
    for one, two in zip(alone["rows"], shared["rows"], strict=True):
        assert (one["name"], one["by_seed"]) == (two["name"], two["by_seed"])
