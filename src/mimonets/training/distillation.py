"""Learn from a teacher: a trained network, or the slow mode of the network itself.

Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network", 2015. The teacher sees the
inputs that the student sees, augmented and mixed alike; it runs in evaluation mode, one input per
pass, and gets no gradient.
"""

from typing import Any

import torch
from torch import Tensor, nn

from mimonets._answers import each
from mimonets._inputs import KINDS
from mimonets.checkpoints import load
from mimonets.models import eval_mode
from mimonets.models.surgery import answer_in
from mimonets.training.batch import Batch
from mimonets.training.config import TrainConfig
from mimonets.training.launch import make_fast

# b answers   c classes

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

    def teaches(self, active_streams: int) -> bool:
        """Whether it has anything to say to this mode: the slow mode cannot learn from itself.

        Its own answers, as it gives them so far, would only hold it where it is.
        """
        return self.network is not self.student or active_streams > 1

    def answer(self, batch: Batch) -> Any:
        """Answer a batch, before the student does.

        A network that teaches itself changes its mode for this, and its batch norms must not move
        between the student's forward and backward pass.
        """
        plain = self.call is self.network  # tensors of inference mode are not for compiled code
        with eval_mode(self.network, inference=plain):
            answers = answer_in(self.call(batch.inputs, **self.options, **batch.arguments()))
        return each(Tensor.clone, answers)  # no backward pass takes what inference mode made


def make_teacher(
    student: nn.Module, config: TrainConfig, device: torch.device, network: nn.Module | None = None
) -> Teacher | None:
    """Take the network as teacher, or find the one that a config names; None without both."""
    if network is not None and config.teacher is not None:
        raise ValueError(
            f"Two teachers: a network, and train.teacher={config.teacher!r}. Pass one of them."
        )
    if network is None and config.teacher is None:
        return None
    return Teacher(student, config, device, network)


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
    return None if spec is None else KINDS[spec.kind]
