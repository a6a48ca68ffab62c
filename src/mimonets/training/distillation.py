"""Learn from a teacher: a trained network, or the slow mode of the network itself.

Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network", 2015. The teacher sees the
inputs that the student sees, augmented and mixed alike; it runs in evaluation mode, one input per
pass, and gets no gradient.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mimonets.bindings.insertion import ClassifierPerStream, SplitBefore, UnbindBefore
from mimonets.checkpoints import load
from mimonets.data.interface import IGNORED
from mimonets.models import Superposed
from mimonets.models.base import eval_mode
from mimonets.training.batch import Batch
from mimonets.training.compiling import make_fast
from mimonets.training.config import TrainConfig
from mimonets.training.objective import task_loss

# b answers   c classes   d features

Lesson = tuple[Tensor, list[Tensor]]  # the teacher's logits, and what its classifier got
SLOW = "slow"  # as the name of a teacher: the student's own mode with one active stream


class Teacher:
    """A network that answers the batches of another one.

    Args:
        student: the network that is trained; with ``teacher="slow"`` it teaches itself.
        config: ``teacher`` is a folder that :func:`mimonets.save` or a run wrote, or "slow".
        network: the teacher itself, also a plain network that knows no streams.
    """

    def __init__(
        self,
        student: nn.Module,
        config: TrainConfig,
        device: torch.device,
        network: nn.Module | None = None,
    ) -> None:
        self.student = student
        if network is None:
            assert config.teacher is not None
            network = student if config.teacher == SLOW else load(config.teacher)
        _check_answers(network, student)
        self.network = network.to(device)
        is_student = network is student  # which changes its mode to teach: it is not compiled twice
        self.call = network if is_student else make_fast(network, config, device)
        self.options = {"active_streams": 1} if hasattr(network, "num_streams") else {}
        self.watched = compared_module(network, student) if config.distill_features else None
        for name, one in (("student", student), ("teacher", network)):
            if config.distill_features and compared_module(one, student) is None:
                raise ValueError(
                    f"distill_features compares what the classifiers get, or in a superposed "
                    f"network what is read out before `unbind_before`, and the {name} has no such "
                    f"module: set train.distill_features=0."
                )

    def teaches(self, active_streams: int) -> bool:
        """Whether it has anything to say to this mode: the slow mode cannot learn from itself.

        Its own answers, as it gives them so far, would only hold it where it is.
        """
        return self.network is not self.student or active_streams > 1

    def answer(self, batch: Batch) -> Lesson:
        """Answer a batch: logits, and with ``distill_features`` what the classifier made them of.

        Before the student does: a network that teaches itself changes its mode for this, and its
        batch norms must not move between the student's forward and backward pass.
        """
        plain = self.call is self.network  # tensors of inference mode are not for compiled code
        with watching(self.watched) as features, eval_mode(self.network, inference=plain):
            logits = self.call(batch.inputs, **self.options, **batch.arguments())
        # Clones, since what inference mode made cannot take part in a backward pass.
        return logits.clone(), [seen.clone() for seen in features]


def make_teacher(
    student: nn.Module, config: TrainConfig, device: torch.device, network: nn.Module | None = None
) -> Teacher | None:
    """Take the network as teacher, or find the one that a config names; None without both."""
    if network is not None and config.teacher is not None:
        raise ValueError(
            f"Two teachers: a network, and train.teacher={config.teacher!r}. Pass one of them."
        )
    if network is None and config.teacher is None:
        if config.distill_features:
            raise ValueError(
                "distill_features is for a teacher: name one (train.teacher), or leave it out."
            )
        return None
    return Teacher(student, config, device, network)


def taught_loss(
    logits: Tensor,
    batch: Batch,
    config: TrainConfig,
    lesson: Lesson | None,
    features: list[Tensor] | None = None,
) -> Tensor:
    r"""Score answers by the labels and by the teacher's answers, if there is a lesson.

    .. math:: (1 - w) \, \ell(y, l) + w \, T^2 \,
        \mathrm{KL}\bigl(\mathrm{softmax}(y_t / T) \,\|\, \mathrm{softmax}(y / T)\bigr) + v \, L_G

    with w = ``config.distill``, T = ``config.temperature``, v = ``config.distill_features`` and
    :math:`L_G` of :func:`similarity_loss`. Without a teacher it is the task's loss alone.
    """
    loss = task_loss(logits, batch, config)
    if lesson is None:
        return loss
    wanted, taught = lesson
    scored = None if batch.labels.ndim == 1 else batch.labels.flatten() != IGNORED
    loss = torch.lerp(loss, soft_loss(logits, wanted, scored, config.temperature), config.distill)
    if config.distill_features and features and taught:
        known = torch.cat(taught)
        own = torch.cat(features)[: len(known)]  # a group that was filled up has more
        loss = loss + config.distill_features * similarity_loss(own, known)
    return loss


def soft_loss(logits: Tensor, wanted: Tensor, scored: Tensor | None, temperature: float) -> Tensor:
    """Compare softened answers (..., c): T^2 times the KL divergence, averaged.

    Over those that are ``scored`` (...), or all without it, which spares waiting for the device.
    """
    rows = slice(None) if scored is None else scored
    found, target = (
        F.log_softmax(x.flatten(0, -2)[rows].float() / temperature, dim=-1)
        for x in (logits, wanted)
    )
    return temperature**2 * F.kl_div(found, target, log_target=True, reduction="batchmean")


def similarity_loss(features: Tensor, taught: Tensor) -> Tensor:
    r"""Compare which inputs of a batch look alike to the two networks.

    .. math:: L_G = \frac{1}{b^2} \| G(F) - G(F_t) \|_F^2, \qquad
        G(F)_{ij} = \frac{\langle f_i, f_j \rangle}{\sqrt{\sum_k \langle f_i, f_k \rangle^2}}

    Features may differ in size, and nothing is learned beside the network. Tung & Mori,
    "Similarity-preserving knowledge distillation", ICCV 2019.

    Args:
        features: (b, d) of the student, or maps (b, d, h, w), which count as vectors.
        taught: (b, d') of the teacher, likewise.
    """
    vectors = (x.flatten(1).float() for x in (features, taught))
    own, wanted = (F.normalize(x @ x.mT, dim=-1) for x in vectors)
    return (own - wanted).square().mean()


def compared_module(network: Any, student: Any) -> nn.Module | None:
    """Find the module whose inputs are compared with ``distill_features``; None if there is none.

    It is the classifier; or, if the student is a superposed third-party network, what comes after
    the unbinding there, and the module of the same name in the teacher.
    """
    name = getattr(getattr(student, "config", None), "unbind_before", "")
    found: Any = getattr(network, "classifier", None)
    if name:
        inner = network.network if isinstance(network, Superposed) else network
        found = dict(inner.named_modules()).get(name, found)
    if isinstance(found, UnbindBefore | SplitBefore):
        return found.module
    none = ClassifierPerStream | nn.Identity  # what is read out before it is not there
    return found if isinstance(found, nn.Module) and not isinstance(found, none) else None


def _check_answers(teacher: Any, student: Any) -> None:
    """Refuse a teacher that answers something else, as far as the two say what they do."""
    kinds, classes = (
        [_of(network, what) for network in (teacher, student)] for what in ("kind", "classes")
    )
    if None not in kinds and kinds[0] != kinds[1]:
        raise ValueError(
            f"The teacher takes {kinds[0]} and the network {kinds[1]}: choose a teacher of the "
            f"same inputs."
        )
    if None not in classes and classes[0] != classes[1]:
        raise ValueError(
            f"The teacher tells {classes[0]} classes apart and the network {classes[1]}: choose a "
            f"teacher of the same task."
        )


def _of(network: Any, what: str) -> Any:
    if what == "classes":
        return getattr(getattr(network, "config", None), "num_classes", None)
    spec = network.default_input_spec() if hasattr(network, "default_input_spec") else None
    return None if spec is None else {"image": "images", "tokens": "token ids"}[spec.kind]


@contextmanager
def watching(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collect what a module gets while the context lasts; nothing without one."""
    seen: list[Tensor] = []
    if module is None:
        yield seen
        return
    handle = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        handle.remove()
