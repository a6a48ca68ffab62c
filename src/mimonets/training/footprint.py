"""What a training step takes: arithmetic, bytes moved and memory, counted on meta tensors.

Nothing is computed, and no GPU is needed: a copy of the network without memory takes one step, and
every operator is counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from mimonets._operating_point import OperatingPoint
from mimonets.evaluation.macs import hollow_copy
from mimonets.evaluation.memory import LiveTensors, tensors_in
from mimonets.models import operating_points
from mimonets.models.blocks import Block
from mimonets.training.batch import Batch
from mimonets.training.config import TrainConfig
from mimonets.training.objective import penalty, task_loss
from mimonets.training.schedule import make_optimizer


@dataclass(frozen=True)
class Footprint:
    """What one step takes."""

    flops: float  # of matrix products and convolutions, two per multiply-accumulate
    moved: float  # bytes that its operators read and write
    peak: float  # bytes at the fullest moment: weights, gradients, optimiser, activations


def step_footprint(model: Any, config: TrainConfig) -> Footprint:
    """Count a training step: the mean over the modes that are trained, the peak of the largest.

    Args:
        model: one of ours, its config, or a third-party network with ``example_inputs``.
        config: how it is trained; ``precision``, ``accumulate`` and ``recompute`` count.
    """
    hollow: Any = hollow_copy(model).train()
    set_recompute(hollow, config.recompute)
    shares = config.mode_shares(getattr(hollow, "num_streams", 1))
    found, weights = [], []
    for active, share in shares.items():
        points = [p for p in operating_points(hollow) if p.inputs_per_pass == active]
        for point in points:
            found.append(_count_step(hollow, config, point))
            weights.append(share / len(points))
    return Footprint(
        flops=sum(one.flops * weight for one, weight in zip(found, weights, strict=True)),
        moved=sum(one.moved * weight for one, weight in zip(found, weights, strict=True)),
        peak=max(one.peak for one in found),
    )


def _count_step(hollow: Any, config: TrainConfig, point: OperatingPoint) -> Footprint:
    """Take a step on meta tensors, as one that has an optimiser state from earlier steps."""
    streams = getattr(hollow, "num_streams", 1)
    if config.slow_inputs == "per-stream":
        streams = point.inputs_per_pass
    batch = _example_batch(hollow, config.batch_size * (streams if config.per_stream else 1))
    if config.mixup:
        batch = replace(batch, mixed_in=batch.labels, share=0.7)
    optimizer = make_optimizer(hollow, config)
    trained = [p for p in hollow.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    parts = config.accumulate if isinstance(config.accumulate, int) else 1
    with _Step() as count:
        inputs = batch.inputs
        if config.mixup:
            inputs = torch.lerp(inputs, inputs.roll(1, 0), 0.7)
        pieces = replace(batch, inputs=inputs).split(parts, point.inputs_per_pass)
        for piece in pieces:
            with _AsOnCuda(hollow, autocast=config.precision == "bf16"):
                logits = hollow(piece.inputs, **point.options, **piece.arguments())
            loss = task_loss(logits.float(), piece, config)
            last = piece is pieces[-1]
            torch.autograd.backward(loss + penalty(hollow, config) if last else loss)
            del logits, loss
        torch.nn.utils.get_total_norm([p.grad for p in trained if p.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
    states = [value for state in optimizer.state.values() for value in state.values()]
    averages = trained if config.ema is not None else []
    kept = (*hollow.parameters(), *hollow.buffers(), *tensors_in(states), *averages)
    return Footprint(count.flops, count.moved, count.peak + sum(tensor.nbytes for tensor in kept))


def _example_batch(hollow: Any, size: int) -> Batch:
    with torch.device("meta"):
        inputs = hollow.example_inputs(size).to("meta")
        next_token = getattr(getattr(hollow, "config", None), "head", None) == "next_token"
        labels = torch.zeros(inputs.shape if next_token else (size,), dtype=torch.long)
        mask = None if inputs.is_floating_point() else torch.ones(inputs.shape, dtype=torch.bool)
    return Batch(inputs, labels, mask)


def gigabytes(size: float) -> str:
    """Write a size.

    >>> gigabytes(61.7e9), gigabytes(2e6)
    ('61.7 GB', '0.002 GB')
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e9:.1g} GB"


def less_memory(model: Any, config: TrainConfig) -> str:
    """Say which settings need less memory and are not set yet."""
    ways = [
        (config.precision != "bf16", "train.precision=bf16"),
        (has_features(model) and not config.recompute, "train.recompute=true"),
        (config.accumulate == 1, "train.accumulate=auto"),
    ]
    left = [words for fits, words in ways if fits]
    return " or ".join(left) if left else "a larger train.accumulate or a smaller train.batch_size"


def has_features(model: Any) -> bool:
    """Tell whether a network has linear attention, whose features can be computed again."""
    return any(hasattr(module, "feature_map") for module in model.modules())


