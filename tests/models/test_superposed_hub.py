"""A superposed network goes to the Hugging Face Hub and comes back, with a model card."""

import shutil
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

import mimonets as mn
from mimonets.checkpoints.card import ModelCard
from mimonets.models import Superposed, builders

huggingface_hub = pytest.importorskip("huggingface_hub")

IMAGES = torch.randn(3, 1, 8, 8)


def make_cnn(maps=8):
    return nn.Sequential(
        nn.Conv2d(1, maps, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(maps, 12, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


def superposed(network=None, **settings):
    settings = {"num_streams": 2, "bind_after": "1", "unbind_before": "5", **settings}
    return mn.superpose(network, example=IMAGES[:1], **settings).eval()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The Hub as a folder: calls have the library's own signatures, and nothing is sent."""
    monkeypatch.setattr(builders, "BUILDERS", {"cnn": make_cnn})
    api = create_autospec(huggingface_hub.HfApi, instance=True)

    def create_repo(repo_id, **options):
        return SimpleNamespace(repo_id=repo_id if "/" in repo_id else f"someone/{repo_id}")

    def upload_folder(*, repo_id, folder_path, **options):
        shutil.copytree(folder_path, tmp_path / repo_id)
        return f"https://huggingface.co/{repo_id}/commit/1"

    def snapshot_download(repo_id, *, allow_patterns, **options):
        assert allow_patterns == ["config.json", "model.safetensors"]  # and no code
        return str(tmp_path / repo_id)

    api.create_repo.side_effect, api.upload_folder.side_effect = create_repo, upload_folder
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda token=None: api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return tmp_path


@pytest.mark.parametrize("settings", [{}, {"binding": "tiles", "unbind_before": "3"}])
def test_it_is_pushed_and_comes_back_with_the_network_as_an_argument(hub, settings):
    model = superposed(make_cnn(), **settings)
    url = model.push_to_hub("mine", private=True, token="secret")
    assert url == "https://huggingface.co/someone/mine/commit/1"
    files = {path.name for path in (hub / "someone/mine").iterdir()}
    assert files == {"README.md", "config.json", "model.safetensors"}
    assert b"secret" not in (hub / "someone/mine/README.md").read_bytes()
    found = Superposed.from_pretrained("someone/mine", network=make_cnn())
    for active in (1, 2):
        wanted = model(IMAGES, active_streams=active)
        assert torch.equal(found(IMAGES, active_streams=active), wanted)
    with pytest.raises(ValueError, match="without a builder: load it from Python and pass network"):
        Superposed.from_pretrained("someone/mine")


def test_a_builder_brings_it_back_without_the_network(hub):
    model = superposed(builder="cnn", builder_settings={"maps": 6})
    model.push_to_hub("someone/built")
    found = Superposed.from_pretrained("someone/built")
    assert torch.equal(found(IMAGES), model(IMAGES))
    card = (hub / "someone/built/README.md").read_text()
    assert "# your module with @mimonets.register_builder('cnn')" in card
    builders.BUILDERS.clear()
    with pytest.raises(ValueError, match="'cnn' is not registered in this process"):
        Superposed.from_pretrained("someone/built")
    builders.BUILDERS["cnn"] = make_cnn
    with pytest.raises(ValueError, match="holds a Superposed"):
        mn.MIMOConv.from_pretrained("someone/built")


def test_the_card_says_what_it_is_where_inputs_join_and_how_to_load_it(hub):
    superposed(make_cnn()).push_to_hub("mine")
    path = hub / "someone/mine/README.md"
    assert huggingface_hub.metadata_load(path) == {
        "library_name": "mimonets",
        "tags": ["computation-in-superposition"],
    }
    card = path.read_text()
    assert "# mine\n" in card
    assert "* Network: Sequential (superposed, N=2)" in card
    assert "up to 2 inputs in one pass. Between `1` and `5`" in card
    assert "joined by circular convolution with a key per stream" in card
    assert 'Superposed.from_pretrained("someone/mine", network=network)' in card
    assert "network = Sequential(...)  # as it was before mimonets.superpose" in card


def test_a_card_of_ones_own_is_kept(hub):
    model = superposed(make_cnn())
    record = {"name": "digits", "accuracy": {1: 0.99, 2: 0.9}, "limits": ("Digits only.",)}
    model.push_to_hub("mine", card=ModelCard.of(model, **record))
    card = (hub / "someone/mine/README.md").read_text()
    for line in ("# digits", "| 1 | 99.0 % |", "| 2 | 90.0 % |", "* Digits only.", "someone/mine"):
        assert line in card


def test_a_network_as_it_was_pushes_too(hub):
    model = mn.superpose(make_cnn(), num_streams=1, example=IMAGES[:1]).eval()
    model.push_to_hub("plain")
    card = (hub / "someone/plain/README.md").read_text()
    assert "active_streams=1" not in card
    found = Superposed.from_pretrained("someone/plain", network=make_cnn())
    assert torch.equal(found(IMAGES), model(IMAGES))
