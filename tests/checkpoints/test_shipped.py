"""Models by name: shipped weights, recipes and kinds of networks, and the cards of models."""

import json
from pathlib import Path

import pytest
import torch
import yaml

import mimonets as mn
from mimonets.checkpoints import ModelCard, shipped

RECORD = json.loads((Path(__file__).parents[2] / "results" / "pretrained.json").read_text())[
    "models"
]
SMALL = mn.MIMOConvConfig(depth=10, width=1, initial_width=1, num_streams=2, num_classes=4)


def read_card(name):
    return (shipped.pretrained_folder(name) / shipped.CARD_FILE).read_text()


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A package that ships one model."""
    monkeypatch.setattr(shipped, "WEIGHTS", tmp_path)
    model = mn.MIMOConv(SMALL).eval()
    model.input_spec = model.default_input_spec()
    model.save_pretrained(tmp_path / "tiny-n2", card=ModelCard.of(model, name="tiny-n2"))
    return model


def test_shipped_weights_load_by_name(tiny):
    assert mn.list_models() == ["tiny-n2"]
    found = mn.create("tiny-n2", pretrained=True)
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(found(images), tiny(images))
    assert found.input_spec == tiny.input_spec
    assert "# tiny-n2" in read_card("tiny-n2")


def test_the_same_network_comes_with_random_weights_and_other_settings(tiny):
    assert mn.create("tiny-n2").config == SMALL
    assert mn.create("tiny-n2", num_classes=7).config.num_classes == 7


def test_recipes_and_kinds_of_networks_have_names_too(tiny):
    model = mn.create("mnist-mimoconv-n16", width=1, num_streams=3)
    assert (type(model), model.num_streams) == (mn.MIMOConv, 3)
    assert type(mn.create("wideresnet", depth=10, width=1)) is mn.WideResNet
    everything = mn.list_models(pretrained=False)
    assert {"tiny-n2", "mnist-mimoconv-n16", "mimoconv"} <= set(everything)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tiny-n3", {"pretrained": True}, "did you mean 'tiny-n2'.*there are tiny-n2"),
        ("tiny-n2", {"pretrained": True, "width": 3}, "fit their own config only: leave width"),
        ("mimocnv", {}, "There is no model 'mimocnv' .did you mean 'mimoconv'"),
        ("mimoconv", {"widht": 3}, "MIMOConvConfig has no setting 'widht' .did you mean 'width'"),
        ("mimoconv", {"width": 0}, "width=0 must be an integer >= 1"),
    ],
)
def test_what_has_no_name_is_refused(tiny, name, options, message):
    with pytest.raises(ValueError, match=message):
        mn.create(name, **options)


@pytest.mark.parametrize("name", shipped.pretrained_names())
def test_everything_that_ships_loads_and_has_a_card(name):
    folder = shipped.pretrained_folder(name)
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]
    model = mn.create(name, pretrained=True)
    assert model.input_spec is not None
    assert torch.isfinite(model(model.example_inputs(2))).all()
    card = read_card(name)
    for heading in ("## Accuracy", "## Limits", "* Data:", "* Recipe:"):
        assert heading in card
    heading = yaml.safe_load(card.split("---")[1])  # what the Hub reads
    assert heading["pipeline_tag"] == "image-classification"
    assert heading["license"]
    (result,) = heading["model-index"][0]["results"]
    assert result["dataset"]["type"] == heading["datasets"][0]
    said = [metric["value"] for metric in result["metrics"]]
    assert said == pytest.approx([found["accuracy"] for found in RECORD[name]["modes"].values()])


def test_networks_of_both_kinds_ship_and_the_wheel_stays_below_twelve_megabytes():
    assert {"digits", "digits-keys", "mnist-n16"} <= {*mn.list_models()}
    files = [path for path in shipped.WEIGHTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 10_000_000  # the rest has two
    assert max(path.stat().st_size for path in files) < 4_000_000


def test_networks_with_keys_ship_in_half_precision_and_load_in_full():
    folder = shipped.pretrained_folder("digits-keys")
    model = mn.create("digits-keys", pretrained=True)
    assert model.config.binding == "hrr"
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    numbers = sum(value.numel() for value in model.state_dict().values())
    assert (folder / "model.safetensors").stat().st_size < 2.2 * numbers


@pytest.mark.parametrize("name", shipped.pretrained_names())
def test_cards_say_what_was_measured(name):
    record = RECORD[name]
    assert read_card(name) == ModelCard.from_dict(record["card"]).as_markdown()
    for mode, found in record["modes"].items():
        assert found["accuracy"] == found["correct"] / found["total"]
        assert record["card"]["accuracy"][mode] == found["accuracy"]
        row = f"| {mode} | {100 * found['correct'] / found['total']:.1f} % |"
        assert row in read_card(name)


@pytest.mark.parametrize("mode", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["digits", "digits-keys"])
def test_the_shipped_digits_networks_answer_as_their_records_say(name, mode):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    model = mn.create(name, pretrained=True)
    pixels = (digits.images[-297:] * 255 / 16).round().astype("uint8")
    images = torch.from_numpy(model.input_spec.prepare(pixels[:, None]))
    images = torch.cat([images, images[: -len(images) % mode]])  # whole groups, as evaluate has
    with torch.no_grad():
        answers = model(images, active_streams=mode).argmax(dim=1)[:297].numpy()
    found = RECORD[name]["modes"][str(mode)]
    assert (int((answers == digits.target[-297:]).sum()), 297) == (found["correct"], found["total"])


def test_the_shipped_mnist_network_takes_sixteen_digits_of_28x28():
    model = mn.create("mnist-n16", pretrained=True)
    spec = model.input_spec
    assert (model.num_streams, spec.original, spec.crop, spec.shape) == (
        16,
        (28, 28),
        20,
        (1, 20, 20),
    )
    assert spec.labels == tuple("0123456789")


def test_a_card_says_everything_in_its_record():
    record = {
        "name": "digits-n4",
        "license": "mit",
        "title": "MIMOConv-10-2 (N=4)",
        "summary": "Four digits in one pass.",
        "parameters": 12345,
        "data": "scikit-learn digits",
        "recipe": "mimonets train digits-mimoconv",
        "accuracy": {1: 0.991, 4: 0.972},
        "spread": {4: 0.004},
        "limits": ["Eight by eight pixels only."],
        "provenance": {"commit": "abc", "seed": 3},
    }
    card = ModelCard.from_dict(json.loads(json.dumps(record)))
    text = card.as_markdown()
    assert text.startswith("---\nlicense: mit\nlibrary_name: mimonets\n")
    for part in (
        "# digits-n4",
        "Four digits in one pass.",
        "* Parameters: 12,345",
        "* Recipe: `mimonets train digits-mimoconv`",
        "| 1 | 99.1 % |",
        "| 4 | 97.2 ± 0.4 % |",
        "* Eight by eight pixels only.",
        "* commit: abc",
    ):
        assert part in text
    with pytest.raises(ValueError, match="says nothing of colour"):
        ModelCard.from_dict({**record, "colour": "red"})
