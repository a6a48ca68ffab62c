"""Race the modes of models against each other and against what one would run instead."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mimonets.evaluation.memory import peak_memory
from mimonets.evaluation.throughput import Contender, Timing, race, time_shares
from mimonets.models import (
    DataMUXConvConfig,
    DataMUXFormerConfig,
    ImageModel,
    MIMOConvConfig,
    MIMOFormerConfig,
    PerformerConfig,
    TransformerConfig,
    WideResNetConfig,
)
from mimonets.models.registry import model_class_for
from mimonets.vsa import check_active_streams


@dataclass(frozen=True)
class BenchSettings:
    """How to measure. Stated with every result."""

    batch_size: int = 16
    rounds: int = 15
    warmup: int = 2
    threads: int | None = None  # None: as many as PyTorch chooses
    dtype: str = "float32"
    memory_format: str = "contiguous_format"  # or channels_last
    device: str = "cpu"
    compile: bool = False  # through torch.compile


@dataclass(frozen=True)
class BenchResult:
    """Timings of all modes of some models and of what one would run instead."""

    settings: BenchSettings
    timings: list[Timing]
    modes: dict[str, int]  # contender -> active streams, for the modes of the models themselves
    configs: dict[str, Any]  # contender -> config
    baselines: list[str]
    time_shares: dict[str, dict[str, float]]  # mode -> part -> share of the time
    peak_bytes: dict[str, int]  # contender -> memory of one pass beyond weights and inputs

    def timing(self, name: str) -> Timing:
        """Find the timing of one contender."""
        return next(timing for timing in self.timings if timing.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        return {
            "settings": asdict(self.settings),
            "contenders": [
                {
                    "name": timing.name,
                    "active_streams": self.modes.get(timing.name),
                    "inputs_per_second": timing.inputs_per_second,
                    "quartiles": list(timing.spread),
                    "speedup": {
                        base: dict(
                            zip(
                                ("median", "low", "high"),
                                timing.speedup_over(self.timing(base)),
                                strict=True,
                            )
                        )
                        for base in self.baselines
                    },
                    "peak_bytes": self.peak_bytes[timing.name],
                    "seconds": list(timing.seconds),
                }
                for timing in self.timings
            ],
            "time_shares": self.time_shares,
        }


@torch.inference_mode()
def bench(
    configs: Any | Sequence[Any],
    modes: Sequence[int | None] | None = None,
    settings: BenchSettings | None = None,
    *,
    after_round: Callable[[], object] = lambda: None,
) -> BenchResult:
    """Time modes of one or more models against what one would run instead.

    The weights are random: speed does not depend on them.

    Args:
        configs: of the models, which must take the same inputs.
        modes: numbers of active streams, None for all that a model has; by default the divisors
            of each model's streams, or all up to four.
        settings: batch size, rounds and so on.
        after_round: called after each round, for a progress bar.
    """
    settings = settings or BenchSettings()
    configs = configs if isinstance(configs, list | tuple) else [configs]
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    others = {
        model_name(other): other
        for config in configs
        for other in single_input_alternatives(config)
    }
    entries: dict[str, tuple[nn.Module, int, Any]] = {}
    for config in configs:
        model = _place(model_class_for(config)(config), settings).eval()
        for wanted in modes or default_modes(model.num_streams):
            mode = check_active_streams(wanted, model.num_streams)
            entries[f"{model_name(config)}, {mode} active"] = (model, mode, config)
    own = {name: mode for name, (_, mode, _) in entries.items()}
    for name, other in others.items():
        entries[name] = (_place(model_class_for(other)(other), settings).eval(), 1, other)

    inputs = _place(model.example_inputs(settings.batch_size), settings)
    contenders = [
        _contender(name, model, inputs, mode, settings)
        for name, (model, mode, _) in entries.items()
    ]
    timings = race(
        contenders, rounds=settings.rounds, warmup=settings.warmup, after_round=after_round
    )
    return BenchResult(
        settings=settings,
        timings=timings,
        modes=own,
        configs={name: config for name, (_, _, config) in entries.items()},
        baselines=list(others),
        time_shares={
            name: time_shares(
                entries[name][0], inputs, rounds=min(5, settings.rounds), active_streams=mode
            )
            for name, mode in own.items()
            if isinstance(entries[name][0], ImageModel)  # the parts of others are in their blocks
        },
        peak_bytes={
            name: peak_memory(partial(model, inputs, active_streams=mode))
            for name, (model, mode, _) in entries.items()
        },
    )


def default_modes(num_streams: int) -> list[int]:
    """Choose the modes worth timing: all up to four streams, else those that spread evenly.

    >>> default_modes(4), default_modes(16)
    ([1, 2, 3, 4], [1, 2, 4, 8, 16])
    """
    every = range(1, num_streams + 1)
    return [mode for mode in every if num_streams <= 4 or num_streams % mode == 0]


def single_input_alternatives(config: Any) -> list[Any]:
    """Configs of the networks to compare with: one stream, and no superposition at all."""
    if isinstance(config, MIMOConvConfig):
        names = ("depth", "width", "in_channels", "num_classes", "image_size")
        plain = WideResNetConfig(**{name: getattr(config, name) for name in names})
        return [replace(config, num_streams=1), plain] if config.num_streams > 1 else [plain]
    if isinstance(config, DataMUXConvConfig):
        return [replace(config, num_streams=1)] if config.num_streams > 1 else []
    if isinstance(config, DataMUXFormerConfig):
        return [_as(TransformerConfig, config)]
    if isinstance(config, MIMOFormerConfig):
        return [_as(PerformerConfig, config)]
    return []


def _as(kind: type[Any], config: Any) -> Any:
    """Keep the settings that another kind of model has too."""
    return kind(**{field.name: getattr(config, field.name) for field in fields(kind)})


def model_name(config: Any) -> str:
    """Name a model as the paper does.

    >>> model_name(MIMOConvConfig(num_streams=4)), model_name(WideResNetConfig())
    ('MIMOConv-28-10 (N=4)', 'WideResNet-28-10')
    >>> model_name(MIMOFormerConfig(grid=(2, 2), superpose="attention+mlp"))
    'MIMOFormer (2x2, attention+mlp)'
    """
    name = model_class_for(config).__name__
    if isinstance(config, MIMOFormerConfig):
        return f"{name} ({config.grid[0]}x{config.grid[1]}, {config.superpose})"
    if isinstance(config, DataMUXFormerConfig):
        return f"{name} (N={config.num_streams}, {config.demux})"
    if isinstance(config, TransformerConfig):
        return name
    if isinstance(config, WideResNetConfig):
        name = f"{name}-{config.depth}-{config.width}"
    streams = getattr(config, "num_streams", None)
    return name if streams is None else f"{name} (N={streams})"


def _place(thing: Any, settings: BenchSettings) -> Any:
    if isinstance(thing, Tensor) and not thing.is_floating_point():
        return thing.to(settings.device)
    return thing.to(
        device=settings.device,
        dtype=getattr(torch, settings.dtype),
        memory_format=getattr(torch, settings.memory_format),
    )


def _contender(
    name: str, model: nn.Module, inputs: Tensor, mode: int, settings: BenchSettings
) -> Contender:
    run = torch.compile(model) if settings.compile else model
    return Contender(name, lambda: run(inputs, active_streams=mode), inputs=len(inputs))
