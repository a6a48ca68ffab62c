"""superpose(): any network takes several inputs per pass.

A third-party network has no idea of streams. Between two of its modules it is given superpositions:
what comes out of ``bind_after`` is bound and added up group by group, and before ``unbind_before``
every input is read out again. Whatever lies between runs once per group. MIMONets, section 2.
"""

import inspect
from collections import OrderedDict
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn

from mimonets._answers import each, names_of, parts_of
from mimonets._inputs import AnswerKind, InputSpec
from mimonets._messages import first_line
from mimonets.bindings import BINDINGS, Binding
from mimonets.bindings.insertion import BindAfter
from mimonets.bindings.tiles import ShrunkTiles
from mimonets.layers import StreamBatchNorm, running
from mimonets.models.base import OnHub, calls_of, eval_mode
from mimonets.models.boundaries import Suggestion, find_cuts, rank, why_none
from mimonets.models.builders import build
from mimonets.models.probe import Probe, find_module, probe, replace_module
from mimonets.models.surgery import (
    OLD_READOUTS,
    SuperposedConfig,
    answer_in,
    check_boundary,
    insert,
    module_parts,
    probe_inputs,
)
from mimonets.vsa import check_active_streams

MASKS = ("mask", "attention_mask")  # names of the mask of real tokens, True = real


