import json
import os
import resource
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import mimonets as mn
from mimonets._inputs import InputSpec
from mimonets.checkpoints import checkpoint
from mimonets.checkpoints.card import ModelCard
from mimonets.models import MODELS
from mimonets.models.baselines.slimmable import SlimmableWideResNet, SlimmableWideResNetConfig

CONFIG = mn.MIMOConvConfig(depth=10, width=1, initial_width=1, num_classes=5, trainable_keys=False)
MODELS_TO_SAVE = [
    mn.MIMOConv(CONFIG),
    mn.WideResNet(mn.WideResNetConfig(depth=10, width=1)),
    mn.WideIsoNet(mn.WideIsoNetConfig(depth=10, width=1, skip_init=True)),
    mn.DataMUXConv(mn.DataMUXConvConfig(in_channels=3)),
    SlimmableWideResNet(SlimmableWideResNetConfig(depth=10, width=1)),
]


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = mn.MIMOConv(CONFIG)
    model(torch.randn(8, 3, 8, 8))  # statistics worth saving
    mn.save(model.eval(), tmp_path / "model")
    return model, tmp_path / "model"


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path)


@pytest.mark.parametrize("model", MODELS_TO_SAVE, ids=lambda model: model.kind)
def test_what_is_saved_comes_back(model, tmp_path):
    model.eval()
    assert mn.save(model, tmp_path / "a" / "b") == tmp_path / "a" / "b"
    found = mn.load(tmp_path / "a" / "b")
    assert type(found) is type(model)
    assert found.config == model.config
    assert not found.training
    for (name, value), (found_name, found_value) in zip(
        model.state_dict().items(), found.state_dict().items(), strict=True
    ):
        assert name == found_name
        assert_close(found_value, value, rtol=0, atol=0)
    frozen = [name for name, p in found.named_parameters() if not p.requires_grad]
    assert frozen == [name for name, p in model.named_parameters() if not p.requires_grad]
    images = model.example_inputs(3)
    assert_close(found(images), model(images))


def test_every_model_is_tested():
    assert {model.kind for model in MODELS_TO_SAVE} == {
        kind for kind, model in MODELS.items() if issubclass(model, mn.models.ImageModel)
    }


def test_a_checkpoint_is_two_plain_files_that_others_can_read(saved):
    _, folder = saved
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    description = json.loads((folder / "config.json").read_text())
    assert description["format_version"] == 2
    assert description["model"] == "mimoconv"
    assert description["config"]["num_streams"] == 4
    umask = os.umask(0)
    os.umask(umask)
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~umask


def test_loading_draws_nothing_from_the_random_generator(saved):
    before = torch.get_rng_state()
    mn.load(saved[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_saving_again_replaces_the_old_model(saved):
    model, folder = saved
    with torch.no_grad():
        model.classifier.bias.fill_(3.0)
    mn.save(model, folder)
    assert (mn.load(folder).classifier.bias == 3.0).all()
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]


def test_equal_models_are_equal_files(saved, tmp_path):
    for number in range(4):
        mn.save(saved[0], tmp_path / str(number))
    files = {(tmp_path / str(n) / "model.safetensors").read_bytes() for n in range(4)}
    assert len(files) == 1


def test_a_crash_while_saving_leaves_the_old_model(saved, monkeypatch):
    model, folder = saved
    expected = mn.load(folder).state_dict()

    def half(weights, path, metadata):
        with open(path, "wb") as file:
            file.write(b"half a file")
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", half)
    with torch.no_grad():
        model.classifier.bias.fill_(3.0)
    with pytest.raises(OSError, match="No space"):
        mn.save(model, folder)
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    assert_close(mn.load(folder).state_dict(), expected)


@pytest.mark.parametrize("keep", [0, 5, 0.3, 0.99])
def test_a_truncated_file_is_named(saved, keep):
    path = saved[1] / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match="model.safetensors.*damaged or was cut short"):
        mn.load(saved[1])


def test_a_truncated_config_is_named(saved):
    path = saved[1] / "config.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(ValueError, match="config.json is not JSON.*cut short or edited"):
        mn.load(saved[1])


def test_weights_of_another_model_are_refused(saved, tmp_path):
    other = mn.MIMOConv(replace(CONFIG, activation="relu", num_classes=9))
    mn.save(other, tmp_path / "other")
    os.replace(tmp_path / "other" / "model.safetensors", saved[1] / "model.safetensors")
    message = "config.json beside it.*activation, num_classes"
    with pytest.raises(ValueError, match=message):
        mn.load(saved[1])


