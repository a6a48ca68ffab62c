"""The scripts in examples/ run, and answer what they claim."""

import json
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mimonets.cli.main import main

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_shipped_digits_network_reads_sixteen_digits(capsys):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    runpy.run_path(str(EXAMPLES / "shipped_weights.py"))
    *lines, last = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert list(rows) == ["labels", "fast", "slow"]
    assert rows["labels"] == [str(label) for label in digits.target[-297:][:16]]
    for mode in ("fast", "slow"):
        right = sum(a == b for a, b in zip(rows[mode], rows["labels"], strict=True))
        assert right >= 14, mode
        assert f"{mode} mode" in last
        assert f"{right} " in last


def test_the_tour_runs_as_a_program_and_is_a_notebook(capsys):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib").use("agg")
    runpy.run_path(str(EXAMPLES / "tour.py"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()][1:-1]
    assert [(row[0], row[1]) for row in rows] == [
        *(("keys", active) for active in "124"),
        *(("tiles", active) for active in "124"),
        ("plain", "1"),
    ]
    accuracy = {(row[0], row[1]): float(row[2].rstrip("%")) for row in rows}
    assert accuracy["plain", "1"] > accuracy["keys", "4"] > 96  # as its last line says
    macs = {(row[0], row[1]): float(row[3]) for row in rows}
    assert macs["plain", "1"] == pytest.approx(macs["keys", "4"], rel=0.2)

    cells = pytest.importorskip("jupytext").read(EXAMPLES / "tour.py").cells
    kinds = [cell.cell_type for cell in cells]
    assert kinds == ["markdown", "code", "code", "markdown", "code"]


@pytest.fixture
def beside(monkeypatch):
    """Let examples import what lies beside them."""
    monkeypatch.syspath_prepend(str(EXAMPLES))


def test_a_cnn_of_ones_own_takes_four_digits_per_pass(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["own_network.py", "1"])
    found = runpy.run_path(str(EXAMPLES / "own_network.py"), run_name="__main__")
    rows = [*found["rows"], found["four"], found["small"]]
    assert [row[:2] for row in rows] == [
        ("CNN", 1),
        ("CNN in superposition", 1),
        ("CNN in superposition", 4),
        ("CNN with 36 maps", 1),
    ]
    macs = [row[3] for row in rows]
    assert macs[2] < 0.4 * macs[0] < 0.4 * macs[1]
    assert macs[3] == pytest.approx(macs[2], rel=0.1)  # what one would pick instead
    assert rows[0][2] > 0.3
    said = capsys.readouterr().out.splitlines()
    assert said[2].startswith("CNN in superposition, 4 per pass: ")
    assert said[-1].startswith(f"At {macs[2]:.1f} MMAC: {rows[2][2]:.1%} superposed, ")


def test_a_resnet_with_weights_from_files_takes_four_images_per_pass(tmp_path, beside):
    import resnet_cifar10
    from resnet import ResNet

    for depth in (20, 56):
        save_file(ResNet(depth).state_dict(), tmp_path / f"resnet{depth}.safetensors")
    rng = np.random.default_rng(0)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = rng.integers(256, size=(16, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(records.tobytes())
    rows = resnet_cifar10.main(tmp_path, str(tmp_path), 1, 4, tmp_path / "run")
    assert [row[:2] for row in rows] == [
        ("ResNet-56", 1),
        ("ResNet-20", 1),
        *(("superposed ResNet-56", active) for active in (1, 2, 4)),
    ]
    large, small, slow, _, fast = (row[3] for row in rows)
    assert small == pytest.approx(0.324 * large, rel=0.01)  # 41 of 126 million
    assert slow == large
    assert 0.9 * small < fast < small  # what one would pick instead costs about as much
    assert torch.isfinite(torch.tensor([row[2].loss for row in rows])).all()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_fits_on_a_screen(path):
    assert len(path.read_text().splitlines()) <= 65


@pytest.mark.usefixtures("torch_only", "beside")
def test_a_cnn_of_ones_own_is_compared_with_what_one_could_run_instead(tmp_path):
    import compare_digits

    toy = {"steps": 4, "seeds": 1, "streams": (4,), "int8": False}
    found = compare_digits.main("classify", str(tmp_path / "out"), **toy)
    names = [row["name"] for row in found["rows"]]
    assert names == ["as it is", "half resolution", "36 maps", "keys, N=4", "tiles, N=4"]
    assert found["advice"].startswith("At 1.2 MMAC: ")


def test_an_example_without_its_arguments_says_what_they_are(beside, monkeypatch):
    monkeypatch.setattr("sys.argv", ["resnet_cifar10.py"])
    with pytest.raises(SystemExit, match="resnet_cifar10.py WEIGHTS DATA"):
        runpy.run_path(str(EXAMPLES / "resnet_cifar10.py"), run_name="__main__")


@pytest.mark.usefixtures("torch_only")
def test_sixteen_digits_per_pass_are_compared_by_the_command(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for part, count in (("train", 160), ("t10k", 32)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            values = rng.integers(10, size=shape, dtype=np.uint8)
            sizes = np.array(shape, ">u4").tobytes()
            start = bytes([0, 0, 8, len(shape)])
            (folder / f"{part}-{kind}-ubyte").write_bytes(start + sizes + values.tobytes())
    monkeypatch.setenv("MIMONETS_CACHE", str(tmp_path))
    lines = (EXAMPLES / "compare_mnist.py").read_text().partition('"""\n\n')[0]
    words = shlex.split(lines[lines.index("mimonets compare") :].replace("\\\n", " "))[1:]
    words = [word.replace("examples/", f"{EXAMPLES}/") for word in words]
    words[words.index("--steps") + 1] = "1"
    assert main([*words, "--seeds", "1", "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    cost = {row["name"]: row["macs"] / rows[0]["macs"] for row in rows}
    assert 1 / 16 < cost["a quarter as wide"] < cost["stride 4"] < cost["tiles, N=16"] < 1 / 13
    assert cost["keys, N=16"] < 1 / 10
    assert "At 0.92 MMAC: " in " ".join(capsys.readouterr().out.split())


TOY = {"steps": 2, "seeds": 1, "streams": (2,)}


@pytest.mark.usefixtures("torch_only", "beside")
def test_noise_is_removed_and_judged_by_the_squared_error(tmp_path):
    import compare_digits

    rows = compare_digits.main("denoise", str(tmp_path / "out"), **TOY)["rows"]
    names = ["as it is", "half resolution", "20 maps", "keys, N=2", "tiles, N=2"]
    assert [row["name"] for row in rows] == names
    assert all(0.1 < row["loss"] < 2 for row in rows)  # 0 for all pixels has a loss of about 0.9


@pytest.mark.usefixtures("torch_only", "beside")
def test_series_are_told_apart_in_one_dimension(tmp_path):
    import compare_series

    rows = compare_series.main(str(tmp_path / "out"), 256, **TOY)["rows"]
    assert [row["name"] for row in rows][1:] == [
        *("half the samples", "20 maps", "keys, N=2", "tiles, N=2")
    ]
    series, labels = compare_series.waves(64, 0)
    assert series.shape == (64, 1, 128)
    assert {*labels.tolist()} == {0, 1, 2}


@pytest.mark.usefixtures("torch_only", "beside")
def test_a_pretrained_resnet_is_compared_with_its_sibling(tmp_path):
    import compare_resnets
    from resnet import ResNet

    for depth in (8, 20):
        save_file(ResNet(depth).state_dict(), tmp_path / f"resnet{depth}.safetensors")
    rng = np.random.default_rng(0)
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        records = rng.integers(256, size=(16, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (tmp_path / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(records.tobytes())
    toy = {**TOY, "steps": 1, "batch_size": 2, "depths": (20, 8)}
    found = compare_resnets.main(str(tmp_path), str(tmp_path), str(tmp_path / "out"), 4, **toy)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["ResNet-8"]["macs"] < 0.4 * rows["as it is"]["macs"]
    assert found["advice"].startswith("At 42 MMAC")


@pytest.mark.usefixtures("torch_only", "beside")
def test_a_pretrained_text_encoder_is_compared_with_fewer_layers(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    import compare_minilm

    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}
    level = tokenizers.models.WordLevel(words, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(level)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=4, num_hidden_layers=6, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    for part, mood in ((part, mood) for part in ("train", "test") for mood in ("neg", "pos")):
        folder = tmp_path / "aclImdb" / part / mood
        folder.mkdir(parents=True)
        for i in range(20):
            text = " ".join(["bad" if mood == "neg" else "good"] * (1 + i % 5))
            (folder / f"{i}_1.txt").write_text(text)
    paths = [str(tmp_path), str(tmp_path), str(tmp_path / "out")]
    toy = {"steps": 2, "seeds": 1, "int8": False, "precision": "bf16"}
    found = compare_minilm.main(*paths, (40, 40), 8, **toy)
    rows = {row["name"]: row for row in found["rows"]}
    assert [*rows] == ["as it is", "4 layers", "3 layers", "keys, N=2"]
    assert rows["3 layers"]["macs"] == pytest.approx(rows["as it is"]["macs"] / 2, rel=0.01)
    assert rows["keys, N=2"]["inputs_per_pass"] == 2
    assert "tiles, N=2" in found["refused"]