class Superposed(nn.Module, OnHub):
    """A network that answers up to N inputs per pass; made by :func:`superpose`.

    It keeps to the protocol :class:`MultipleInput`: ``active_streams`` chooses the mode, a batch of
    any size gets as many answers, in order. In training a last group that is not full is filled
    up with inputs of the same batch, whose second answers are dropped.
    """

    kind: ClassVar[str] = "superposed"
    config_class: ClassVar[type[SuperposedConfig]] = SuperposedConfig
    cost_parts: ClassVar[tuple[str, ...]] = ("stem", "binding", "trunk", "unbinding", "head")

    def __init__(
        self, network: nn.Module, config: SuperposedConfig, parts: dict[str, str], example: Tensor
    ) -> None:
        super().__init__()
        self.network = network
        self.config = config
        self.num_streams = config.num_streams  # how many inputs can share a pass
        self.input_spec: InputSpec | None = None
        self._parts = parts  # module -> stem, trunk or head
        self._example = example.detach().cpu()  # inputs to make others like
        # "values" if answers cannot be logits of classes; None: they can.
        self.answer_kind: AnswerKind | None = None
        self.output_names: tuple[str, ...] = ()  # of several outputs

    @classmethod
    def upgrade_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Give settings of older checkpoints their names of today."""
        config = {**config}
        if str(config.get("unbinding")) in OLD_READOUTS:
            config["readout"] = OLD_READOUTS[config.pop("unbinding")]
        if config.get("binding") == "tiles":  # had no effect there, and is refused today
            config.pop("trainable_keys", None)
        return config

    @property
    def title(self) -> str:
        """Name it in tables and plots."""
        inner = getattr(self.network, "title", type(self.network).__name__)
        return str(inner) if self.config.is_plain else f"{inner} (superposed, N={self.num_streams})"

    @property
    def summary(self) -> str:
        """Say in a sentence or two where inputs share a pass, for its model card."""
        config = self.config
        if config.is_plain:
            return ""
        return (
            f"A network that takes up to {self.num_streams} inputs in one pass. Between "
            f"`{config.bind_after}` and `{config.unbind_before}` it runs once per group of inputs, "
            f"which are joined by {BINDINGS[config.binding].summary}."
        )

    @property
    def usage(self) -> str:
        """Say in Python how a saved network of this kind is loaded, for its model card."""
        load = ["from mimonets.models import Superposed"]
        if name := self.config.builder:
            load += [f"import ...  # your module with @mimonets.register_builder({name!r})"]
            load += ['model = Superposed.from_pretrained("FOLDER")']
        else:
            name = type(self.network).__name__
            load += [f"network = {name}(...)  # as it was before mimonets.superpose"]
            load += ['model = Superposed.from_pretrained("FOLDER", network=network)']
        return "\n".join([*load, *calls_of(self)])

    def forward(
        self, x: Tensor, *side: Tensor, active_streams: int | None = None, **options: Any
    ) -> Any:
        """Answer inputs (b, ...), in order; what else the network takes per input goes along.

        Answers are a tensor (b, ...), or a tuple or dict of such tensors, as the network gives.

        A tensor whose first axis is as long as the batch is taken as one value per input; give
        others a leading axis of 1.
        """
        active = check_active_streams(active_streams, self.num_streams)
        options = self._with_mask(options)
        size = x.shape[0]
        if size == 0:
            raise ValueError("An empty batch has no answers: pass at least one input.")
        whole, left_over = size // active * active, size % active
        if self.training and left_over:
            order = torch.arange(whole + active, device=x.device) % size
            return each(lambda part: part[:size], self._run(active, order, x, side, options))
        parts = [(active, slice(0, whole))] if whole else []
        if left_over:  # answered exactly as in the mode of their number
            parts.append((left_over, slice(whole, size)))
        answers = [self._run(mode, index, x, side, options) for mode, index in parts]
        return answers[0] if len(answers) == 1 else each(lambda *rows: torch.cat(rows), *answers)

    def _run(
        self, mode: int, index: Any, x: Tensor, side: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Run the inputs at these places, all in whole groups."""

        def pick(value: Any) -> Any:
            # No len(), which fixes the size of the batch where the network is exported.
            alike = isinstance(value, Tensor) and value.ndim and value.shape[0] == x.shape[0]
            return value[index] if alike else value

        with running(mode):
            return answer_in(
                self.network(
                    x[index],
                    *(pick(one) for one in side),
                    **{key: pick(one) for key, one in options.items()},
                )
            )

    def _with_mask(self, options: dict[str, Any]) -> dict[str, Any]:
        """Pass ``mask=``, as training and engines call it, by the name that the network has."""
        mask = options.pop("mask", None)
        if mask is None:
            return options
        known = inspect.signature(self.network.forward).parameters
        name = next((name for name in MASKS if name in known), None)
        if name is None:
            raise ValueError(
                f"{type(self.network).__name__} takes no mask: its forward has no argument "
                f"{' or '.join(MASKS)}."
            )
        return {**options, name: mask}

    @property
    def takes_mask(self) -> bool:
        """Whether ``forward`` takes the mask of real tokens beside the inputs."""
        return any(name in inspect.signature(self.network.forward).parameters for name in MASKS)

    def default_input_spec(self) -> InputSpec | None:
        """Describe the inputs as far as the example shows them; None if they are no known kind."""
        shape, numbers = tuple(self._example.shape[1:]), self._example.is_floating_point()
        if not numbers and len(shape) != 1:
            return None
        names = self.output_names or None
        return InputSpec.like(shape, numbers=numbers, answers=self.answer_kind, outputs=names)

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
        return self._parts.get(name, "network" if self.config.is_plain else "head")

    def stream_key_penalty(self) -> Tensor:
        """How far the stream keys are from orthonormal, unweighted."""
        bindings = [m for m in self.modules() if isinstance(m, Binding)]
        return bindings[0].penalty() if bindings else next(self.parameters()).new_zeros(())


