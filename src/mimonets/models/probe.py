"""A probing pass through a third-party network: what runs where, and what crosses a boundary.

``superpose`` must know, before anything is trained, that a network can carry superpositions
between two of its modules: nothing that belongs to single inputs may reach into that stretch.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mimonets._messages import did_you_mean
from mimonets.models.base import eval_mode


@dataclass
class Visit:
    """One module's turn: its name, and the shapes of what it got."""

    name: str
    arguments: dict[str, tuple[int, ...]]  # shapes of its tensors, by the names of forward
    masks: dict[int, str]  # those of them that are masks, by position
    hiding: frozenset[str]  # those masks that are True where a token is hidden, not real


@dataclass
class Probe:
    """What a pass did: every module's turn in order, and where it broke, if it did."""

    visits: list[Visit] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)  # the modules that were running when it broke
    output: Any = None
    error: Exception | None = None


def find_module(network: nn.Module, name: str, argument: str) -> nn.Module:
    """Get a module by its dotted name, or say which name was probably meant."""
    modules = dict(network.named_modules())
    if name in modules and name:
        return modules[name]
    children = ", ".join(child for child, _ in network.named_children())
    raise ValueError(
        f"{argument}={name!r} names no module of {type(network).__name__}"
        f"{did_you_mean(name, modules)}: its children are {children}."
    )


def replace_module(network: nn.Module, name: str, module: nn.Module) -> None:
    """Put another module where ``name`` is, and wherever else the network has the same one."""
    old = network.get_submodule(name)
    for parent in list(network.modules()):
        for key, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, key, module)


def probe(network: nn.Module, run: Callable[[], Any]) -> Probe:
    """Run the network in evaluation mode and write down every module's turn."""
    record = Probe()
    names = {module: name for name, module in network.named_modules() if name}

    def enter(module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        record.visits.append(_visit(names[module], _named_arguments(module, inputs, options)))
        record.stack.append(names[module])

    def leave(*_: Any) -> None:
        record.stack.pop()

    handles = [one.register_forward_pre_hook(enter, with_kwargs=True) for one in names]
    handles += [one.register_forward_hook(leave) for one in names]
    with eval_mode(network, inference=False):
        try:
            record.output = run()
        except Exception as error:
            record.error = error
        finally:
            for handle in handles:
                handle.remove()
    return record


def _visit(name: str, arguments: dict[str, Any]) -> Visit:
    shapes = {key: tuple(one.shape) for key, one in arguments.items() if isinstance(one, Tensor)}
    masks = {place: key for place, key in enumerate(arguments) if "mask" in key and key in shapes}
    hiding = frozenset(key for key in masks.values() if _hides(key, arguments[key]))
    return Visit(name, shapes, masks, hiding)


def _hides(name: str, mask: Tensor) -> bool:
    """Tell whether a mask is True where tokens are hidden. The first token of an example is real.

    PyTorch's boolean masks are of this kind, those of transformers are not. Where the first token
    does not tell, as in a batch that is padded on the left, the name decides.
    """
    if mask.dtype == torch.bool and mask.ndim > 1 and not mask.is_meta:
        first = mask[..., 0]
        if first.all() or not first.any():
            return not first.any()
    return "padding" in name


def _named_arguments(
    module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> dict[str, Any]:
    """Put arguments beside the names that ``forward`` has for them, in its order."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    names += [f"argument {place}" for place in range(len(names), len(inputs))]
    given = dict(zip(names, inputs, strict=False))
    ordered = {name: {**options, **given}[name] for name in names if name in {**options, **given}}
    return {**ordered, **{k: v for k, v in options.items() if k not in ordered}}
