"""How a third-party network is opened: wrappers are put in, then a trial pass looks for leaks."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

from mimonets._messages import first_line
from mimonets.bindings import (
    HadamardBinding,
    HRRBinding,
    MBATBinding,
    PositionBinding,
    ShrunkTiles,
)
from mimonets.bindings.insertion import (
    BindAfter,
    ClassifierPerStream,
    CutBefore,
    FoldMask,
    UnbindBefore,
    feature_axis,
    features_in,
    with_identity_start,
)
from mimonets.layers import StreamUnbinding
from mimonets.layers.tying import EnterLanes, LeaveLanes
from mimonets.models.probe import Trial, Visit, find_module, replace_module, try_pass
from mimonets.models.superposed_config import SuperposedConfig
from mimonets.vsa import bipolar_keys, gaussian_keys, matrix_keys

START_NOISE = 0.1  # of matrices that start near the identity, relative to random ones


def trial_inputs(network: nn.Module, example: Tensor | None, num_streams: int) -> Tensor:
    """Make whole groups of inputs to try the network with, from an example or by its own means."""
    if example is None:
        if not hasattr(network, "example_inputs"):
            raise ValueError(
                "superpose() tries the network once: pass example=, inputs of shape (b, ...) as it "
                "takes them, b >= 1."
            )
        example = network.example_inputs(num_streams)  # type: ignore[operator]
    if not isinstance(example, Tensor):
        raise ValueError(
            f"example must be a tensor of inputs (b, ...), b >= 1, not a {type(example).__name__}."
        )
    if example.ndim < 2 or len(example) == 0:
        raise ValueError(
            f"example of shape {tuple(example.shape)} is no batch of inputs: pass (b, ...), "
            f"such as example.unsqueeze(0)."
        )
    # Three groups or more, so that neither groups nor inputs can be broadcast to each other, and
    # another number of inputs than any other axis has, so that no other axis is taken for theirs.
    groups = next(n for n in range(3, 100, 2) if n * num_streams not in example.shape[1:])
    place = next((p.device for p in network.parameters()), example.device)
    return example[torch.arange(groups * num_streams) % len(example)].to(place)


def parts_of(network: nn.Module, trial: Trial, config: SuperposedConfig) -> dict[str, str]:
    """Tell which modules run before the binding, in superposition, and after it."""
    order = trial.order()
    for argument in ("bind_after", "unbind_before"):
        name = getattr(config, argument)
        if name not in order:
            raise ValueError(
                f"{argument}={name!r} is never called as a module when the network runs: name one "
                f"that is."
            )
        times = sum(visit.name == name for visit in trial.visits)
        if times > 1:
            raise ValueError(
                f"{argument}={name!r} runs {times} times in a pass, and inputs are joined and "
                f"taken apart once: name a module that runs once."
            )
    start, end = order[config.bind_after], order[config.unbind_before]
    if end <= start or config.unbind_before.startswith(config.bind_after + "."):
        raise ValueError(
            f"unbind_before={config.unbind_before!r} runs before bind_after="
            f"{config.bind_after!r} is done: choose a later module."
        )

    def part(name: str, place: int) -> str:
        if place <= start or name.startswith(config.bind_after + "."):
            return "stem"
        return "trunk" if place < end else "head"

    return {name: part(name, place) for name, place in order.items()}


def insert(
    network: nn.Module, config: SuperposedConfig, inputs: Tensor, generator: Generator | None
) -> None:
    """Put the two wrappers into their places, made for the features that run there."""
    bound = find_module(network, config.bind_after, "bind_after")
    unbound = find_module(network, config.unbind_before, "unbind_before")
    seen: dict[str, Any] = {}
    handles = [
        bound.register_forward_hook(lambda m, i, output: seen.update(bound=output)),
        unbound.register_forward_pre_hook(lambda m, i: seen.update(unbound=i[0] if i else None)),
    ]
    try_pass(network, lambda: network(inputs))
    for handle in handles:
        handle.remove()
    entering = _features(seen["bound"], config.bind_after, "gives", least=3)
    leaving = _features(seen.get("unbound"), config.unbind_before, "takes", least=2)
    if config.binding == "tiles":
        _insert_tiles(network, config, (bound, entering), (unbound, leaving))
        return
    if config.binding == "tied":
        _insert_lanes(network, config, (bound, entering), (unbound, leaving), generator)
        return
    options: dict[str, Any] = {"dtype": entering.dtype, "device": entering.device}
    binding = _make_binding(config, entering.shape[feature_axis(entering)], generator)
    replace_module(network, config.bind_after, BindAfter(bound, binding.to(**options)))
    if config.unbinding == "classifier":
        if not isinstance(unbound, nn.Linear) or leaving.ndim != 2:
            raise ValueError(
                f"unbinding='classifier' puts a classifier per stream in place of an nn.Linear on "
                f"(b, features), and {config.unbind_before!r} is a {type(unbound).__name__} on "
                f"{tuple(leaving.shape)}: choose unbinding='matrix'."
            )
        per_stream = ClassifierPerStream(unbound, config.num_streams).to(**options)
        replace_module(network, config.unbind_before, per_stream)
        return
    unbinding = StreamUnbinding(
        leaving.shape[feature_axis(leaving)],
        config.num_streams,
        relu=config.unbinding_relu,
        generator=generator,
    ).to(**options)
    if config.identity_start:
        with_identity_start(unbinding, START_NOISE)
    replace_module(network, config.unbind_before, UnbindBefore(unbound, unbinding))


def _insert_tiles(
    network: nn.Module,
    config: SuperposedConfig,
    bound: tuple[nn.Module, Tensor],
    unbound: tuple[nn.Module, Tensor],
) -> None:
    """Put tiles between two modules, if both see feature maps that have whole tiles."""
    for name, verb, features in (
        (config.bind_after, "gives", bound[1]),
        (config.unbind_before, "takes", unbound[1]),
    ):
        if features.ndim != 4:
            raise ValueError(
                f"binding='tiles' lays feature maps (b, d, h, w) side by side, and {name!r} {verb} "
                f"{tuple(features.shape)}: name modules that see maps, such as the pooling before "
                f"the classifier, or choose another binding."
            )
    tiles = ShrunkTiles(config.num_streams)
    for name, features in ((config.bind_after, bound[1]), (config.unbind_before, unbound[1])):
        for active in range(1, config.num_streams + 1):
            rows, columns = tiles.grid(active)
            if features.shape[2] % rows or features.shape[3] % columns:
                raise ValueError(
                    f"The maps at {name!r} have {features.shape[2]}x{features.shape[3]} positions, "
                    f"which do not divide into {rows}x{columns} tiles, as {active} active streams "
                    f"have: choose another module, or another number of streams than "
                    f"{config.num_streams}."
                )
    replace_module(network, config.bind_after, BindAfter(bound[0], tiles))
    replace_module(network, config.unbind_before, CutBefore(unbound[0], tiles))


def _insert_lanes(
    network: nn.Module,
    config: SuperposedConfig,
    bound: tuple[nn.Module, Tensor],
    unbound: tuple[nn.Module, Tensor],
    generator: Generator | None,
) -> None:
    """Put lanes between two modules, if their features divide into as many."""
    for name, verb, features, fits in (
        (config.bind_after, "gives", bound[1], (4,)),
        (config.unbind_before, "takes", unbound[1], (2, 4)),
    ):
        if features.ndim not in fits:
            raise ValueError(
                f"binding='tied' makes lanes of feature maps (b, d, h, w), and {name!r} {verb} "
                f"{tuple(features.shape)}: name modules that see maps, or the classifier that "
                f"sees (b, d), or choose another binding."
            )
        if features.shape[1] % config.num_streams:
            raise ValueError(
                f"{name!r} {verb} {features.shape[1]} features, which do not divide into "
                f"{config.num_streams} lanes: choose another module, or another num_streams."
            )
    options: dict[str, Any] = {"dtype": bound[1].dtype, "device": bound[1].device}
    enter = EnterLanes(bound[1].shape[1], config.num_streams, generator).to(**options)
    leave = LeaveLanes(unbound[1].shape[1], config.num_streams, generator).to(**options)
    replace_module(network, config.bind_after, BindAfter(bound[0], enter))
    replace_module(network, config.unbind_before, CutBefore(unbound[0], leave))


def _features(value: Any, name: str, verb: str, least: int) -> Tensor:
    features = features_in(value)
    if features is None or features.ndim < least or not features.is_floating_point():
        found = type(value).__name__ if features is None else f"{tuple(features.shape)}"
        raise ValueError(
            f"{name!r} {verb} {found}: superpositions need feature maps (b, d, h, w) or token "
            f"features (b, t, d){', or (b, d)' if least == 2 else ''} there."
        )
    return features


def _make_binding(
    config: SuperposedConfig, dim: int, generator: Generator | None
) -> PositionBinding:
    size = (config.num_streams, dim)
    if config.binding == "hrr":
        return HRRBinding(
            gaussian_keys(*size, generator=generator), trainable=config.trainable_keys
        )
    if config.binding == "hadamard":  # signs: there is nothing between -1 and 1 to train
        return HadamardBinding(bipolar_keys(*size, generator=generator), trainable=False)
    keys = matrix_keys(*size, generator=generator)
    if config.identity_start:
        # The sum over all streams is then about the identity: slow mode starts as the network was.
        keys = (torch.eye(dim).to(keys) + START_NOISE * keys) / config.num_streams
    return MBATBinding(keys, trainable=config.trainable_keys)


def check_boundary(model: Any, inputs: Tensor) -> None:
    """Try all streams busy; fold the masks of trunk modules, refuse whatever else crosses."""
    network, streams = model.network, model.num_streams
    if streams == 1:
        return
    masks: list[dict[str, Tensor]] = [{}]
    if model.takes_mask and not inputs.is_floating_point() and inputs.ndim == 2:
        mask = torch.ones_like(inputs, dtype=torch.bool)
        mask[:, -1] = inputs.shape[1] == 1  # with padding: some networks drop masks of ones
        masks.append({"mask": mask})
    for options in masks:
        while True:
            trial = try_pass(model, partial(model, inputs, **options))
            visit = _first_crossing(trial, model, len(inputs))
            if visit is None:
                break
            name = visit.name.removeprefix("network.")
            module = find_module(network, name, "module")
            fold = FoldMask(module, visit.masks, streams, hiding=visit.hiding)
            replace_module(network, name, fold)
        _refuse_leaks(trial, model, len(inputs))


def _refuse_leaks(trial: Trial, model: Any, count: int) -> None:
    """Raise if something of single inputs met the superposition, or answers are missing."""
    if trial.error is not None:
        where = next((n for n in reversed(trial.stack) if n.startswith("network.")), "network")
        raise ValueError(
            f"Something that belongs to single inputs meets the superposition in "
            f"{where.removeprefix('network.')!r} ({first_line(trial.error)}): a skip connection "
            f"or a side input crosses bind_after={model.config.bind_after!r} or unbind_before="
            f"{model.config.unbind_before!r}. Name modules that no connection goes around."
        )
    answers = answer_in(trial.output)
    if len(answers) != count:
        raise ValueError(
            f"{count} inputs got {len(answers)} answers: what runs between the two modules "
            f"must keep the batch axis first and its size as it is."
        )


def _first_crossing(trial: Trial, model: Any, size: int) -> Visit | None:
    """Find the first module of the trunk that gets a mask of every input, with these masks."""
    for visit in trial.visits:
        name = visit.name.removeprefix("network.")
        folded = isinstance(model.get_submodule(visit.name), FoldMask)
        inner = name.endswith(".module") or ".module." in name
        if folded or inner or model._parts.get(name) != "trunk":
            continue
        masks = {p: key for p, key in visit.masks.items() if visit.arguments[key][:1] == (size,)}
        if masks:
            return replace(visit, masks=masks)
    return None


def answer_in(output: Any) -> Tensor:
    """Find the answers in what a network gives: a tensor, or the ``logits`` of transformers."""
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    raise ValueError(
        f"The network gives a {type(output).__name__}, and superpose() needs a tensor of answers, "
        f"or an output with `logits`: wrap the network in a module that returns the tensor."
    )
