"""What every model shares: its config, its checkpoint format and its manners with bad input."""

from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from torch import Tensor, nn

MIN_IMAGE_SIZE = 4  # after two stridings at least one position is left


class Model(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="mimonets",
    tags=["computation-in-superposition"],
):
    """A network described by a frozen config and known by a ``kind``.

    ``save_pretrained``, ``from_pretrained`` and ``push_to_hub`` come from huggingface_hub and read
    and write the same folder as :func:`mimonets.save` and :func:`mimonets.load`.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type[Any]]
    config: Any
    warm_ups: ClassVar[frozenset[str]] = frozenset()  # simpler ways to run that forward takes

    def __init__(self, config: Any) -> None:
        super().__init__()
        if type(config) is not self.config_class:
            raise ValueError(
                f"{type(self).__name__} takes a {self.config_class.__name__}, "
                f"not a {type(config).__name__}."
            )
        self.config = config

    @property
    def num_streams(self) -> int:
        """How many inputs can share a pass; 1 for a network without superposition."""
        return getattr(self.config, "num_streams", 1)

    def example_inputs(self, batch_size: int) -> Tensor:
        """Make random inputs of the shape this model is made for."""
        raise NotImplementedError

    def _save_pretrained(self, save_directory: Path) -> None:
        from mimonets.models.checkpoint import save

        save(self, save_directory)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        force_download: bool = False,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
        revision: str | None = None,
        map_location: str = "cpu",
    ) -> Self:
        """Load a model from a folder, or from a repository of the Hugging Face Hub."""
        from mimonets.models.checkpoint import CONFIG_FILE, WEIGHTS_FILE, load

        folder = str(pretrained_model_name_or_path)
        if not Path(folder).is_dir():
            folder = snapshot_download(
                folder,
                allow_patterns=[CONFIG_FILE, WEIGHTS_FILE],
                force_download=force_download,
                token=token,
                cache_dir=cache_dir,
                local_files_only=local_files_only,
                revision=revision,
            )
        model = load(folder, device=map_location)
        if not isinstance(model, cls):
            raise ValueError(
                f"{pretrained_model_name_or_path} holds a {type(model).__name__}: "
                f"load it with {type(model).__name__}.from_pretrained, or with mimonets.load."
            )
        return model


class ImageModel(Model):
    """A model that takes images (b, c, h, w)."""

    def example_inputs(self, batch_size: int) -> Tensor:
        """Make random images (b, c, h, w) of the size in the config."""
        size = self.config.image_size
        return torch.randn(batch_size, self.config.in_channels, size, size)

    def check_images(self, images: Tensor) -> None:
        """Refuse what is no batch of images for this model, and say what would be."""
        wanted = self.config.in_channels
        if images.ndim != 4 or images.shape[1] != wanted:
            raise ValueError(
                f"{type(self).__name__} takes images of shape (batch, {wanted}, height, width), "
                f"but got {tuple(images.shape)}."
                + (" Add a batch axis: images.unsqueeze(0)." if images.ndim == 3 else "")
            )
        if images.shape[0] == 0:
            raise ValueError("An empty batch has no answers: pass at least one image.")
        self.check_size(images)
        wanted_dtype = next(self.parameters()).dtype
        if not images.is_floating_point():
            raise ValueError(
                f"{type(self).__name__} takes floating-point images, but got {images.dtype}: "
                f"convert and scale them first, for example images.to({wanted_dtype}) / 255."
            )
        if images.dtype != wanted_dtype and not torch.is_autocast_enabled(images.device.type):
            raise ValueError(
                f"{type(self).__name__} has weights of {wanted_dtype}, but got images of "
                f"{images.dtype}: pass images.to({wanted_dtype}), or use torch.autocast."
            )

    def check_size(self, images: Tensor) -> None:
        """Refuse images that are too small for this model."""
        if min(images.shape[2:]) < MIN_IMAGE_SIZE:
            raise ValueError(
                f"Images of {images.shape[2]}x{images.shape[3]} do not survive two stridings: "
                f"{type(self).__name__} needs at least {MIN_IMAGE_SIZE}x{MIN_IMAGE_SIZE}."
            )
