"""superpose(): any network takes several inputs per pass.

A network of others has no idea of streams. Between two of its modules it is given superpositions:
what comes out of ``bind_after`` is bound and added up group by group, and before ``unbind_before``
every input is read out again. Whatever lies between runs once per group. MIMONets, section 2.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from mimonets._config import Config, is_whole
from mimonets._inputs import InputSpec
from mimonets.layers import (
    HadamardBinding,
    HRRBinding,
    MBATBinding,
    PositionBinding,
    StreamBatchNorm,
    StreamUnbinding,
    running,
)
from mimonets.layers.insertion import (
    BindAfter,
    ClassifierPerStream,
    FoldMask,
    UnbindBefore,
    feature_axis,
    features_in,
    with_identity_start,
)
from mimonets.models.trial import Trial, find_module, replace_module, try_pass
from mimonets.vsa import bipolar_keys, check_active_streams, gaussian_keys, matrix_keys

BindingName = Literal["hrr", "hadamard", "matrix"]
UnbindingName = Literal["matrix", "classifier"]
START_NOISE = 0.1  # of matrices that start near the identity, relative to random ones
TRIAL_GROUPS = 3  # so that neither groups nor inputs can be broadcast to each other


@dataclass(frozen=True, kw_only=True)
class SuperposedConfig(Config):
    """Where a network carries superpositions, and how inputs get in and out."""

    num_streams: int = 2  # inputs per superposition
    bind_after: str = ""  # the last module that sees every input by itself
    unbind_before: str = ""  # the first one that does so again
    binding: BindingName = "hrr"  # circular convolution, sign keys, or a matrix per stream
    unbinding: UnbindingName = "matrix"  # a matrix per stream, or a classifier per stream
    identity_start: bool = False  # matrices start near the identity, for pretrained networks
    unbinding_relu: bool = False  # ReLU after the unbinding matrices, as in MIMOConv
    trainable_keys: bool = True

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        found += self._wrong_choice("binding", get_args(BindingName))
        found += self._wrong_choice("unbinding", get_args(UnbindingName))
        if not is_whole(self.num_streams) or self.num_streams < 1:
            found.append(f"num_streams={self.num_streams!r} must be an integer >= 1.")
        return found


class Superposed(nn.Module):
    """A network that answers up to N inputs per pass; made by :func:`superpose`.

    It keeps to the protocol :class:`MultipleInput`: ``active_streams`` chooses the mode, a batch of
    any size gets as many answers, in order. In training a last group that is not full is filled
    up with inputs of the same batch, whose second answers are dropped.
    """

    kind = "superposed"
    cost_parts = ("stem", "binding", "trunk", "unbinding", "head")

    def __init__(
        self, network: nn.Module, config: SuperposedConfig, parts: dict[str, str], example: Tensor
    ) -> None:
        super().__init__()
        self.network = network
        self.config = config
        self.input_spec: InputSpec | None = None
        self._parts = parts  # module -> stem, trunk or head
        self._example = example.detach().cpu()  # inputs to make others like

    @property
    def num_streams(self) -> int:
        """How many inputs can share a pass."""
        return self.config.num_streams

    @property
    def title(self) -> str:
        """Name it in tables and plots."""
        inner = getattr(self.network, "title", type(self.network).__name__)
        return f"{inner} (superposed, N={self.num_streams})"

    def forward(
        self, x: Tensor, *side: Tensor, active_streams: int | None = None, **options: Any
    ) -> Tensor:
        """Answer inputs (b, ...), in order; what else the network takes per input goes along."""
        active = check_active_streams(active_streams, self.num_streams)
        size = x.shape[0]
        if size == 0:
            raise ValueError("An empty batch has no answers: pass at least one input.")
        whole, left_over = size // active * active, size % active
        if self.training and left_over:
            order = torch.arange(whole + active, device=x.device) % size
            return self._run(active, order, x, side, options)[:size]
        parts = [(active, slice(0, whole))] if whole else []
        if left_over:  # answered exactly as in the mode of their number
            parts.append((left_over, slice(whole, size)))
        answers = [self._run(mode, index, x, side, options) for mode, index in parts]
        return answers[0] if len(answers) == 1 else torch.cat(answers)

    def _run(
        self, mode: int, index: Any, x: Tensor, side: tuple[Any, ...], options: dict[str, Any]
    ) -> Tensor:
        """Run the inputs at these places, all in whole groups."""

        def pick(value: Any) -> Any:
            per_input = isinstance(value, Tensor) and value.ndim and len(value) == len(x)
            return value[index] if per_input else value

        with running(mode):
            return answer_in(
                self.network(
                    x[index],
                    *(pick(one) for one in side),
                    **{key: pick(one) for key, one in options.items()},
                )
            )

    def example_inputs(self, batch_size: int) -> Tensor:
        """Make inputs like the example that the network was superposed with."""
        device = next(self.parameters()).device
        if not self._example.is_floating_point():
            return self._example[torch.arange(batch_size) % len(self._example)].to(device)
        return torch.randn(batch_size, *self._example.shape[1:]).to(device, self._example.dtype)

    def cost_part(self, layer: str) -> str:
        """Count a layer's cost under stem, binding, trunk, unbinding or head."""
        words = layer.split(".")
        for part in ("binding", "unbinding"):
            if part in words:
                return part
        name = ".".join(word for word in words[1:] if word != "module")
        while name and name not in self._parts:
            name = name.rpartition(".")[0]
        return self._parts.get(name, "head")

    def stream_key_penalty(self) -> Tensor:
        """How far the stream keys are from orthonormal, unweighted."""
        return next(m for m in self.modules() if isinstance(m, PositionBinding)).penalty()


