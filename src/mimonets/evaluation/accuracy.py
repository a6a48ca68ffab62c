"""How well a model does at each operating point: accuracy, or any loss and metrics.

Always in evaluation mode, so that an answer depends only on the inputs of its own group.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets._answers import as_answers, each, parts_of
from mimonets._operating_point import OperatingPoint
from mimonets._seeds import wilson_interval
from mimonets.data.interface import IGNORED, Batches, as_batches
from mimonets.evaluation.metrics import Measure, has_classes, loss_of, metrics_of
from mimonets.models import eval_mode, find_point

# b batch   t tokens   c classes


@dataclass(frozen=True, kw_only=True)
class PointScore:
    """How well a model does at one operating point: a loss, and the metrics that were asked for."""

    active_streams: int  # inputs that share a pass
    total: int  # inputs
    loss: float  # mean; of PointAccuracy the cross entropy
    loss_deviation: float | None = None  # standard deviation over inputs
    metrics: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class PointAccuracy(PointScore):
    """How right a model is at one operating point, where every input belongs to a class."""

    correct: int
    calibration_error: float  # expected, 15 bins
    per_stream: tuple[float, ...]  # accuracy by position in the group

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the accuracy."""
        return wilson_interval(self.correct, self.total)

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain data for JSON."""
        plain = asdict(self) | {"per_stream": list(self.per_stream)}
        for name in ("loss_deviation", "metrics"):
            plain.pop(name)
        return {"accuracy": self.accuracy, "interval": list(self.interval)} | plain


@overload
def evaluate(
    model: Any, batches: Batches | Any, points: Sequence[int | None] | None = None
) -> dict[int, PointAccuracy]: ...
@overload
def evaluate(
    model: Any,
    batches: Batches | Any,
    points: Sequence[int | None] | None = None,
    *,
    loss: str | Measure,
    metrics: Mapping[str, Measure] | Sequence[str | Measure] = (),
) -> dict[int, PointScore]: ...
def evaluate(
    model: Any,
    batches: Batches | Any,
    points: Sequence[int | None] | None = None,
    *,
    loss: str | Measure | None = None,
    metrics: Mapping[str, Measure] | Sequence[str | Measure] = (),
) -> Mapping[int, PointScore]:
    """Measure accuracy, loss and calibration at operating points, over all inputs of ``batches``.

    With a loss it is the loss and the metrics instead, for answers and labels of any shape.

    Neighbours form the groups, across the ends of batches. The last group is filled up with inputs
    of the first batch, whose second answers do not count: every input is answered at the point
    that is measured. Next-token tasks are judged by the last token that has a label.

    Args:
        model: one of ours, or any module that keeps to :class:`~mimonets.models.MultipleInput`.
        batches: :class:`~mimonets.data.Batches`, or a PyTorch ``DataLoader``, best not shuffled:
            the order decides which inputs share a pass.
        points: their numbers, such as numbers of active streams; by default only the fastest.
        loss: ``"cross_entropy"``, ``"squared_error"``, ``"binary"``, or a function of answers and
            labels, which may be tensors of any shape, tuples or dicts of them.
        metrics: more of these, ``"accuracy"`` or ``"absolute_error"``, functions, or a dict of
            them; computed once over all inputs.

    Returns:
        What was found, by the number of the point.
    """
    batches = as_batches(batches)
    chosen = [find_point(model, number) for number in points or (None,)]
    with eval_mode(model):
        if loss is None and not metrics:
            return {point.number: _measure(model, batches, point) for point in chosen}
        if loss is None:
            raise ValueError("metrics=... are measured beside a loss: pass loss=... too.")
        score = partial(_score, model, batches, loss=loss_of(loss), metrics=metrics_of(metrics))
        return {point.number: score(point) for point in chosen}


def _score(
    model: Any,
    batches: Batches,
    point: OperatingPoint,
    *,
    loss: Measure,
    metrics: Mapping[str, Measure],
) -> PointScore:
    pairs = list(_answered(model, batches, point))
    found, wanted = (
        each(lambda *rows: torch.cat(rows), *side) for side in zip(*pairs, strict=True)
    )
    total = len(parts_of(wanted)[0])
    rows = [slice(row, row + 1) for row in range(total)]
    single = torch.stack(
        [loss(*(each(itemgetter(row), one) for one in (found, wanted))) for row in rows]
    )
    return PointScore(
        active_streams=point.inputs_per_pass,
        total=total,
        loss=float(loss(found, wanted)),
        loss_deviation=float(single.float().std()) if total > 1 else 0.0,
        metrics={name: float(measure(found, wanted)) for name, measure in metrics.items()},
    )


def _measure(model: Any, batches: Batches, point: OperatingPoint) -> PointAccuracy:
    all_logits, all_labels = answers(model, batches, point)
    group = point.inputs_per_pass
    right = all_logits.argmax(dim=-1) == all_labels
    return PointAccuracy(
        active_streams=group,
        correct=int(right.sum()),
        total=len(right),
        loss=float(F.cross_entropy(all_logits, all_labels)),
        calibration_error=expected_calibration_error(all_logits, all_labels),
        per_stream=tuple(
            float(right[position::group].float().mean())
            for position in range(min(group, len(right)))
        ),
    )


def answers(model: Any, batches: Batches, point: OperatingPoint) -> tuple[Tensor, Tensor]:
    """Answer all inputs at one point: logits (n, c) and labels (n,), on the model's device.

    Nothing is read back while it runs, so that a GPU is never waited for.
    """
    logits, labels = [], []
    for found, wanted in _answered(model, batches, point):
        _check_classes(found, wanted)
        found, wanted = final_token(found, wanted)
        logits.append(found)
        labels.append(wanted)
    return torch.cat(logits), torch.cat(labels)


def _answered(model: Any, batches: Batches, point: OperatingPoint) -> Iterator[tuple[Any, Any]]:
    """Yield answers as float32, and what was wanted, batch by batch."""
    device = device_of(model)
    for *inputs, wanted in _whole_groups(batches, point.inputs_per_pass):
        x, *mask = (part.to(device, non_blocking=True) for part in inputs)
        arguments = {"mask": mask[0]} if mask else {}
        found = model(x, **point.options, **arguments)
        wanted = each(lambda part: part.to(device, non_blocking=True), as_answers(wanted))
        count = len(parts_of(wanted)[0])
        yield each(lambda part: part[:count].float(), found), wanted  # noqa: B023


def _check_classes(found: Any, wanted: Any) -> None:
    """Refuse to call answers right or wrong where they name no class."""
    if has_classes(wanted, found) and wanted.ndim <= 2:
        return
    shapes = [
        ", ".join(str(tuple(part.shape[1:])) for part in parts_of(side)) for side in (found, wanted)
    ]
    raise ValueError(
        f"An input has answers of shape {shapes[0]} and labels of shape {shapes[1]}, which is not "
        f"one class out of several: pass loss='squared_error', 'binary' or 'cross_entropy', or a "
        f"function, and metrics."
    )


def device_of(model: nn.Module) -> torch.device:
    """Say where a model is; a model without weights is on the CPU."""
    held = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if held is None else held.device


def _whole_groups(batches: Batches, group: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches cut so that groups are whole; the last may hold inputs without a label."""
    first: tuple[Tensor, ...] | None = None
    waiting: tuple[Tensor, ...] | None = None
    for batch in batches.epoch(0):
        first = batch if first is None else first
        whole = batch if waiting is None else _join(waiting, batch)
        # A pair of documents is two inputs of a group, and one answer.
        pairs = len(batch) == 3 and batch[0].ndim == 3
        size = group // math.gcd(group, 2) if pairs else group
        cut = len(whole[0]) // size * size
        if cut:
            yield _rows(whole, slice(cut))
        waiting = _rows(whole, slice(cut, None))
    if first is None or waiting is None:
        raise ValueError("Nothing to evaluate: the batches hold no input.")
    if len(waiting[0]):
        filled = _join(waiting, first)
        yield (*_rows(filled[:-1], slice(size)), waiting[-1])


