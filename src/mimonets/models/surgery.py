"""How superpose() opens a third-party network: settings, wrappers, and a search for leaks."""

import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, fields, replace
from functools import partial
from typing import Any, Self

import torch
from torch import Generator, Tensor, nn

from mimonets._answers import parts_of
from mimonets._config import Config, size
from mimonets._messages import did_you_mean, first_line, short
from mimonets.bindings import (
    BindingSettings,
    Boundary,
    ReadoutName,
    binding_problems,
    current_name,
    make_binding,
    name_problems,
)
from mimonets.bindings.insertion import (
    BindAfter,
    ClassifierPerStream,
    FoldMask,
    SplitBefore,
    UnbindBefore,
    features_in,
)
from mimonets.bindings.keys import START_NOISE
from mimonets.layers import StreamUnbinding
from mimonets.models.builders import builder_problems
from mimonets.models.probe import Probe, Visit, find_module, probe, replace_module

OLD_READOUTS = {"matrix": "shared", "classifier": "stream"}


@dataclass(frozen=True, kw_only=True)
class SuperposedConfig(Config):
    """Where a network carries superpositions, and how inputs get in and out."""

    num_streams: int = size(2)  # inputs per superposition
    bind_after: str = ""  # the last module that sees every input by itself
    unbind_before: str = ""  # the first one that does so again
    binding: str = "hrr"  # circular convolution; others: mimonets.bindings.BINDINGS
    readout: ReadoutName = "shared"  # unbind by matrices, then one head; or a classifier each
    identity_start: bool = False  # matrices start near the identity, for pretrained networks
    unbinding_relu: bool = False  # ReLU after the unbinding matrices, as in MIMOConv
    trainable_keys: bool = True  # of hrr and matrix; signs (hadamard) stay what they are
    builder: str = ""  # what builds the network again when it is loaded, see register_builder
    builder_settings: Mapping[str, Any] = field(default_factory=dict)  # its arguments
    unbinding: InitVar[str | None] = None  # the old name of readout

    def __post_init__(self, unbinding: str | None) -> None:
        """Check all settings; older names become those of today."""
        object.__setattr__(self, "binding", current_name(self.binding))
        if unbinding is not None:
            if str(unbinding) not in OLD_READOUTS:
                raise ValueError(
                    f"SuperposedConfig: unbinding={short(unbinding)} is not known: choose readout="
                    f"'shared' or 'stream'."
                )
            object.__setattr__(self, "readout", OLD_READOUTS[unbinding])
            warnings.warn(
                f"unbinding={unbinding!r} is now readout={self.readout!r}; the old name goes with "
                f"the next version.",
                DeprecationWarning,
                stacklevel=3,
            )
        super().__post_init__()

    @property
    def is_plain(self) -> bool:
        """Whether nothing is bound: one stream, and no modules named."""
        return self.num_streams == 1 and not self.bind_after and not self.unbind_before

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems() + name_problems(self.binding)
        for name in ("bind_after", "unbind_before"):
            if not isinstance(getattr(self, name), str):
                found.append(f"{name}={short(getattr(self, name))} must be the name of a module.")
        if not found:
            found += binding_problems(self)
        if self.readout == "stream" and (self.unbinding_relu or self.identity_start):
            found.append(
                "unbinding_relu and identity_start are for readout='shared': a classifier per "
                "stream has no matrix, leave them out."
            )
        return found + builder_problems(self.builder, self.builder_settings)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read settings by name; refuse names that are none."""
        known = [setting.name for setting in fields(cls)]
        for name in settings:
            if name not in (*known, "unbinding"):
                raise ValueError(
                    f"superpose() has no setting {name!r}{did_you_mean(name, known)}: it has "
                    f"{', '.join(known)}."
                )
        return cls(**settings)


def probe_inputs(network: nn.Module, example: Tensor | None, num_streams: int) -> Tensor:
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


def module_parts(network: nn.Module, record: Probe, config: SuperposedConfig) -> dict[str, str]:
    """Tell which modules run before the binding, in superposition, and after it."""
    turns = [visit.name for visit in record.visits]
    order = {name: place for place, name in enumerate(dict.fromkeys(turns))}  # of first turns
    for argument in ("bind_after", "unbind_before"):
        name = getattr(config, argument)
        if name not in order:
            raise ValueError(
                f"{argument}={name!r} is never called as a module when the network runs: name one "
                f"that is."
            )
        if turns.count(name) > 1:
            raise ValueError(
                f"{argument}={name!r} runs {turns.count(name)} times in a pass, and inputs are "
                f"joined and taken apart once: name a module that runs once."
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
    probe(network, lambda: network(inputs))
    for handle in handles:
        handle.remove()
    entering = _features(seen["bound"], config.bind_after, "gives", least=3)
    leaving = _features(seen.get("unbound"), config.unbind_before, "takes", least=2)
    options: dict[str, Any] = {"dtype": entering.dtype, "device": entering.device}
    axis_in = axis_of(network, config.bind_after, entering)
    axis_out = axis_of(network, config.unbind_before, leaving)
    dim = entering.shape[axis_in]
    line = entering.ndim == 3 and axis_in == 1
    settings = BindingSettings.of(config, bound_maps=dim, keeps_size=True, line=line)
    binding = make_binding(config.binding, settings, generator).to(**options)
    problems = binding.problems(
        Boundary(config.bind_after, entering), Boundary(config.unbind_before, leaving)
    )
    if problems:
        raise ValueError(problems[0])
    replace_module(network, config.bind_after, BindAfter(bound, binding, axis_in))
    reader: nn.Module
    if binding.keeps_apart:
        reader = SplitBefore(unbound, binding)
    elif config.readout == "stream":
        if not isinstance(unbound, nn.Linear) or leaving.ndim != 2:
            raise ValueError(
                f"readout='stream' puts a classifier per stream in place of an nn.Linear on "
                f"(b, features), and {config.unbind_before!r} is a {type(unbound).__name__} on "
                f"{tuple(leaving.shape)}: choose readout='shared'."
            )
        reader = ClassifierPerStream(unbound, config.num_streams).to(**options)
    else:
        features = leaving.shape[axis_out]
        unbinding = StreamUnbinding(
            features, config.num_streams, relu=config.unbinding_relu, generator=generator
        ).to(**options)
        if config.identity_start:  # every stream reads the superposition as it is, with some noise
            weight = unbinding.weight.data
            weight.mul_(START_NOISE).add_(torch.eye(features).to(weight))
        reader = UnbindBefore(unbound, unbinding, axis_out)
    replace_module(network, config.unbind_before, reader)


IN_FRONT = (  # modules of 1-D feature maps (b, d, t), which have their features in front
    *(nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.InstanceNorm1d),
    *(nn.AvgPool1d, nn.MaxPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d),
)


def axis_of(network: nn.Module, name: str, features: Tensor) -> int:
    """Say where the features are: axis 1 of maps (b, d, h, w) and (b, d, t), else the last.

    Three axes are 1-D feature maps in a network whose layer of this name, or else most layers, are
    made for them; they are token features (b, t, d) in all others.
    """
    if features.ndim != 3:
        return 1 if features.ndim == 4 else -1
    last = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.MultiheadAttention)
    for part in (network.get_submodule(name), network):
        front = sum(isinstance(module, IN_FRONT) for module in part.modules())
        behind = sum(isinstance(module, last) for module in part.modules())
        if front != behind:
            return 1 if front > behind else -1
    return -1


def _features(value: Any, name: str, verb: str, least: int) -> Tensor:
    features = features_in(value)
    if features is None or features.ndim < least or not features.is_floating_point():
        found = type(value).__name__ if features is None else f"{tuple(features.shape)}"
        raise ValueError(
            f"{name!r} {verb} {found}: superpositions need feature maps (b, d, h, w) or (b, d, t), "
            f"or token features (b, t, d){', or (b, d)' if least == 2 else ''} there."
        )
    return features


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
            record = probe(model, partial(model, inputs, **options))
            visit = _first_crossing(record, model, len(inputs))
            if visit is None:
                break
            name = visit.name.removeprefix("network.")
            module = find_module(network, name, "module")
            fold = FoldMask(module, visit.masks, streams, hiding=visit.hiding)
            replace_module(network, name, fold)
        _refuse_leaks(record, model, len(inputs))


def _refuse_leaks(record: Probe, model: Any, count: int) -> None:
    """Raise if something of single inputs met the superposition, or answers are missing."""
    if record.error is not None:
        where = next((n for n in reversed(record.stack) if n.startswith("network.")), "network")
        raise ValueError(
            f"Something that belongs to single inputs meets the superposition in "
            f"{where.removeprefix('network.')!r} ({first_line(record.error)}): a skip connection "
            f"or a side input crosses bind_after={model.config.bind_after!r} or unbind_before="
            f"{model.config.unbind_before!r}. Name modules that no connection goes around."
        )
    answers = answer_in(record.output)
    found = next((len(part) for part in parts_of(answers) if len(part) != count), count)
    if found != count:
        raise ValueError(
            f"{count} inputs got {found} answers: what runs between the two modules "
            f"must keep the batch axis first and its size as it is."
        )


def _first_crossing(record: Probe, model: Any, size: int) -> Visit | None:
    """Find the first module of the trunk that gets a mask of every input, with these masks."""
    for visit in record.visits:
        name = visit.name.removeprefix("network.")
        folded = isinstance(model.get_submodule(visit.name), FoldMask)
        inner = name.endswith(".module") or ".module." in name
        if folded or inner or model._parts.get(name) != "trunk":
            continue
        masks = {p: key for p, key in visit.masks.items() if visit.arguments[key][:1] == (size,)}
        if masks:
            return replace(visit, masks=masks)
    return None


def answer_in(output: Any) -> Any:
    """Find the answers in what a network gives: a tensor, or a tuple or dict of tensors.

    Of the outputs of transformers it is the ``logits``, or all tensors if there are none.
    """
    if isinstance(output, Tensor):
        return output
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(output, Mapping):
        output = {str(name): part for name, part in output.items() if part is not None}
    elif isinstance(output, tuple | list):
        output = tuple(output)
    parts = parts_of(output)
    wrong = [part for part in parts if not isinstance(part, Tensor) or not part.ndim]
    if wrong or not parts:
        is_inside = wrong and wrong[0] is not output
        inside = f" with a {type(wrong[0]).__name__} in it" if is_inside else ""
        raise ValueError(
            f"The network gives a {type(output).__name__}{inside}, and superpose() needs a tensor "
            f"of answers, or a tuple or dict of tensors, with the inputs in front: wrap the "
            f"network in a module that returns that."
        )
    return output
