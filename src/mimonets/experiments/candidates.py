"""The candidates of ``compare``: what could run in place of a network, and why some cannot.

What one could run instead of superposition takes part on equal terms: the network as it is, the
network on smaller inputs, and networks that the user names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets._answers import each, parts_of
from mimonets._messages import first_line
from mimonets._operating_point import OperatingPoint
from mimonets._seeds import wilson_interval
from mimonets.evaluation.metrics import has_classes, loss_of
from mimonets.experiments.compare_data import CompareData, answer
from mimonets.models import (
    SlimmableWideResNet,
    SlimmableWideResNetConfig,
    WideResNet,
    eval_mode,
    operating_points,
    superpose,
)
from mimonets.models.surgery import answer_in

Make = Callable[[], nn.Module]
AS_IT_IS = "as it is"
PLAIN = {"num_streams": 1}
MOST_JUDGED = 1024  # test inputs that tell whether a network is trained already


class Smaller(nn.Module):
    """A network on inputs of half the size, which are averaged down first.

    Answers that are then smaller too are scaled up again to their size without it.
    """

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        super().__init__()
        self.network = network
        with eval_mode(network, inference=False):
            answers = answer_in(network(example))
        self.sizes = [part.shape[1:] for part in parts_of(answers)]

    def forward(self, x: Tensor) -> Any:
        """Answer images (b, c, h, w), or series (b, c, t)."""
        shrink = F.avg_pool2d if x.ndim == 4 else F.avg_pool1d
        answers = answer_in(self.network(shrink(x, 2)))
        sizes = iter(self.sizes)

        def restored(part: Tensor) -> Tensor:
            size = next(sizes)
            if part.shape[1:] == size:
                return part
            return F.interpolate(part, size=size[1:], mode=("linear", "bilinear")[part.ndim - 3])

        return each(restored, answers)


@dataclass(frozen=True)
class Trainee:
    """A candidate: what makes its network, and how inputs share a pass."""

    name: str
    make: Make
    settings: Mapping[str, Any] = field(default_factory=PLAIN.copy)  # of mn.superpose
    is_trained: bool = False  # already; it is measured as it came

    @property
    def folder(self) -> str:
        """Its name as a folder."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.name)

    def build(self, data: CompareData, seed: int) -> Any:
        """Make the network with the weights that a seed gives."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model: Any = self.make()
            if not isinstance(model, SlimmableWideResNet):
                model = superpose(model, example=data.example, **self.settings)
        model.input_spec = data.spec
        return model

    def points(self, model: Any) -> dict[str, OperatingPoint]:
        """Name the operating points that get a row: all streams busy, or every width."""
        points = operating_points(model)
        if len(points) == 1 or not isinstance(model, SlimmableWideResNet):
            return {self.name: points[-1]}
        named = zip(model.config.widths, points, strict=True)
        return {f"{self.name}, width {width:g}": point for width, point in named}


def list_candidates(
    make: Make, siblings: Mapping[str, Make], streams: Sequence[int], data: CompareData
) -> tuple[list[Trainee], dict[str, str]]:
    """List what can be built, and why the others cannot."""
    found, refused = [], {}
    wanted = _all_candidates(make, siblings, [*dict.fromkeys(streams)], data.example)
    folders = [one.folder for one in wanted]
    for name in siblings:
        if folders.count(Trainee(name, make).folder) > 1:
            raise ValueError(f"sibling {name!r}: another candidate has that name: choose another.")
    for one in wanted:
        try:
            model = one.build(data, 0)
            if one.make() is one.make():
                raise ValueError("its function gives the same network twice: let it make a new one")
            _check_loss(model, data)
            if one.settings["num_streams"] > 1:  # the places that were found are kept
                where = {key: getattr(model.config, key) for key in ("bind_after", "unbind_before")}
                one = replace(one, settings={**one.settings, **where})
            known = one.name in (AS_IT_IS, *siblings) and is_trained(model, data)
            found.append(replace(one, is_trained=known))
        except Exception as error:  # it is third-party code
            if one.name == AS_IT_IS:
                raise ValueError(f"The network cannot be compared: {first_line(error)}") from error
            refused[one.name] = first_line(error)
    return found, refused


def _all_candidates(
    make: Make, siblings: Mapping[str, Make], streams: Sequence[int], example: Tensor
) -> list[Trainee]:
    """List what one would like to compare."""
    wanted = [Trainee(AS_IT_IS, make)]
    if example.ndim in (3, 4) and example.is_floating_point():
        name = "half resolution" if example.ndim == 4 else "half the samples"
        wanted.append(Trainee(name, lambda: Smaller(make(), example)))
    wanted += [Trainee(name, sibling) for name, sibling in siblings.items()]
    for binding, title in (("hrr", "keys"), ("tiles", "tiles")):
        wanted += [
            Trainee(f"{title}, N={count}", make, {"num_streams": count, "binding": binding})
            for count in streams
        ]
    plain = make()
    if isinstance(plain, WideResNet):  # at half and a quarter of the width, too
        config = SlimmableWideResNetConfig(**vars(plain.config))
        wanted.append(Trainee("slimmable", partial(SlimmableWideResNet, config)))
    return wanted


def _check_loss(model: Any, data: CompareData) -> None:
    """Try the loss on a batch of the test data, or say why that, or a training, would fail."""
    labels = data.first[-1]
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("it has no weights that training may change: set requires_grad")
    with eval_mode(model):
        answers = answer(model, data.first)
        if data.judged_by == "accuracy":
            if not has_classes(labels, answers):
                shapes = " and ".join(str(tuple(part.shape)) for part in parts_of(answers))
                raise ValueError(f"its answers {shapes} are not (b, classes)")
            if int(labels.max()) >= answers.shape[-1]:
                raise ValueError(
                    f"it tells {answers.shape[-1]} classes apart, and the data has at least "
                    f"{int(labels.max()) + 1}"
                )
        if not torch.isfinite(loss_of(data.loss)(answers, labels)):
            raise ValueError("its loss on the test data is infinite or not a number")


def is_trained(model: Any, data: CompareData) -> bool:
    """Tell whether a network knows the task: clearly more often right than the commonest class.

    Of networks whose answers are values nobody can tell: pass ``teacher=`` for those.
    """
    if data.judged_by == "loss":
        return False
    batches = data.some_tests(MOST_JUDGED)
    labels = torch.cat([batch[-1] for batch in batches])
    with eval_mode(model):
        right = sum(int((answer(model, one).argmax(-1) == one[-1]).sum()) for one in batches)
    commonest = int(torch.bincount(labels).max()) / len(labels)
    low, _ = wilson_interval(right, len(labels))
    return len(labels) >= 50 and low > commonest + 0.2
