"""What takes several inputs, and what our models share: config, checkpoint, checks of inputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from mimonets._inputs import InputSpec
from mimonets._operating_point import OperatingPoint, stream_points

AnyModule = TypeVar("AnyModule", bound=nn.Module)

HUB = "mimonets.checkpoints.hub"
MIN_IMAGE_SIZE = 4  # after two stridings at least one position is left
MAX_DEPTH = 10_000  # far beyond what anyone trains: a larger number is a mistake


@runtime_checkable
class MultipleInput(Protocol):
    """Anything that answers several inputs per pass: our models, and third-party networks.

    Counting, timing, evaluation and training ask for nothing else. A network of one input per pass
    keeps to it too, with ``num_streams = 1``. At run time only the names are checked:

    >>> from mimonets import WideResNet, WideResNetConfig
    >>> isinstance(WideResNet(WideResNetConfig(depth=10, width=1)), MultipleInput)
    True
    """

    input_spec: InputSpec | None  # what one input is, None if unknown

    @property
    def num_streams(self) -> int:
        """How many inputs can share a pass."""

    def forward(self, x: Tensor, /, *, active_streams: int | None = None) -> Tensor:
        """Answer all inputs (b, ...) in order; ``active_streams`` of them share a pass."""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run :meth:`forward`, as every module of PyTorch does."""

    def example_inputs(self, batch_size: int) -> Tensor:
        """Make random inputs (b, ...) of the shape this network is made for."""


@contextmanager
def eval_mode(model: AnyModule, *, inference: bool = True) -> Iterator[AnyModule]:
    """Switch to evaluation mode without gradients; the previous mode comes back afterwards.

    Args:
        model: the network; every module of it gets its own mode back.
        inference: in PyTorch's inference mode, whose tensors no backward pass can use later;
            tracing and compiling need plain ones.
    """
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.inference_mode() if inference else torch.no_grad():
            yield model
    finally:
        for module in training:
            module.training = True


def name_of(model: object) -> str:
    """Name a network in tables and plots: its ``title`` if it has one, else its class.

    >>> name_of(nn.Linear(2, 3))
    'Linear'
    """
    return str(getattr(model, "title", type(model).__name__))


def calls_of(model: MultipleInput) -> list[str]:
    """Write in Python how a network is called, for its model card."""
    if model.num_streams == 1:
        return ["answers = model(inputs)"]
    return [
        f"answers = model(inputs)  # {model.num_streams} inputs per pass",
        "answers = model(inputs, active_streams=1)  # one by one",
    ]


def check_is_tensor(x: object, name: str) -> None:
    """Refuse inputs that are no tensor, such as NumPy arrays, and say how to make one."""
    if not isinstance(x, Tensor):
        raise ValueError(
            f"{name} takes a tensor, but got {type(x).__name__}: use torch.as_tensor(...)."
        )


def alternatives_of(model: object) -> list[Any]:
    """List configs of what one would run instead, as ``alternatives()`` does; none if unknown."""
    return list(model.alternatives()) if hasattr(model, "alternatives") else []


def cost_part_of(model: object, layer: str) -> str:
    """Name the part of a network that a layer's cost is counted under.

    The network's own ``cost_part`` decides; without one, it is the outermost module.

    >>> cost_part_of(nn.Module(), "layer1.0.conv")
    'layer1'
    """
    if hasattr(model, "cost_part"):
        return str(model.cost_part(layer))
    return layer.partition(".")[0]


class OnHub:
    """``save_pretrained``, ``from_pretrained`` and ``push_to_hub``, as users of the Hub know them.

    :mod:`mimonets.checkpoints.hub` does the work; it knows all models, so it is imported late.
    """

    def save_pretrained(self, save_directory: str | Path, *, card: Any = None) -> Path:
        """Save into a folder, with a model card; see :func:`mimonets.checkpoints.hub`."""
        return import_module(HUB).save_pretrained(self, save_directory, card=card)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload to a repository of the Hub, which is made if it is not there; returns its URL."""
        return import_module(HUB).push_to_hub(self, repo_id, **options)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load a model from a folder, or from a repository of the Hugging Face Hub.

        ``map_location`` is the device, ``network`` is for superposed networks, and everything else
        goes to ``huggingface_hub.snapshot_download``.
        """
        return import_module(HUB).from_pretrained(cls, pretrained_model_name_or_path, **options)