def superpose(
    network: nn.Module | tuple[nn.Module, nn.Module, nn.Module] | None = None,
    *,
    example: Tensor | None = None,
    generator: Generator | None = None,
    **settings: Any,
) -> Superposed:
    """Let a network take several inputs per pass.

    ``network`` is changed in place: its weights stay the same parameters, two of its modules get
    wrappers, and the batch norms between them statistics per mode. With ``num_streams=1`` and no
    modules named, nothing is put in: the network itself, to be trained, measured and saved like
    the others, as a baseline.

    Args:
        network: any module; the part between the two named ones must treat its inputs alike.
            Or three modules that run one after the other, (stem, trunk, head): the trunk carries
            superpositions, and there is nothing to name. Without a network, ``builder`` and
            ``builder_settings`` say how it is built.
        example: inputs (b, ...) as the network takes them, b >= 1; not needed if the network has
            ``example_inputs`` of its own.
        generator: draws keys and unbinding matrices.
        settings: the fields of :class:`SuperposedConfig`, above all ``num_streams``,
            ``bind_after`` and ``unbind_before``. Without these two names, the first pair of
            :func:`suggest_boundaries` is taken.

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
    if isinstance(network, tuple):
        network = joined(*network)
        settings = {"bind_after": "stem", "unbind_before": "head", **settings}
    config = SuperposedConfig.of(settings)
    if network is None:
        if not config.builder:
            raise ValueError(
                "superpose() needs a network, or builder=, the name of what builds it."
            )
        network = build(config.builder, config.builder_settings)
    if not isinstance(network, nn.Module):
        raise ValueError(
            f"superpose() takes a torch.nn.Module, not a {type(network).__name__}: build it first, "
            f"or pass builder=, the name of what builds it."
        )
    if any(isinstance(module, BindAfter) for module in network.modules()):
        raise ValueError(
            f"This {type(network).__name__} is already superposed, which changed it in place: pass "
            f"a network as it was before, such as a new one or a copy.deepcopy."
        )
    if not config.bind_after and not config.unbind_before and config.num_streams > 1:
        first = suggest_boundaries(
            network, example, num_streams=config.num_streams, binding=config.binding, most=1
        )[0]
        config = replace(config, bind_after=first.bind_after, unbind_before=first.unbind_before)
    for argument in ("bind_after", "unbind_before") if not config.is_plain else ():
        find_module(network, getattr(config, argument), argument)
    inputs = probe_inputs(network, example, config.num_streams)
    plain = _run_plainly(network, inputs)
    if config.is_plain:
        return _described(Superposed(network, config, {}, inputs[:1]), plain)
    before = {module: dict(module._modules) for module in network.modules()}
    try:
        return _open(network, config, inputs, plain, generator)
    except Exception:  # refused: put all modules back to where they were
        _put_back(before)
        raise


def _run_plainly(network: nn.Module, inputs: Tensor) -> Probe:
    """Run the network as it is, or say why that fails."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
        raise ValueError(
            f"{type(network).__name__} has modules that torch.jit made, which cannot be changed: "
            f"pass the network as it was before torch.jit.script or torch.jit.trace."
        )
    plain = probe(network, lambda: network(inputs))
    if plain.error is not None:
        raise ValueError(
            f"The network itself fails on the example ({first_line(plain.error)}): pass inputs as "
            f"it takes them."
        )
    if any(part.ndim == 0 for part in parts_of(answer_in(plain.output))):
        raise ValueError(
            f"{type(network).__name__} gives one number for the whole batch, and superpose() needs "
            f"an answer for each input: leave out the mean or the loss at its end."
        )
    return plain


def _open(
    network: nn.Module,
    config: SuperposedConfig,
    inputs: Tensor,
    plain: Probe,
    generator: Generator | None,
) -> Superposed:
    """Put wrappers and norms into the network and try it."""
    before = set(network.modules())
    parts = module_parts(network, plain, config)
    insert(network, config, inputs, generator)
    for name in [name for name, part in parts.items() if part == "trunk"]:
        module = dict(network.named_modules()).get(name)
        if module is not None and not any(module.children()):
            replace_module(network, name, StreamBatchNorm.convert(module, config.num_streams))
    model = Superposed(network, config, parts, inputs[: max(1, config.num_streams)])
    for module in model.modules():
        if module not in before and not isinstance(module, StreamBatchNorm):
            module.training = network.training
    check_boundary(model, inputs)
    _restore_size(model, inputs, plain)
    return _described(model, plain)


