"""Find where a network can carry superpositions: after which module to bind, where to unbind.

A module is a *cut* if all that follows depends on its features alone. Whether it does is measured:
the network runs on other inputs, with the features of the first ones put in at that place, and has
to answer as it did for the first ones.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from mimonets._show import mmac
from mimonets.bindings.insertion import change_features, features_in
from mimonets.models.base import eval_mode
from mimonets.models.surgery import axis_of

FEW = 2  # inputs that show whether a module is a cut
WIDE = 4  # features per stream that are wide enough; fewer are offered after all others


@dataclass(frozen=True)
class Suggestion:
    """Where to bind and where to unbind, why, and what an input then costs."""

    bind_after: str
    unbind_before: str
    num_streams: int
    binding: str
    features: int  # per position where inputs are bound
    share: float  # of the network's MACs that lie between the two modules
    macs: float  # expected per input with all streams busy, with binding and unbinding
    plain_macs: float  # per input of the network as it is

    @property
    def saving(self) -> float:
        """How many times fewer MACs an input costs."""
        return self.plain_macs / self.macs

    @property
    def reason(self) -> str:
        """Say in a sentence why these two."""
        narrow = "" if self.features >= WIDE * self.num_streams else ", which is narrow"
        return (
            f"{self.share:.0%} of the cost lies between them; {self.features} features carry "
            f"{self.num_streams} streams{narrow}; {mmac(self.macs)} instead of "
            f"{mmac(self.plain_macs)} MMAC per input ({self.saving:.1f}x fewer)."
        )

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        return asdict(self) | {"saving": self.saving, "reason": self.reason}


@dataclass
class Cut:
    """A module's features on their way out or in, and the MACs of all inputs until then."""

    features: Tensor
    macs: float
    place: int  # in the order of events
    axis: int = 1

    @property
    def width(self) -> int:
        """How many features a position has."""
        return self.features.shape[self.axis]

    @property
    def is_map(self) -> bool:
        """Whether it has feature maps (b, d, h, w) or (b, d, t), which can be laid side by side."""
        return self.axis == 1 and self.features.ndim > 2

    @property
    def positions(self) -> int:
        """How many positions an input has."""
        return self.features[0].numel() // self.width


@dataclass
class Cuts:
    """Where a network can be cut: after these modules, and before those."""

    after: dict[str, Cut]
    before: dict[str, Cut]
    macs: float  # of all inputs