class Model(nn.Module, OnHub):
    """A network described by a frozen config and known by a ``kind``."""

    kind: ClassVar[str]
    config_class: ClassVar[type[Any]]
    config: Any
    input_spec: InputSpec | None  # set by whoever trains or loads the model; None if unknown
    warm_ups: ClassVar[frozenset[str]] = frozenset()  # simpler ways to run; see warming_up
    warm_up: str | None  # the one that is running, None most of the time
    smaller_grid: tuple[int, int] | None  # the grid of streams that is running, if not the whole
    cost_parts: ClassVar[tuple[str, ...]] = ()  # rows of the cost table that come first, in order

    def __init__(self, config: Any) -> None:
        super().__init__()
        if type(config) is not self.config_class:
            raise ValueError(
                f"{type(self).__name__} takes a {self.config_class.__name__}, "
                f"not a {type(config).__name__}."
            )
        self.config = config
        self.input_spec = None
        self.warm_up = self.smaller_grid = None

    @contextmanager
    def warming_up(
        self, name: str | None, *, grid: tuple[int, int] | None = None
    ) -> Iterator[None]:
        """Run all passes inside in a simpler way; training starts with such passes.

        Afterwards everything is as before, also after an error. Call it on the model itself, not on
        what DDP or ``torch.compile`` made of it: these run the same model, and follow. Like
        ``train()`` and ``eval()`` it holds for all threads.

        Args:
            name: one of ``warm_ups``; None for ordinary passes.
            grid: a smaller grid of streams than the model's, which uses the first keys.
        """
        if name is not None and name not in self.warm_ups:
            raise ValueError(
                f"{type(self).__name__} has no warm-up {name!r}: "
                + (f"choose from {', '.join(sorted(self.warm_ups))}." if self.warm_ups else "none.")
            )
        self._check_grid(grid)
        before = self.warm_up, self.smaller_grid
        self.warm_up, self.smaller_grid = name, grid
        try:
            yield
        finally:
            self.warm_up, self.smaller_grid = before

    def _check_grid(self, grid: tuple[int, int] | None) -> None:
        """Refuse a grid of streams that this model does not have."""
        if grid is not None:
            raise ValueError(f"{type(self).__name__} has no grid of streams to make smaller.")

    @classmethod
    def upgrade_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Give settings of older checkpoints their names and meaning of today."""
        return config

    @property
    def num_streams(self) -> int:
        """How many inputs can share a pass; 1 for a network without superposition."""
        return getattr(self.config, "num_streams", 1)

    @property
    def operating_points(self) -> tuple[OperatingPoint, ...]:
        """The ways to run this network, the most accurate first."""
        points = getattr(self.config, "operating_points", None)
        return stream_points(self.num_streams) if points is None else points

    def example_inputs(self, batch_size: int) -> Tensor:
        """Make random inputs of the shape this model is made for: images, or token ids."""
        spec = self.default_input_spec()
        shape = (batch_size, *spec.shape)
        if spec.vocab_size is None:
            return torch.randn(shape)
        return torch.randint(spec.vocab_size, shape)

    def default_input_spec(self) -> InputSpec:
        """Describe the inputs as far as the config knows them: their shape."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The name of this network in tables and plots, as the paper writes it."""
        streams = getattr(self.config, "num_streams", None)
        return type(self).__name__ + ("" if streams is None else f" (N={streams})")

    @property
    def usage(self) -> str:
        """Say in Python how a saved model of this kind is loaded, for its model card."""
        name = type(self).__name__
        load = [f"from mimonets.models import {name}", f'model = {name}.from_pretrained("FOLDER")']
        return "\n".join([*load, *calls_of(self)])


class ImageModel(Model):
    """A model that takes images (b, c, h, w)."""

    def default_input_spec(self) -> InputSpec:
        """Describe the images by the size in the config."""
        size = self.config.image_size
        return InputSpec(kind="image", shape=(self.config.in_channels, size, size))

    def check_images(self, images: Tensor) -> None:
        """Refuse what is no batch of images for this model, and say what would be."""
        wanted = self.config.in_channels
        check_is_tensor(images, type(self).__name__)
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
        stride = getattr(self.config, "stem_stride", 1)
        least = MIN_IMAGE_SIZE * stride
        if min(images.shape[2:]) < least:
            raise ValueError(
                f"Images of {images.shape[2]}x{images.shape[3]} do not survive two stridings"
                f"{f' after a stem of stride {stride}' if stride > 1 else ''}: "
                f"{type(self).__name__} needs at least {least}x{least}."
            )