def _rows(batch: tuple[Any, ...], rows: slice) -> tuple[Any, ...]:
    return tuple(each(itemgetter(rows), as_answers(part)) for part in batch)


def _join(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Put two batches together; sequences of different length are padded at their end."""
    if len(left) == 2:
        return tuple(
            each(lambda *both: torch.cat(both), *map(as_answers, parts))
            for parts in zip(left, right, strict=True)
        )
    length = max(left[0].shape[-1], right[0].shape[-1])
    fill = (0, False, IGNORED)

    def pad(part: Tensor, value: int) -> Tensor:
        return F.pad(part, (0, length - part.shape[-1]), value=value) if part.ndim > 1 else part

    return tuple(
        torch.cat([pad(a, value), pad(b, value)])
        for a, b, value in zip(left, right, fill, strict=True)
    )


def final_token(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Keep the last position that has a label: (b, t, c), (b, t) -> (b, c), (b,).

    Answers that are one per input already pass through.

    >>> final_token(torch.eye(3).unsqueeze(0), torch.tensor([[2, 1, -100]]))
    (tensor([[0., 1., 0.]]), tensor([1]))
    """
    if labels.ndim == 1:
        return logits, labels
    places = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    last = (places * (labels != IGNORED)).argmax(dim=1)
    rows = torch.arange(len(labels), device=labels.device)
    return logits[rows, last], labels[rows, last]


def expected_calibration_error(logits: Tensor, labels: Tensor, bins: int = 15) -> float:
    r"""How far the confidence of a model is from its accuracy, on average over bins.

    .. math:: \mathrm{ECE} = \sum_b \frac{n_b}{n} \, |\mathrm{acc}_b - \mathrm{conf}_b|

    Guo et al., "On calibration of modern neural networks", ICML 2017.

    >>> sure = torch.tensor([[50.0, 0.0], [50.0, 0.0]])
    >>> expected_calibration_error(sure, torch.tensor([0, 1]))
    0.5
    """
    if not bool(logits.isfinite().all()):
        raise ValueError(
            "Some logits are infinite or not a number: there is no confidence to compare with the "
            "accuracy."
        )
    confidence, answer = logits.softmax(dim=-1).max(dim=-1)
    surplus = confidence - (answer == labels).float()
    which = (confidence * bins).long().clamp(max=bins - 1)
    total = surplus.new_zeros(bins).index_add(0, which, surplus)
    return float(total.abs().sum() / len(labels))
