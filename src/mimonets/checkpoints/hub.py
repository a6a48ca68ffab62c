"""Share models over the Hugging Face Hub. Its library is imported only when it is used.

The folders are those of :func:`mimonets.save` and :func:`mimonets.load`, plus a ``README.md``: the
model card. Models have these functions as methods.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from mimonets._extras import need
from mimonets.checkpoints.card import ModelCard
from mimonets.checkpoints.checkpoint import CONFIG_FILE, WEIGHTS_FILE, load, save

M = TypeVar("M")


def save_pretrained(
    model: Any, folder: str | Path, *, card: ModelCard | None = None, stored: str | None = None
) -> Path:
    """Save a model together with a model card; ``stored`` is as in :func:`mimonets.save`.

    Without ``card`` it says what the model itself knows, and a README.md that is there stays.
    """
    saved = save(model, folder, stored=stored)
    readme = saved / "README.md"
    if card is not None or not readme.exists():
        readme.write_text((card or ModelCard.of(model)).as_markdown(), encoding="utf-8")
    return saved


def push_to_hub(
    model: Any,
    repo_id: str,
    *,
    card: ModelCard | None = None,
    commit_message: str = "Push model using mimonets",
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Upload to a repository of the Hub, which is made if it is not there; returns its URL."""
    api = _hub().HfApi(token=token)
    repo_id = api.create_repo(repo_id=repo_id, private=private, exist_ok=True).repo_id
    card = card or ModelCard.of(model, name=repo_id.rpartition("/")[2])
    card = replace(card, usage=card.usage.replace("FOLDER", repo_id))
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(model, folder, card=card)
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message=commit_message,
            revision=revision,
            create_pr=create_pr,
        )


def from_pretrained(
    model_class: type[M],
    name: str | Path,
    *,
    map_location: str = "cpu",
    network: Any = None,
    **download: Any,
) -> M:
    """Load a model of this class from a folder, or from a repository of the Hugging Face Hub.

    Args:
        model_class: what the folder has to hold.
        name: the folder or the repository.
        map_location: the device.
        network: for superposed networks, as :func:`mimonets.load` takes it.
        **download: what ``huggingface_hub.snapshot_download`` takes, such as revision, token,
            cache_dir, force_download and local_files_only.
    """
    folder = str(name)
    if not Path(folder).is_dir():
        patterns = [CONFIG_FILE, WEIGHTS_FILE]
        folder = _hub().snapshot_download(folder, allow_patterns=patterns, **download)
    model = load(folder, device=map_location, network=network)
    if not isinstance(model, model_class):
        raise ValueError(
            f"{name} holds a {type(model).__name__}: "
            f"load it with {type(model).__name__}.from_pretrained, or with mimonets.load."
        )
    return model


def _hub() -> Any:
    return need("huggingface_hub", extra="hub", what="The Hugging Face Hub")
