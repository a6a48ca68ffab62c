"""Look into a safetensors file before anything is built from it, and read it when it fits."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mimonets._config import is_integer
from mimonets._messages import first_line
from mimonets.models.surgery import SuperposedConfig

# Sizes up to these may stand in a config without a trace in the weights, such as a max_length with
# fixed positions. Our models are built without memory first; superposed networks take theirs.
ALWAYS_ALLOWED = 1_000_000
ALWAYS_ALLOWED_SUPERPOSED = 10_000
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class WeightsFile:
    """The weights of a checkpoint: their names and shapes at once, their values on demand.

    All methods raise a ValueError that names the file.
    """

    shapes: dict[str, tuple[int, ...]]
    metadata: Any  # what the file says about the model it belongs to, None if nothing

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ValueError(f"{path.parent} holds no {path.name}: the weights are missing.")
        try:
            with safe_open(str(path), framework="pt") as file:
                names = list(file.keys())
                self.shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
                metadata = (file.metadata() or {}).get("mimonets", "null")
        except (SafetensorError, OSError, ValueError) as error:
            raise self._unreadable(error) from None
        try:
            self.metadata = json.loads(metadata)
        except (ValueError, RecursionError):
            raise ValueError(f"{path} says no config of a model in its metadata.") from None
        if not isinstance(self.metadata, dict | None):
            raise ValueError(f"{path} says no config of a model in its metadata.")

    def check_config(self, config: dict[str, Any], saved_with: dict[str, Any] | None) -> None:
        """Refuse weights that were saved with another config than the one beside them."""
        if saved_with is None:
            return
        # As the metadata went through JSON, tuples are lists there.
        config, saved_with = (json.loads(json.dumps(part)) for part in (config, saved_with))
        if saved_with != config:
            differing = sorted(
                key
                for key in {*saved_with, *config}
                if saved_with.get(key, self) != config.get(key, self)
            )
            raise ValueError(
                f"{self.path} belongs to another model than the config.json beside it: "
                f"they differ in {listing(differing)}."
            )

    def check_sizes(self, config: Any) -> None:
        """Refuse a config whose network would be far larger than the file, before building it."""
        numbers = sum(math.prod(shape) for shape in self.shapes.values())
        depth = getattr(config, "depth", 0)
        if depth > len(self.shapes):
            raise ValueError(
                f"{self.path} holds {len(self.shapes)} tensors, too few for the depth={depth} of "
                f"the config.json beside it."
            )
        superposed = isinstance(config, SuperposedConfig)
        allowed = ALWAYS_ALLOWED_SUPERPOSED if superposed else ALWAYS_ALLOWED
        for name, value in vars(config).items():
            if is_integer(value) and value > max(allowed, numbers):
                raise ValueError(
                    f"{self.path} holds {numbers} numbers, too few for the {name}={value} of the "
                    f"config.json beside it."
                )

    def check_shapes(self, wanted: dict[str, Tensor], whose: str = "their config.json") -> None:
        """Refuse weights that are missing, surplus or of another shape, and name them all."""
        shapes = {name: tuple(value.shape) for name, value in wanted.items()}
        problems = [
            f"{what} {listing(names)}"
            for what, names in (
                ("missing", sorted(shapes.keys() - self.shapes.keys())),
                ("surplus", sorted(self.shapes.keys() - shapes.keys())),
                (
                    "of another shape",
                    [
                        f"{name} ({self.shapes[name]} instead of {shapes[name]})"
                        for name in sorted(shapes.keys() & self.shapes.keys())
                        if shapes[name] != self.shapes[name]
                    ],
                ),
            )
            if names
        ]
        if problems:
            raise ValueError(
                f"The weights in {self.path} do not fit {whose}: {'; '.join(problems)}."
            )

    def read(self, wanted: dict[str, Tensor], device: str) -> dict[str, Tensor]:
        """Read all weights; refuse other types, a mixture of them, and what is not finite.

        What the network has by itself is accepted, such as a buffer with -inf or in float64: it
        is in ``wanted`` too, if that is more than shapes on the meta device.
        """
        try:
            with safe_open(str(self.path), framework="pt", device=device) as file:
                # Clone, so that tensors are aligned in memory; unaligned ones can differ in the
                # last bits.
                weights = {name: file.get_tensor(name).clone() for name in wanted}
        except (SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise self._unreadable(error) from None
        floats = {name: value for name, value in weights.items() if value.dtype in FLOATS}
        wrong = sorted(
            f"{name} ({value.dtype})"
            for name, value in weights.items()
            if not (
                name in floats
                if wanted[name].is_floating_point()
                else value.dtype == wanted[name].dtype
            )
        )
        if wrong:
            raise ValueError(f"{self.path} has weights of another type: {listing(wrong)}.")
        types = sorted({str(value.dtype) for value in floats.values()})
        if len(types) > 1 and any(v.dtype != wanted[name].dtype for name, v in floats.items()):
            raise ValueError(
                f"{self.path} mixes weights of {' and '.join(types)}: convert them to one of these."
            )
        broken = sorted(name for name, v in floats.items() if _is_broken(v, wanted[name]))
        if broken:
            raise ValueError(
                f"{self.path} has weights that are infinite or not a number: {listing(broken)}."
            )
        return weights

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(
            f"{self.path} cannot be read ({first_line(error)}): it is damaged or was cut short, "
            f"fetch it again."
        )


def _is_broken(value: Tensor, wanted: Tensor) -> bool:
    """Tell whether a value is not finite where the network that was built has a finite one."""
    finite = value.isfinite().cpu()
    if wanted.is_meta or finite.all():
        return not finite.all()
    return not (finite | ~wanted.isfinite().cpu()).all()


def listing(names: list[str], most: int = 3) -> str:
    """List a few names, and count the others.

    >>> listing(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:100] for name in names[:most]) + more