def test_missing_surplus_and_misshapen_weights_are_all_named(saved):
    def spoil(weights):
        del weights["classifier.bias"]
        weights["classifier.extra"] = torch.zeros(1)
        weights["stem.0.weight"] = torch.zeros(1, 2)

    edit_weights(saved[1], spoil)
    with pytest.raises(ValueError, match="do not fit") as error:
        mn.load(saved[1])
    for part in (
        "missing classifier.bias",
        "surplus classifier.extra",
        "stem.0.weight ((1, 2) instead of (16, 3, 3, 3))",
    ):
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_many_missing_weights_are_counted_not_listed(saved):
    edit_weights(saved[1], lambda weights: [weights.pop(name) for name in list(weights)[:10]])
    with pytest.raises(ValueError, match="missing .*, .*, .* and 7 more"):
        mn.load(saved[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 3}, "format version 3.*reads up to 2: install a newer mimonets"),
        ({"format_version": None}, "format version None"),
        ({"model": "resnet"}, "of model 'resnet'.*knows wideresnet, wideisonet, .*mimoconv"),
        ({"config": {"depth": 11}}, "does not describe a model.*depth=11"),
        ({"config": {"depht": 10}}, "does not describe a model.*depht"),
        ({"config": None}, "was not written by mimonets"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(saved, changes, message):
    edit_config(saved[1], **changes)
    with pytest.raises(ValueError, match=message):
        mn.load(saved[1])


def test_missing_files_are_named(saved, tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist.*config.json"):
        mn.load(tmp_path / "nowhere")
    (saved[1] / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no model.safetensors.*weights are missing"):
        mn.load(saved[1])


def test_a_file_in_the_way_is_named(saved, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file: a checkpoint is a folder"):
        mn.save(saved[0], tmp_path / "file")


def test_files_without_our_metadata_load_too(saved):
    edit_weights(saved[1], lambda weights: None)  # rewritten by another tool
    assert_close(mn.load(saved[1]).state_dict(), saved[0].state_dict())


def test_the_hub_reads_and_writes_the_same_folder(saved, tmp_path):
    model, folder = saved
    model.save_pretrained(tmp_path / "hub")
    images = torch.randn(3, 3, 8, 8)
    for found in (
        mn.load(tmp_path / "hub"),
        mn.MIMOConv.from_pretrained(tmp_path / "hub"),
        mn.MIMOConv.from_pretrained(str(folder)),
    ):
        assert_close(found(images), model(images))
    assert "computation-in-superposition" in (tmp_path / "hub" / "README.md").read_text()


def test_the_hub_refuses_another_model(saved):
    with pytest.raises(ValueError, match="holds a MIMOConv.*MIMOConv.from_pretrained"):
        mn.WideResNet.from_pretrained(saved[1])


def test_from_pretrained_downloads_only_our_two_files(saved, monkeypatch):
    calls = {}

    def download(repo, **options):
        calls.update(options, repo=repo)
        return str(saved[1])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    found = mn.MIMOConv.from_pretrained("someone/a-model", revision="v1")
    assert found.config == CONFIG
    assert calls["repo"] == "someone/a-model"
    assert calls["revision"] == "v1"
    assert calls["allow_patterns"] == ["config.json", "model.safetensors"]


def test_push_to_hub_uploads_our_format(saved, monkeypatch):
    uploaded = {}

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, **options):
            return type("Repo", (), {"repo_id": repo_id})()

        def upload_folder(self, *, repo_id, folder_path, **options):
            uploaded["repo"] = repo_id
            uploaded["files"] = sorted(os.listdir(folder_path))
            uploaded["model"] = mn.load(folder_path)
            return "https://example.org/commit"

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    saved[0].push_to_hub("someone/a-model")
    assert uploaded["repo"] == "someone/a-model"
    assert uploaded["files"] == ["README.md", "config.json", "model.safetensors"]
    assert uploaded["model"].config == CONFIG


def test_of_a_compiled_model_the_model_itself_is_saved(saved, tmp_path):
    model, _ = saved
    mn.save(torch.compile(model, backend="eager"), tmp_path / "compiled")
    images = model.example_inputs(4)
    assert torch.equal(mn.load(tmp_path / "compiled")(images), model.eval()(images))


def test_what_could_not_be_loaded_is_not_saved(saved, tmp_path):
    model, _ = saved
    with pytest.raises(ValueError, match="Linear cannot be saved.*models of mimonet"):
        mn.save(torch.nn.Linear(2, 2), tmp_path / "new")
    model.input_spec = InputSpec(kind="image", shape=(7, 8, 8))
    with pytest.raises(ValueError, match="input_spec.*another model: image of"):
        mn.save(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_card_says_only_what_is_known_and_a_readme_of_ones_own_stays(saved, tmp_path):
    model, _ = saved
    model.save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert "license" not in card
    assert "several inputs share one pass" in card
    assert f'{type(model).__name__}.from_pretrained("FOLDER")' in card
    (tmp_path / "model" / "README.md").write_text("mine")
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text() == "mine"
    model.save_pretrained(tmp_path / "model", card=ModelCard.of(model, license="mit"))
    assert "license: mit" in (tmp_path / "model" / "README.md").read_text()
    plain = mn.WideResNet(mn.WideResNetConfig(depth=10, width=1))
    assert "several inputs" not in ModelCard.of(plain).as_markdown()
    assert "superposition" not in ModelCard.of(plain).as_markdown()


def test_a_checkpoint_knows_its_inputs(saved, tmp_path):
    model, _ = saved
    spec = InputSpec(
        kind="image",
        shape=(3, 8, 8),
        mean=(1.0, 2.0, 3.5),
        deviation=(1.0, 1.0, 0.25),
        labels=("a", "b", "c", "d", "e"),
    )
    model.input_spec = spec
    mn.save(model, tmp_path / "known")
    assert mn.load(tmp_path / "known").input_spec == spec
    assert mn.load(saved[1]).input_spec is None


def test_checkpoints_of_version_1_name_the_version_that_loads_them(saved):
    path = saved[1] / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 1}))
    with pytest.raises(
        ValueError, match=r"version 0.1: load and save it again with mimonets 0.2.0"
    ):
        mn.load(saved[1])


def test_weights_stored_as_float16_come_back_rounded_in_float32(tmp_path):
    model = mn.MIMOConv(mn.MIMOConvConfig(depth=10, width=1, initial_width=1, num_streams=2)).eval()
    mn.save(model, tmp_path / "whole")
    mn.save(model, tmp_path / "half", stored="float16")
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("whole", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    found = mn.load(tmp_path / "half").state_dict()
    for name, value in model.state_dict().items():
        assert found[name].dtype == value.dtype
        wanted = value.half().float() if value.is_floating_point() else value
        assert torch.equal(found[name], wanted)


def test_what_float16_does_not_hold_is_refused(tmp_path):
    model = mn.WideResNet(mn.WideResNetConfig(depth=10, width=1))
    with pytest.raises(ValueError, match="stored='int4'.*choose 'float16'"):
        mn.save(model, tmp_path, stored="int4")
    with torch.no_grad():
        model.classifier.bias[0] = 1e6
    with pytest.raises(ValueError, match="classifier.bias is too large for float16"):
        mn.save(model, tmp_path, stored="float16")


@pytest.mark.parametrize("limit", [100, 20_000])  # bytes of a file: too few for the weights
def test_a_full_disk_leaves_the_old_checkpoint_and_nothing_else(saved, tmp_path, limit):
    model, folder = saved
    before = {path: path.read_bytes() for path in folder.iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        for place in (folder, tmp_path / "new"):
            with pytest.raises(
                OSError, match=r"model.safetensors could not be written .*Make room"
            ):
                mn.save(model, place)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert not (tmp_path / "new").exists()


def test_weights_are_not_replaced_if_their_config_cannot_be(saved, monkeypatch):
    model, folder = saved
    before = {path: path.read_bytes() for path in folder.iterdir()}

    def fail(path, *rest, **more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    next(model.parameters()).data.add_(1.0)
    with pytest.raises(OSError, match="No space left on device"):
        mn.save(model, folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_checkpoint_has_a_name(saved):
    with pytest.raises(ValueError, match="its name is empty: choose a name"):
        mn.save(saved[0], "")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(saved, name):
    (saved[1] / name).unlink()
    os.mkfifo(saved[1] / name)
    with pytest.raises(ValueError, match=f"holds no {name}"):
        mn.load(saved[1])
