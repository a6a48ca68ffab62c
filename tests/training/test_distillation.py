import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import mimonets as mn
from mimonets.layers import StreamBatchNorm
from mimonets.training import train
from mimonets.training.batch import Batch
from mimonets.training.distillation import make_teacher
from mimonets.training.objective import soft_loss, task_loss, taught_loss
from training.tiny import TinyBatches, same_weights, tiny_config, tiny_conv

CPU = torch.device("cpu")


def a_batch(size=6):
    inputs, labels = next(TinyBatches(size=size).epoch(0))
    return Batch(inputs, labels)


def soft_loss_by_hand(logits, wanted, temperature):
    total = 0.0
    for row, target in zip(logits, wanted, strict=True):
        p, q = (torch.softmax(x / temperature, dim=0) for x in (target, row))
        total += sum(float(a) * math.log(float(a) / float(b)) for a, b in zip(p, q, strict=True))
    return temperature**2 * total / len(logits)


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_soft_targets_by_hand(temperature):
    logits, wanted = torch.randn(2, 5, 3, dtype=torch.float64)
    every = torch.ones(5, dtype=torch.bool)
    found = float(soft_loss(logits, wanted, every, temperature))
    assert found == pytest.approx(soft_loss_by_hand(logits, wanted, temperature), rel=1e-5)
    assert float(soft_loss(wanted, wanted, every, temperature)) == pytest.approx(0, abs=1e-6)


def test_what_has_no_label_is_not_taught():
    logits, wanted = torch.randn(2, 2, 4, 3)
    scored = torch.tensor([True, False, True, True, False, False, True, True])
    kept = logits.flatten(0, 1)[scored], wanted.flatten(0, 1)[scored]
    expected = soft_loss(*kept, torch.ones(5, dtype=torch.bool), 2.0)
    assert_close(soft_loss(logits, wanted, scored, 2.0), expected)


def test_without_a_teacher_it_is_the_tasks_loss():
    batch, logits = a_batch(), torch.randn(6, 3)
    config = tiny_config()
    assert make_teacher(tiny_conv(), config, CPU) is None
    assert torch.equal(taught_loss(logits, batch, config, None), task_loss(logits, batch, config))


@pytest.fixture
def teacher_folder(tmp_path):
    torch.manual_seed(5)
    plain = mn.WideResNetConfig(depth=10, width=1, in_channels=1, num_classes=3, image_size=8)
    network = mn.WideResNet(plain)
    network(torch.randn(16, 1, 8, 8))  # statistics that differ from those of a batch
    mn.save(network, tmp_path / "teacher")
    return tmp_path / "teacher"


def test_the_teacher_answers_in_evaluation_mode_without_gradients(teacher_folder):
    student = tiny_conv()
    config = tiny_config(teacher=str(teacher_folder), distill=0.25, temperature=2.0)
    teacher = make_teacher(student, config, CPU)
    batch = a_batch()
    wanted = mn.load(teacher_folder).eval()(batch.inputs).detach()
    logits = student(batch.inputs)
    found = taught_loss(logits, batch, config, teacher.answer(batch))
    every = torch.ones(6, dtype=torch.bool)
    hard, soft = task_loss(logits, batch, config), soft_loss(logits, wanted, every, 2.0)
    assert_close(found, 0.75 * hard + 0.25 * soft)
    found.backward()
    assert all(p.grad is not None for p in student.parameters())
    assert all(p.grad is None for p in teacher.network.parameters())


def test_a_network_teaches_itself_by_its_slow_mode_and_stays_in_training_mode():
    student = tiny_conv()
    batch = a_batch()
    student(batch.inputs, active_streams=1)
    config = tiny_config(teacher="slow", distill=1.0, fast_share=0.5)
    teacher = make_teacher(student, config, CPU)
    wanted = student.eval()(batch.inputs, active_streams=1).detach()
    student.train()
    seen = [norm.batches_seen.tolist() for norm in student.modules() if is_norm(norm)]
    assert_close(teacher.answer(batch), wanted)
    assert student.training
    assert seen == [norm.batches_seen.tolist() for norm in student.modules() if is_norm(norm)]
    taught = teacher.answer(batch)
    logits = student(batch.inputs, active_streams=2)
    expected = soft_loss(logits, wanted, torch.ones(6, dtype=torch.bool), 4.0)
    assert_close(taught_loss(logits, batch, config, taught), expected)


def test_a_network_with_modes_that_are_not_trained_teaches_itself(tmp_path):
    settings = {"teacher": "slow", "modes": {1: 0.5, 4: 0.5}, "epochs": 2}
    student = tiny_conv(num_streams=4)
    result = train(student, TinyBatches(size=16), tiny_config(**settings), run_dir=tmp_path / "run")
    assert result.skipped == 0


def test_the_slow_mode_that_teaches_learns_from_the_labels_alone(tmp_path):
    weights = []
    for number, teacher in enumerate((None, "slow")):
        student = tiny_conv()
        config = tiny_config(teacher=teacher, modes={1: 1.0})
        train(student, TinyBatches(), config, run_dir=tmp_path / str(number))
        weights.append(student)
    assert same_weights(*weights)


def is_norm(module):
    return isinstance(module, StreamBatchNorm)


def test_a_teacher_of_another_task_is_refused():
    student = tiny_conv()
    classes = replace(student.config, num_classes=student.config.num_classes + 1)
    with pytest.raises(
        ValueError, match=r"The teacher tells \d+ classes apart and the network \d+"
    ):
        make_teacher(student, tiny_config(), CPU, type(student)(classes))
    tokens = mn.Transformer(mn.TransformerConfig(depth=1, heads=1, head_dim=4, dim=4))
    with pytest.raises(ValueError, match="The teacher takes token ids and the network images"):
        make_teacher(student, tiny_config(), CPU, tokens)


@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}])
def test_a_taught_run_differs_learns_and_resumes(teacher_folder, tmp_path, settings):
    config = tiny_config(teacher=str(teacher_folder), distill=0.9, mixup=0.5, **settings)
    taught, resumed, alone = tiny_conv(), tiny_conv(), tiny_conv()
    train(taught, TinyBatches(), config, run_dir=tmp_path / "taught")

    def stop(step):
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(resumed, TinyBatches(before=stop), config, run_dir=tmp_path / "cut")
    train(resumed, TinyBatches(), config, run_dir=tmp_path / "cut", resume=True)
    assert same_weights(taught, resumed)
    plain = tiny_config(mixup=0.5, **settings)
    train(alone, TinyBatches(), plain, run_dir=tmp_path / "alone")
    assert not same_weights(taught, alone)


def test_a_teacher_that_is_not_trained_is_refused(tmp_path):
    with pytest.raises(ValueError, match="a mode that is not trained: set train.fast_share"):
        train(tiny_conv(), TinyBatches(), tiny_config(teacher="slow"), run_dir=tmp_path)
    one = tiny_conv(num_streams=1)
    with pytest.raises(ValueError, match="teacher='slow' needs several streams"):
        train(one, TinyBatches(size=4), tiny_config(teacher="slow"), run_dir=tmp_path)
