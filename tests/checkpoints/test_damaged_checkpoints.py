"""Whatever is in the files, mn.load answers with a model or with one sentence that names them."""

import json
import math
import random
import struct
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import mimonets as mn

CONV = mn.MIMOConvConfig(depth=10, width=1, initial_width=1, num_classes=5)
FORMER = mn.MIMOFormerConfig(
    vocab_size=5, max_length=6, num_classes=3, depth=1, heads=2, head_dim=4, dim=4, hidden_dim=4
)


def make(kind):
    torch.manual_seed(0)
    model = mn.MIMOConv(CONV) if kind == "conv" else mn.MIMOFormer(FORMER)
    model.input_spec = model.default_input_spec()
    return model


@pytest.fixture(autouse=True, scope="module")
def _warm(tmp_path_factory):
    """Let PyTorch import what it needs for the meta device, so that it is not timed."""
    mn.load(mn.save(make("conv"), tmp_path_factory.mktemp("warm")))


@pytest.fixture
def folder(tmp_path):
    return mn.save(make("conv"), tmp_path / "model")


def refusal(folder):
    """Load; return what was said against it, None if nothing. Fast, and in one line."""
    start = time.process_time()
    try:
        mn.load(folder)
        message = None
    except ValueError as error:
        message = str(error)
        assert str(folder) in message
        assert "\n" not in message
        assert len(message) < 1000
    assert time.process_time() - start < 2
    return message


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_settings(folder, **changes):
    settings = json.loads((folder / "config.json").read_text())["config"]
    edit_config(folder, config={**settings, **changes})
    # Without the copy in the weights file, which would notice every change.
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")


def edit_weights(folder, change, metadata=None):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata=metadata)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_are_refused(folder, value):
    edit_weights(folder, lambda weights: weights["classifier.bias"].fill_(value))
    assert "infinite or not a number: classifier.bias" in refusal(folder)


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("classifier.bias", torch.int32, "another type: classifier.bias (torch.int32)"),
        ("classifier.bias", torch.float64, "mixes weights of torch.float32 and torch.float64"),
        ("classifier.bias", torch.complex64, "another type: classifier.bias (torch.complex64)"),
        ("stem.1.num_batches_tracked", torch.float32, "another type: stem.1.num_batches_tracked"),
    ],
)
def test_other_types_and_mixtures_are_refused(folder, name, dtype, message):
    edit_weights(folder, lambda weights: weights.update({name: weights[name].to(dtype)}))
    assert message in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_of_one_other_precision_load(folder, dtype):
    mn.save(make("conv").to(dtype), folder)
    assert mn.load(folder).classifier.bias.dtype == dtype


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 10**12}, "width=1000000000000 must be an integer >= 1 and <= 10000000"),
        ({"depth": 100_000}, "depth=100000 must be an integer >= 10 and <= 10000"),
        ({"depth": 9_994}, "too few for the depth=9994"),
        ({"width": 9_000_000}, "too few for the width=9000000"),
        ({"num_streams": 10**7}, "too few for the num_streams"),
        ({"width": 900_000}, "do not fit"),
        ({"num_streams": 900_000}, "do not fit"),
    ],
)
def test_giants_are_refused_before_they_are_built(folder, settings, message):
    edit_settings(folder, **settings)
    assert message in refusal(folder)


@pytest.mark.parametrize(
    "settings", [{"max_length": 2**16, "positions": "fixed"}, {"num_features": 20_000}]
)
def test_settings_that_leave_no_trace_in_the_weights_may_be_large(tmp_path, settings):
    sizes = {"depth": 1, "heads": 1, "head_dim": 8, "dim": 8, "hidden_dim": 16, "vocab_size": 16}
    settings = {"max_length": 32, "features": "dpfp", **settings}
    model = mn.Performer(mn.PerformerConfig(**sizes, **settings))
    assert mn.load(mn.save(model, tmp_path / "model")).config == model.config