def find_cuts(network: nn.Module, inputs: Tensor) -> Cuts:
    """Run the network once for what passes, then once for each module that may be a cut."""
    names = {module: name for name, module in network.named_modules() if name}
    found, turns = Cuts({}, {}, 0.0), dict.fromkeys(names.values(), 0)
    counter = FlopCounterMode(display=False)

    def event() -> tuple[float, int]:
        return counter.get_total_flops() / 2, sum(turns.values()) + len(found.after)

    def enter(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        turns[names[module]] += 1
        _note(found.before, names[module], arguments[0] if arguments else None, event(), inputs, 2)

    def leave(module: nn.Module, arguments: Any, output: Any) -> None:
        _note(found.after, names[module], output, event(), inputs, 3)

    handles = [one.register_forward_pre_hook(enter) for one in names]
    handles += [one.register_forward_hook(leave) for one in names]
    with eval_mode(network, inference=False), sdpa_kernel(SDPBackend.MATH), counter:
        try:
            wanted = network(inputs)
        finally:
            for handle in handles:
                handle.remove()
    found.macs = counter.get_total_flops() / 2
    others = _others(inputs)[:FEW]
    wanted = [part[:FEW] if len(part) == len(inputs) else part for part in _tensors(wanted)]
    for side in ("after", "before"):
        cuts: dict[str, Cut] = getattr(found, side)
        for name in list(cuts):
            module = network.get_submodule(name)
            if turns[name] != 1 or not _decides(network, module, cuts[name], others, wanted, side):
                del cuts[name]
            else:
                cuts[name].axis = axis_of(network, name, cuts[name].features)
    return found


def _note(
    cuts: dict[str, Cut], name: str, value: Any, now: tuple[float, int], inputs: Tensor, least: int
) -> None:
    features = features_in(value)
    if (
        features is not None
        and features.is_floating_point()
        and least <= features.ndim <= 4
        and len(features) == len(inputs)
    ):
        cuts[name] = Cut(features.detach(), *now)


def _others(inputs: Tensor) -> Tensor:
    """Make inputs that differ from these: numbers anew, token ids among those that are there."""
    generator = torch.Generator().manual_seed(0)
    if inputs.is_floating_point():
        return torch.randn(inputs.shape, generator=generator).to(inputs)
    most = int(inputs.max()) + 1
    return torch.randint(max(2, most), inputs.shape, generator=generator).to(inputs)


def _decides(
    network: nn.Module,
    module: nn.Module,
    cut: Cut,
    others: Tensor,
    wanted: list[Tensor],
    side: str,
) -> bool:
    """Tell whether what follows depends on these features alone."""

    def put_out(module: nn.Module, arguments: Any, output: Any) -> Any:
        return change_features(output, lambda _: cut.features[:FEW])

    def put_in(module: nn.Module, arguments: tuple[Any, ...]) -> Any:
        return (change_features(arguments[0], lambda _: cut.features[:FEW]), *arguments[1:])

    if side == "after":
        handle = module.register_forward_hook(put_out)
    else:
        handle = module.register_forward_pre_hook(put_in)
    with eval_mode(network, inference=False), handle:
        found = network(others)
    pairs = zip(_tensors(found), wanted, strict=True)
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in pairs)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Give the tensors of an answer; outputs of transformers are mappings."""
    value = dict(value) if isinstance(value, dict) else value
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def rank(cuts: Cuts, inputs: int, num_streams: int, binding: str) -> list[Suggestion]:
    """List all pairs of cuts that save something: wide ones first, then by cost per input."""
    tiles = binding == "tiles"
    found: list[tuple[Any, ...]] = []
    for after, entering in cuts.after.items():
        for before, leaving in cuts.before.items():
            apart = leaving.place > entering.place and not before.startswith(f"{after}.")
            if not apart or entering.width < num_streams or after.startswith(f"{before}."):
                continue
            if tiles and not (entering.is_map and leaving.is_map):
                continue
            between = (leaving.macs - entering.macs) / inputs
            added = 0.0
            if not tiles:  # a matrix per stream and position, at both ends
                added = sum(cut.positions * cut.width**2 for cut in (entering, leaving))
                added -= entering.positions * entering.width**2 * (binding == "hadamard")
            plain = cuts.macs / inputs
            macs = plain - between + between / num_streams + added
            if macs >= plain:
                continue
            narrow = not tiles and entering.width < WIDE * num_streams
            suggestion = Suggestion(
                *(after, before, num_streams, binding, entering.width),
                *(between / max(plain, 1.0), macs, plain),
            )
            # Of pairs that cost the same: outermost modules, bound and unbound late.
            depth = after.count(".") + before.count(".")
            key = (narrow, float(f"{macs:.3g}"), depth, -entering.place, -leaving.place)
            found.append((key, suggestion))
    return [suggestion for _, suggestion in sorted(found, key=lambda pair: pair[0])]


def why_none(cuts: Cuts, num_streams: int, binding: str) -> str:
    """Say in a sentence why no pair fits."""
    if not cuts.after or not cuts.before:
        return "every module has a connection that goes around it, or gives no feature maps"
    widest = max(cut.width for cut in cuts.after.values())
    if widest < num_streams:
        return f"feature maps are at most {widest} wide, too few for {num_streams} streams"
    if binding == "tiles":
        return (
            "no stretch between two modules has feature maps (b, d, h, w) or (b, d, t) that divide "
            "into tiles"
        )
    return (
        "connections go around every stretch that is worth it, or binding and unbinding cost more "
        "than sharing a pass saves"
    )
