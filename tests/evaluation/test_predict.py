import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import mimonets as mn
from mimonets._inputs import InputSpec
from mimonets.cli.main import main
from mimonets.data.images.reading import read_array, to_input
from mimonets.evaluation.predict import predict
from mimonets.models.base import eval_mode

SPEC = InputSpec(
    kind="image",
    shape=(1, 8, 8),
    mean=(100.0,),
    deviation=(50.0,),
    crop=8,
    original=(12, 12),
    labels=("cat", "dog", "eel"),
)


def network():
    torch.manual_seed(0)
    config = mn.MIMOConvConfig(
        depth=10, width=1, initial_width=1, num_classes=3, num_streams=2, in_channels=1,
        image_size=8,
    )  # fmt: skip
    return mn.MIMOConv(config).eval()


def pictures(count, rng, shape=(12, 12)):
    return [rng.integers(256, size=shape, dtype=np.uint8) for _ in range(count)]


@pytest.mark.parametrize("active", [1, 2])
@pytest.mark.parametrize("batch_size", [2, 256])
def test_guesses_are_the_softmax_of_the_model_on_prepared_images(active, batch_size):
    model, images = network(), pictures(5, np.random.default_rng(0))
    prepared = np.stack(
        [(image[None, 2:10, 2:10].astype(np.float32) - 100) / 50 for image in images]
    )
    with eval_mode(model):
        wanted = model(torch.from_numpy(prepared), active_streams=active).softmax(dim=1)
    found = predict(model, images, spec=SPEC, active_streams=active, top=3, batch_size=batch_size)
    for guesses, row in zip(found, wanted, strict=True):
        order = row.argsort(descending=True).tolist()
        assert [guess.label for guess in guesses] == [SPEC.labels[i] for i in order]
        assert [guess.probability for guess in guesses] == pytest.approx(
            row[order].tolist(), abs=1e-5
        )


def test_images_of_other_sizes_and_colours_become_what_the_network_takes():
    grey = np.full((24, 36), 150, dtype=np.uint8)
    assert to_input(grey, SPEC).shape == (1, 8, 8)
    assert (to_input(grey, SPEC) == 1.0).all()
    colour = np.zeros((12, 12, 3), dtype=np.uint8)
    colour[..., 0] = 255  # red is 76 in grey
    assert to_input(colour, SPEC)[0, 0, 0] == pytest.approx((76 - 100) / 50)
    wide = InputSpec(kind="image", shape=(3, 4, 6), mean=(0.0,) * 3, deviation=(1.0,) * 3)
    assert (to_input(grey, wide) == 150).all()


@pytest.mark.parametrize(
    ("shape", "count", "one"),
    [
        ((5, 7), 1, (5, 7)),
        ((5, 7, 3), 1, (5, 7, 3)),
        ((3, 5, 7), 1, (5, 7, 3)),
        ((4, 5, 7), 4, (5, 7)),
        ((4, 5, 7, 3), 4, (5, 7, 3)),
        ((4, 1, 5, 7), 4, (5, 7)),
    ],
)
def test_arrays_of_any_common_layout_are_images(shape, count, one, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(shape, dtype=np.uint8))
    found = read_array(tmp_path / "a.npy")
    assert (len(found), found[0].shape) == (count, one)


def test_arrays_that_are_no_images_are_refused(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((4, 4)))
    with pytest.raises(ValueError, match="a.npy.*uint8.*this is float64"):
        read_array(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="a.npy is damaged or not complete"):
        read_array(path)


def test_models_that_cannot_be_asked_say_why():
    with pytest.raises(ValueError, match="how its images were prepared.*--mean"):
        predict(network(), pictures(1, np.random.default_rng(0)))
    text = InputSpec(kind="tokens", shape=(9,), vocab_size=5)
    with pytest.raises(ValueError, match="token ids.*only images"):
        predict(network(), [], spec=text)


@pytest.fixture
def saved(tmp_path):
    mn.save(network(), tmp_path / "model")
    for number, image in enumerate(pictures(3, np.random.default_rng(1), (8, 8))):
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "in" / f"{number}.png")
    return tmp_path


SAID = ["--mean", "100", "--deviation", "50"]


def test_the_command_answers_for_files_folders_and_standard_input(saved, capsys, monkeypatch):
    content = (saved / "in" / "0.png").read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    images = [str(saved / "in" / "0.png"), str(saved / "in"), "-"]
    options = [*SAID, "--active-streams", "1", "--top", "2", "--json"]
    assert main(["predict", str(saved / "model"), *images, *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["file"].rpartition("/")[2] for row in found] == [
        *("0.png", "0.png", "1.png", "2.png", "-")
    ]
    assert found[0]["classes"] == found[1]["classes"] == found[4]["classes"]
    assert [len(row["classes"]) for row in found] == [2] * 5
    assert main(["predict", str(saved / "model"), images[0], *SAID]) == 0
    assert "2 inputs per pass" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model", "in"], "--mean and --deviation"),
        (["model", "nothing.png", *SAID], "nothing.png cannot be read (No such file"),
        (["model", "model", *SAID], "holds no image (.png"),
        (["model", "in", "--mean", "1,2", "--deviation", "50"], "one number for each of 1"),
        (["nowhere", "in", *SAID], "nowhere"),
        (["model", "in", *SAID, "--active-streams", "9"], "does not fit 2"),
    ],
)
def test_mistakes_get_one_line(saved, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(saved)
    assert main(["predict", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_network_that_ships_answers_by_its_name(tmp_path, capsys):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    pixels = (digits.images[-12:] * 255 / 16).round().astype(np.uint8)
    names = []
    for number, image in enumerate(pixels):
        names.append(str(tmp_path / f"{number:02}.png"))
        Image.fromarray(image).save(names[-1])
    for mode in ("1", "4"):
        assert main(["predict", "digits", *names, "--active-streams", mode, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert [row["file"] for row in found] == names
        labels = [int(row["classes"][0]["label"]) for row in found]
        assert sum(labels == digits.target[-12:]) >= 10