def _described(model: Superposed, plain: Probe) -> Superposed:
    """Note what the answers are: "values" if they are not a row of logits (b, classes)."""
    answers = answer_in(plain.output)
    logits = isinstance(answers, Tensor) and answers.ndim == 2 and answers.shape[1] > 1
    model.answer_kind = None if logits else "values"
    model.output_names = names_of(answers)
    return model


def _restore_size(model: Superposed, inputs: Tensor, plain: Probe) -> None:
    """Let shrunk tiles get their size back where answers are as large as the maps."""
    tiles = next((m for m in model.modules() if isinstance(m, ShrunkTiles)), None)
    if tiles is None:
        return

    def sizes(answers: Any) -> list[Any]:
        return [part.shape[1:] for part in parts_of(answers)]

    def found() -> list[Any]:
        with eval_mode(model, inference=False):
            return sizes(model(inputs))

    wanted = sizes(answer_in(plain.output))
    if found() == wanted:
        return
    tiles.restores = True
    if found() != wanted:
        raise ValueError(
            f"binding='tiles' changes the size of the answers, from {tuple(wanted[0])} with one "
            f"input to {tuple(found()[0])} with {model.num_streams}: choose another "
            f"unbind_before, or another binding."
        )


def _put_back(before: dict[nn.Module, dict[str, Any]]) -> None:
    for module, children in before.items():
        module._modules.update(children)


MOST_TRIALS = 40  # pairs that are tried until enough of them work


def suggest_boundaries(
    network: nn.Module,
    example: Tensor | None = None,
    *,
    num_streams: int = 4,
    binding: str = "hrr",
    most: int = 5,
) -> list[Suggestion]:
    """Propose where to bind and where to unbind, the best first.

    Every pair was tried: the network answers all streams with it. Pairs with enough features for
    the streams come first, and among these the cheapest per input. The network stays as it is.

    Raises:
        ValueError: with the reason, if there is no such pair.

    >>> cnn = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(),
    ...                     nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    >>> first = suggest_boundaries(cnn, torch.randn(1, 1, 28, 28))[0]
    >>> first.bind_after, first.unbind_before, round(first.saving, 1)
    ('1', '6', 2.9)
    """
    name = type(network).__name__
    inputs = probe_inputs(network, example, num_streams)
    plain = _run_plainly(network, inputs)
    cuts = find_cuts(network, inputs)
    before = {module: dict(module._modules) for module in network.modules()}
    found: list[Suggestion] = []
    refusal = ""
    for one in rank(cuts, len(inputs), num_streams, binding)[:MOST_TRIALS]:
        config = SuperposedConfig(
            num_streams=num_streams,
            binding=binding,
            bind_after=one.bind_after,
            unbind_before=one.unbind_before,
        )
        try:
            _open(network, config, inputs, plain, None)
            found.append(one)
        except Exception as error:  # third-party code may raise anything
            refusal = refusal or first_line(error)
        finally:
            _put_back(before)
        if len(found) == most:
            break
    if not found:
        raise ValueError(
            f"{name} has no place for {num_streams} streams with binding={binding!r}: "
            f"{refusal or why_none(cuts, num_streams, binding)}. Name bind_after and unbind_before "
            f"yourself, choose fewer streams or another binding, or pass (stem, trunk, head)."
        )
    return found


def joined(*three: nn.Module) -> nn.Sequential:
    """Join stem, trunk and head into a network that :func:`superpose` takes, with their names.

    >>> three = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten()
    >>> model = superpose(three, num_streams=2, example=torch.randn(1, 1, 8, 8))
    >>> model(torch.randn(3, 1, 8, 8)).shape
    torch.Size([3, 128])
    """
    if len(three) != 3 or not all(isinstance(part, nn.Module) for part in three):
        found = ", ".join(type(part).__name__ for part in three)
        raise ValueError(
            f"Parts of a network are three modules, (stem, trunk, head), not ({found})."
        )
    return nn.Sequential(OrderedDict(zip(("stem", "trunk", "head"), three, strict=True)))