def superpose(
    network: nn.Module,
    *,
    example: Tensor | None = None,
    generator: Generator | None = None,
    **settings: Any,
) -> Superposed:
    """Let a network take several inputs per pass.

    ``network`` is changed in place: its weights stay the same parameters, two of its modules get
    wrappers, and the batch norms between them statistics per mode. Networks whose parts are known
    as such go through :func:`parts`.

    Args:
        network: any module; the part between the two named ones must treat its inputs alike.
        example: inputs (b, ...) as the network takes them, b >= 1; not needed if the network has
            ``example_inputs`` of its own.
        generator: draws keys and unbinding matrices.
        settings: the fields of :class:`SuperposedConfig`, above all ``num_streams``,
            ``bind_after`` and ``unbind_before``.

    Raises:
        ValueError: with the name of the module, if a name is unknown, if what is bound has no
            features, if something that belongs to single inputs crosses the boundary, or if the
            network gives another number of answers than there are inputs.

    >>> cnn = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(),
    ...                     nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    >>> mine = superpose(cnn, num_streams=4, bind_after="0", unbind_before="6",
    ...                  example=torch.randn(1, 1, 8, 8))
    >>> mine(torch.randn(6, 1, 8, 8)).shape, mine(torch.randn(6, 1, 8, 8), active_streams=1).shape
    (torch.Size([6, 10]), torch.Size([6, 10]))
    """
    config = SuperposedConfig(**settings)
    find_module(network, config.bind_after, "bind_after")
    find_module(network, config.unbind_before, "unbind_before")
    inputs = _trial_inputs(network, example, config.num_streams)
    plain = try_pass(network, lambda: network(inputs))
    if plain.error is not None:
        raise ValueError(
            f"The network itself fails on the example ({_first_line(plain.error)}): pass inputs as "
            f"it takes them."
        )
    answer_in(plain.output)
    parts = _parts(network, plain, config)
    for name, part in parts.items():
        module = dict(network.named_modules()).get(name)
        if part == "trunk" and isinstance(module, nn.modules.batchnorm._BatchNorm):
            replace_module(network, name, StreamBatchNorm.convert(module, config.num_streams))
    _insert(network, config, inputs, generator)
    model = Superposed(network, config, parts, inputs[: max(1, config.num_streams)])
    _check_boundary(model, inputs)
    return model