def set_recompute(model: nn.Module, wanted: bool) -> None:
    """Let the blocks of a network compute their attention again in the backward pass, or not."""
    if wanted and not has_features(model):
        raise ValueError(
            f"recompute=true computes features of linear attention again, and "
            f"{type(model).__name__} has none: set train.recompute=false."
        )
    for module in model.modules():
        if isinstance(module, Block):
            module.recompute = wanted


def free_memory(device: torch.device) -> int | None:
    """Ask a CUDA device how many bytes are free; None for others."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def fit_memory(model: Any, config: TrainConfig, memory: int | None) -> TrainConfig:
    """Replace ``accumulate="auto"`` by the fewest parts, a power of two, that fit into memory.

    A tenth of the memory is left for what is not counted. Without a limit it is one part.
    """
    if config.accumulate != "auto":
        return config
    parts = 1
    if memory is not None:
        inputs = config.batch_size * (model.num_streams if config.per_stream else 1)
        most = max(1, inputs // model.num_streams)  # a part holds a whole group
        while parts < most and peak_bytes(model, replace(config, accumulate=parts)) > 0.9 * memory:
            parts *= 2
    return replace(config, accumulate=parts)


def peak_bytes(model: Any, config: TrainConfig) -> float:
    """Count the memory of a training step."""
    return step_footprint(model, config).peak


def out_of_memory(model: Any, config: TrainConfig, device: torch.device) -> str:
    """Say in one sentence what to set after an out-of-memory error."""
    try:
        need = f": a step takes about {gigabytes(peak_bytes(model, config))}"
    except Exception:  # a network that does not run on meta tensors
        need = ""
    return f"The {device.type} device is out of memory{need}. Set {less_memory(model, config)}."


class _Step(LiveTensors):
    """Counts floating-point operations and bytes beside the tensors that live."""

    def __init__(self) -> None:
        super().__init__(slack=0.005)
        self.flops, self.moved, self.operators = 0.0, 0.0, 0

    def after(
        self, func: Any, args: Any, kwargs: Any, output: Any, tensors: Sequence[Tensor]
    ) -> None:
        """Count one operator: views and empty tensors move nothing."""
        if func.is_view or "empty" in func.__name__ or "detach" in func.__name__:
            return
        self.operators += 1
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops += count(*args, **kwargs, out_val=output)
        for tensor in tensors:
            self.moved += min(tensor.nbytes, tensor.untyped_storage().nbytes())


LOWER = {
    *(F.linear, F.conv1d, F.conv2d, F.conv3d, torch.matmul, torch.bmm, torch.mm, torch.einsum),
    *(torch.addmm, torch.baddbmm, torch.prelu, F.prelu, Tensor.matmul, Tensor.__matmul__),
    *(Tensor.bmm, Tensor.mm, F.scaled_dot_product_attention),
}
HIGHER = {
    *(F.layer_norm, torch.layer_norm, F.softmax, torch.softmax, Tensor.softmax, F.cross_entropy),
    *(torch.exp, Tensor.exp, torch.sum, Tensor.sum, torch.pow, Tensor.pow, Tensor.__pow__),
    *(torch.cumsum, Tensor.cumsum, torch.rsqrt, Tensor.rsqrt, Tensor.reciprocal),
}


class _AsOnCuda(TorchFunctionMode):
    """Does what a GPU does and the meta device does not: autocast, and attention in one kernel."""

    def __init__(self, network: nn.Module, *, autocast: bool) -> None:
        super().__init__()
        self.autocast = autocast
        self.cast: dict[int, Tensor] = {}  # weights are cast once per step
        # Linear attention takes its sums in float32: see attention.sums.without_autocast.
        exact = [module for module in network.modules() if hasattr(module, "feature_map")]
        self.hooks = [
            handle
            for module in exact
            if autocast
            for handle in (
                module.register_forward_pre_hook(lambda *_: setattr(self, "autocast", False)),
                module.register_forward_hook(lambda *_: setattr(self, "autocast", True)),
            )
        ]

    def __exit__(self, *reason: Any) -> None:
        for handle in self.hooks:
            handle.remove()
        super().__exit__(*reason)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.autocast and func in LOWER:
            args, kwargs = torch.utils._pytree.tree_map(self._to_bf16, (args, kwargs))
        elif self.autocast and func in HIGHER:
            args, kwargs = torch.utils._pytree.tree_map(_to_float32, (args, kwargs))
        if func is F.scaled_dot_product_attention:
            return _attend_in_one_kernel(*args, **kwargs)
        return func(*args, **kwargs)

    def _to_bf16(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if not isinstance(value, nn.Parameter):
            return value.to(torch.bfloat16)
        return self.cast.setdefault(id(value), value.to(torch.bfloat16))


def _to_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype == torch.bfloat16 else value


def _attend_in_one_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    **_: Any,
) -> Tensor:
    bias = None
    if attn_mask is not None:
        shape = (*q.shape[:-1], k.shape[-2])
        bias = attn_mask.to(q.dtype).expand(shape)
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    return attend(q, k, v, bias, True, dropout_p, is_causal, scale=scale)[0]