@pytest.mark.parametrize(
    "settings", [{"num_features": 10**7}, {"vocab_size": 10**7, "dim": 10**7}, {"depth": 10_000}]
)
def test_giant_sequence_models_are_refused_before_they_are_built(tmp_path, settings):
    folder = mn.save(make("former"), tmp_path / "model")
    edit_settings(folder, **settings)
    assert "too few for" in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": []}, "is of model []"),
        ({"model": {}}, "is of model {}"),
        ({"format_version": True}, "format version True"),
        ({"format_version": 0}, "format version 0"),
        ({"format_version": 10**30}, "format version 1000"),
        ({"config": []}, "has no 'config' in it"),
        ({"inputs": 3}, "does not describe its inputs"),
        ({"inputs": {"kind": "image", "shape": 7}}, "shape=7 must be"),
        ({"inputs": {"kind": [], "shape": [3, 8, 8]}}, "kind=() is not known"),
        ({"inputs": {"kind": "image", "shape": [3, 8, 8], "mean": "abc"}}, "mean='abc'"),
        ({"inputs": {"kind": "image", "shape": [3, 8, 8], "crop": -1}}, "crop=-1 must be"),
        ({"inputs": {"kind": "tokens", "shape": [8]}}, "inputs of another model: tokens"),
        ({"inputs": {"kind": "image", "shape": [1, 8, 8]}}, "inputs of another model: image"),
    ],
)
def test_descriptions_of_another_kind_are_refused(folder, changes, message):
    edit_config(folder, **changes)
    assert message in refusal(folder)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "NaN", "", "null", "\ud800"]
)
def test_text_of_another_kind_is_refused(folder, text):
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "config.json" in refusal(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "3", "not JSON", '"text"', '{"depth": 9}'])
def test_metadata_of_another_kind_is_refused(folder, text):
    edit_weights(folder, lambda weights: None, metadata={"mimonets": text})
    assert "model.safetensors" in refusal(folder)


def test_folders_in_place_of_files_and_unknown_devices_are_refused(folder):
    with pytest.raises(ValueError, match="cannot be loaded to device 'nowhere'"):
        mn.load(folder, device="nowhere")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="cannot be loaded to device 'cuda'"):
            mn.load(folder, device="cuda")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()
    assert "holds no model.safetensors" in refusal(folder)


ODD = [None, True, False, 0, -1, 1, 2, 7, 10**6, 10**12, 10**400, 0.5, math.nan, math.inf, "", "x"]
ODD += ["relu", [], [1], [[1]], {}, {"a": 1}, "x" * 10_000, [1, 2], [2, 2], "\0"]


def mutate(value, random):
    """Change one place of a tree of plain data."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(list(value))
        choice = random.random()
        if choice < 0.1:
            return {name: inner for name, inner in value.items() if name != key}
        if choice < 0.2:
            return {**value, random.choice(["", "depth", "x", key + "x"]): random.choice(ODD)}
        return {**value, key: mutate(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.7:
        place = random.randrange(len(value))
        return [*value[:place], mutate(value[place], random), *value[place + 1 :]]
    return random.choice(ODD)


@pytest.mark.parametrize("kind", ["conv", "former"])
def test_a_fuzz_of_descriptions_gives_a_model_or_a_sentence(kind, tmp_path):
    folder = mn.save(make(kind), tmp_path / "model")
    path = folder / "config.json"
    save_file(load_file(folder / "model.safetensors"), folder / "model.safetensors")
    sound, refused = json.loads(path.read_text()), 0
    dice = random.Random(0)
    for _ in range(200):
        path.write_text(json.dumps(mutate(sound, dice)))
        refused += refusal(folder) is not None
    assert refused > 100


def test_a_fuzz_of_weights_gives_a_model_or_a_sentence(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header, body = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    dice, refused = random.Random(0), 0
    for number in range(200):
        if number % 2:
            damaged = bytearray(whole)
            for _ in range(dice.choice([1, 10])):
                damaged[dice.randrange(8 + length)] = dice.randrange(256)
            path.write_bytes(damaged)
        else:
            text = json.dumps(mutate(header, dice)).encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + body)
        refused += refusal(folder) is not None
    assert refused > 150