def parts(stem: nn.Module, trunk: nn.Module, head: nn.Module) -> nn.Sequential:
    """Join three parts into a network that :func:`superpose` takes, with their names.

    >>> network = parts(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten())
    >>> superpose(network, num_streams=2, bind_after="stem", unbind_before="head",
    ...           example=torch.randn(1, 1, 8, 8))(torch.randn(3, 1, 8, 8)).shape
    torch.Size([3, 128])
    """
    network = nn.Sequential()
    for name, part in (("stem", stem), ("trunk", trunk), ("head", head)):
        network.add_module(name, part)
    return network


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


def describe(model: Superposed) -> dict[str, Any]:
    """Give the settings as plain data, for a checkpoint."""
    return asdict(model.config)


def _trial_inputs(network: nn.Module, example: Tensor | None, num_streams: int) -> Tensor:
    count = TRIAL_GROUPS * num_streams
    if example is None:
        if not hasattr(network, "example_inputs"):
            raise ValueError(
                "superpose() tries the network once: pass example=, inputs of shape (b, ...) as it "
                "takes them, b >= 1."
            )
        return network.example_inputs(count)
    if example.ndim < 2 or len(example) == 0:
        raise ValueError(
            f"example of shape {tuple(example.shape)} is no batch of inputs: pass (b, ...), b >= 1, "
            f"such as example.unsqueeze(0)."
        )
    return example[torch.arange(count) % len(example)]


def _parts(network: nn.Module, trial: Trial, config: SuperposedConfig) -> dict[str, str]:
    """Tell which modules run before the binding, in superposition, and after it."""
    order = trial.order()
    for argument in ("bind_after", "unbind_before"):
        name = getattr(config, argument)
        if name not in order:
            raise ValueError(
                f"{argument}={name!r} is never called as a module when the network runs: name one "
                f"that is."
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


def _insert(
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
    options: dict[str, Any] = {"dtype": entering.dtype}
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
        return HRRBinding(gaussian_keys(*size, generator=generator), trainable=config.trainable_keys)
    if config.binding == "hadamard":
        return HadamardBinding(bipolar_keys(*size, generator=generator), trainable=False)
    keys = matrix_keys(*size, generator=generator)
    if config.identity_start:
        # The sum over all streams is then about the identity: slow mode starts as the network was.
        keys = (torch.eye(dim) + START_NOISE * keys) / config.num_streams
    return MBATBinding(keys, trainable=config.trainable_keys)


def _check_boundary(model: Superposed, inputs: Tensor) -> None:
    """Try all streams busy; fold the masks of trunk modules, refuse whatever else crosses."""
    network, streams = model.network, model.num_streams
    if streams == 1:
        return
    while True:
        trial = try_pass(model, lambda: model(inputs))
        crossing = _first_crossing(trial, model, len(inputs))
        if crossing is None:
            break
        name, masks = crossing
        module = find_module(network, name, "module")
        replace_module(network, name, FoldMask(module, masks, streams))
    if trial.error is not None:
        where = next((n for n in reversed(trial.stack) if n.startswith("network.")), "network")
        raise ValueError(
            f"Something that belongs to single inputs meets the superposition in "
            f"{where.removeprefix('network.')!r} ({_first_line(trial.error)}): a skip connection "
            f"or a side input crosses bind_after={model.config.bind_after!r} or unbind_before="
            f"{model.config.unbind_before!r}. Name modules that no connection goes around."
        )
    answers = answer_in(trial.output)
    if len(answers) != len(inputs):
        raise ValueError(
            f"{len(inputs)} inputs got {len(answers)} answers: what runs between the two modules "
            f"must keep the batch axis first and its size as it is."
        )


def _first_crossing(trial: Trial, model: Superposed, size: int) -> tuple[str, dict[int, str]] | None:
    """Find the first module of the trunk that gets a mask of every input."""
    for visit in trial.visits:
        name = visit.name.removeprefix("network.")
        folded = isinstance(model.get_submodule(visit.name), FoldMask)
        inner = name.endswith(".module") or ".module." in name
        if folded or inner or model._parts.get(name) != "trunk":
            continue
        masks = {p: key for p, key in visit.masks.items() if visit.arguments[key][:1] == (size,)}
        if masks:
            return name, masks
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else repr(error)
