"""How a checkpoint finds the code of a third-party network: by a name that was registered here.

A file never decides which code runs. It names a builder, and only the functions that this process
has registered under a name are called.
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mimonets._config import is_integer
from mimonets._messages import did_you_mean, first_line, short

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])
BUILDERS: dict[str, Callable[..., nn.Module]] = {}
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.uint8),
    )
}
MOST_NUMBERS = 100_000_000  # of an example: more in a file is a mistake


def register_builder(name: str) -> Callable[[Builder], Builder]:
    """Let checkpoints name the function below as what builds their network.

    The settings of the network are its arguments, and have to be plain data. To register another
    function under the same name replaces the first.

    >>> @register_builder("tiny-cnn")
    ... def tiny_cnn(maps: int = 8) -> nn.Module:
    ...     return nn.Sequential(nn.Conv2d(1, maps, 3), nn.Conv2d(maps, maps, 3), nn.Flatten())
    >>> build("tiny-cnn", {"maps": 4})[0].out_channels
    4
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"A builder needs a name, a text such as 'my-cnn', not {short(name)}.")

    def register(builder: Builder) -> Builder:
        BUILDERS[name] = builder
        return builder

    return register


def build(name: str, settings: Mapping[str, Any]) -> nn.Module:
    """Build a network with a registered function; refuse names that nobody registered here."""
    if name not in BUILDERS:
        raise ValueError(
            f"builder={name[:100]!r} is not registered in this process"
            f"{did_you_mean(name, BUILDERS)}: import the module that says "
            f"@mimonets.register_builder({name[:100]!r}) first (on the command line: --import "
            f"MODULE), or pass network=, the network as it was before superpose()."
        )
    try:
        network = BUILDERS[name](**settings)
    except Exception as error:  # it is third-party code
        raise ValueError(
            f"builder={name!r} fails with these settings: {first_line(error)}."
        ) from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"builder={name!r} gives a {type(network).__name__}, no torch.nn.Module.")
    return network


def builder_problems(name: object, settings: object) -> list[str]:
    """Say what is wrong with a builder's name and settings, one sentence each."""
    if not isinstance(name, str):
        return [f"builder={short(name)} must be the name of a registered builder."]
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        return [f"builder_settings={short(settings)} must map names of arguments to values."]
    try:
        same = json.loads(json.dumps(settings)) == settings
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        return [
            f"builder_settings={short(settings)} must be plain data that JSON keeps as it is: "
            f"numbers, texts, true, false, null, and lists and mappings of them."
        ]
    if settings and not name:
        return ["builder_settings are for a builder: name it, builder='...'."]
    return []


def describe_example(example: Tensor) -> dict[str, Any]:
    """Describe inputs as plain data: shape and type, and token ids by their values."""
    described: dict[str, Any] = {
        "shape": list(example.shape[1:]),
        "dtype": str(example.dtype).removeprefix("torch."),
    }
    if not example.is_floating_point():  # which ids a network knows is not to be guessed
        described["values"] = example[0].flatten().tolist()
    return described


def make_example(described: Any) -> Tensor:
    """Make inputs (1, ...) of what :func:`describe_example` gave; refuse anything else."""
    fields = described if isinstance(described, dict) else {}
    shape, dtype, values = (fields.get(name) for name in ("shape", "dtype", "values"))
    sizes = isinstance(shape, list) and len(shape) < 10 and all(map(is_integer, shape))
    if not sizes or not all(side >= 1 for side in shape or ()) or str(dtype) not in DTYPES:
        raise ValueError(f"its example is {short(described)}, no description of inputs")
    count = math.prod(shape or ())
    if count > MOST_NUMBERS:
        raise ValueError(f"its example of shape {short(shape)} is too large")
    if values is None:
        return torch.zeros(1, *(shape or ()), dtype=DTYPES[str(dtype)])
    fitting = isinstance(values, list) and len(values) == count and all(map(is_integer, values))
    if not fitting or not all(abs(value) < 2**31 for value in values):
        raise ValueError(f"its example has values {short(values)} that do not fit its shape")
    return torch.tensor(values, dtype=DTYPES[str(dtype)]).reshape(1, *(shape or ()))
