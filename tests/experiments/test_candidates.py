"""compare() trains candidates alike, measures them, and may advise against superposition."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import mimonets as mn
from mimonets.cli.main import main
from mimonets.experiments.candidates import advise, compare

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


def test_one_command_gives_table_plot_advice_and_models_to_serve(mine, digits, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["compare", "--import", f"{mine}:make", "--data", str(digits), "--out", str(out)]
    words += ["--steps", "30", "--seeds", "2", "--speed", "1.1"]
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
    assert "take keys, N=4" in advise(ROWS)  # at the speed of the fastest superposed one
    assert "no candidate gets there; the fastest is keys" in advise(ROWS, speed=9)


def test_candidates_within_their_intervals_are_named():
    rows = [ROWS[0], row("a", 0.9, 3.0), row("b", 0.897, 3.1)]
    assert advise(rows, speed=3).endswith("take a (b: within the intervals).")


def refuses(tmp_path, match, network=None, data=None, **settings):
    def cnn():
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(288, 10))

    out = tmp_path / "out"
    with pytest.raises(ValueError, match=match):
        compare(network or cnn, data, out=out, **settings)
    assert not out.exists()


def test_bad_input_gets_one_sentence_and_nothing_is_written(digits, tmp_path):
    refuses(tmp_path, "minutes=.*at least minutes", data=digits, minutes=1e-5)
    refuses(tmp_path, "seeds=0", data=digits, seeds=0)
    refuses(tmp_path, r"streams=\(1,\)", data=digits, streams=(1,))
    refuses(tmp_path, "no file", data=tmp_path / "no.npz")
    refuses(tmp_path, "data=int", data=3)
    refuses(tmp_path, "fails on the example", lambda: nn.Conv2d(3, 8, 3), digits)
    np.savez(tmp_path / "two.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.arange(2))
    refuses(tmp_path, "smallest class.*at least 2", data=tmp_path / "two.npz")
    texts = np.array(["cat", "dog"] * 10)
    np.savez(tmp_path / "texts.npz", images=np.zeros((20, 8, 8), np.uint8), labels=texts)
    refuses(tmp_path, "labels", data=tmp_path / "texts.npz")


def test_another_folder_is_not_touched(digits, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="out=.*name another folder"):
        compare(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), digits, out=tmp_path / "out")


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
