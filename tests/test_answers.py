"""More than classification: answers of any shape are trained, exported, run and served."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import mimonets as mn
from mimonets._answers import each, parts_of
from mimonets._inputs import InputSpec
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.predict import predict, predict_values
from mimonets.serving.networks import superposed
from mimonets.serving.server import Server, ServerSettings
from mimonets.training import TrainConfig, train
from serving.fakes import client_of
from small_networks import UNet


def denoiser():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 1, 3, padding=1),
    )


def regressor():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def series():
    return nn.Sequential(
        nn.Conv1d(2, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(16, 1, 1),
    )


class Both(nn.Module):
    """A map for every position and a number for every input, as a dict or a tuple."""

    def __init__(self, as_tuple=False):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.trunk = nn.Sequential(nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.head = Heads(as_tuple)

    def forward(self, x):
        return self.head(self.trunk(self.stem(x)))


class Heads(nn.Module):
    def __init__(self, as_tuple):
        super().__init__()
        self.mask, self.number, self.as_tuple = nn.Conv2d(8, 2, 1), nn.Linear(8, 1), as_tuple

    def forward(self, x):
        found = {"mask": self.mask(x), "number": self.number(x.mean((2, 3)))}
        return tuple(found.values()) if self.as_tuple else found


def unet():
    return UNet(8)


def images(count=8):
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


# name -> network, an example, what is wanted for it, and the loss
TASKS = {
    "denoising": (denoiser, images(), images() / 2, "squared_error"),
    "regression": (regressor, images(), images()[:, 0, 0, :3], "squared_error"),
    "series": (series, torch.randn(8, 2, 12), torch.ones(8, 1, 12), "binary"),
    "U-Net": (unet, images(), (images() > 0).float(), "binary"),
    "dict": (
        Both,
        images(),
        {"mask": torch.zeros(8, 2, 8, 8), "number": torch.ones(8, 1)},
        "squared_error",
    ),
    "tuple": (
        lambda: Both(as_tuple=True),
        images(),
        (torch.zeros(8, 2, 8, 8), torch.ones(8)),
        "squared_error",
    ),
}


def model_of(task, binding="tiles", **settings):
    make, example, *_ = TASKS[task]
    torch.manual_seed(0)
    model = mn.superpose(make(), num_streams=2, binding=binding, example=example[:1], **settings)
    return model.eval()


def batches_of(task):
    _, inputs, wanted, _ = TASKS[task]
    rows = [
        (inputs[row], each(lambda part: part[row], wanted))  # noqa: B023
        for row in range(len(inputs))
    ]
    return DataLoader(rows, batch_size=8)


@pytest.mark.parametrize("task", TASKS)
def test_one_input_in_tiles_gets_the_answer_of_the_network_itself(task):
    make, inputs, _, _ = TASKS[task]
    torch.manual_seed(0)
    plain = make().eval()
    wanted = plain(inputs)
    model = model_of(task)
    found, shared = model(inputs, active_streams=1), model(inputs)
    for one, two, three in zip(*map(parts_of, (found, wanted, shared)), strict=True):
        assert_close(one, two)
        assert three.shape == two.shape


def test_shrunk_tiles_of_dense_answers_get_their_size_back_by_interpolation():
    model = mn.superpose(
        nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity(), nn.Conv2d(1, 1, 1)),
        **{"num_streams": 4, "binding": "tiles", "bind_after": "0", "unbind_before": "3"},
        example=images(1),
    )
    with torch.no_grad():
        model.network[3].module.weight.fill_(1.0)
        model.network[3].module.bias.zero_()
    flat = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 1, 8, 8)
    assert_close(model(flat), flat)


@pytest.mark.parametrize("binding", ["tiles", "hrr"])
@pytest.mark.parametrize("task", TASKS)
def test_any_loss_trains_and_is_measured(task, binding, tmp_path):
    model, loss = model_of(task, binding), TASKS[task][3]
    data = batches_of(task)
    before = evaluate(model, data, loss=loss)[2]
    config = TrainConfig(
        **{"steps": 8, "batch_size": 8, "per_stream": False, "lr": 0.01, "mixup": 0.0},
        **{"loss": loss, "optimizer": "adamw"},
    )
    result = train(model, data, config, run_dir=tmp_path / "run", validation=data)
    after = evaluate(model, data, loss=loss, metrics=["absolute_error"])[2]
    assert after.loss < before.loss
    assert after.total == 8
    assert after.metrics["absolute_error"] > 0
    assert result.final[2]["loss"] == pytest.approx(after.loss, rel=1e-4)
    assert result.history[-1]["accuracy"] is None
    assert mn.Engine(model, "torch").input_spec.answers == "values"  # no label, no cascade
    assert json.loads((tmp_path / "run" / "result.json").read_text())  # and is plain JSON


def test_a_loss_and_metrics_of_ones_own_are_used(tmp_path):
    model = model_of("regression")
    seen = []

    def largest(answers, wanted):
        seen.append(answers.shape)
        return (answers - wanted).abs().max()

    config = TrainConfig(steps=2, batch_size=8, per_stream=False, lr=0.01, mixup=0.0)
    data = batches_of("regression")
    found = train(
        model, data, config, run_dir=tmp_path, validation=data, loss=largest, metrics=[largest]
    )
    assert seen[0] == (8, 3)
    assert found.final[2]["metrics"]["largest"] == pytest.approx(found.final[2]["loss"])


def test_a_teacher_of_numbers_is_followed(tmp_path):
    make, inputs, _, _ = TASKS["regression"]
    torch.manual_seed(1)
    teacher = make().eval()
    model = model_of("regression")
    settings = {"steps": 30, "batch_size": 8, "per_stream": False, "lr": 0.02, "mixup": 0.0}
    config = TrainConfig(loss="squared_error", distill=1.0, optimizer="adamw", **settings)

    def gap():
        return (model.eval()(inputs) - teacher(inputs)).square().mean().item()

    before = gap()
    train(model, batches_of("regression"), config, run_dir=tmp_path, teacher=teacher)
    assert gap() < before / 2


def test_labels_without_classes_are_refused_where_accuracy_is_asked_for():
    with pytest.raises(ValueError, match=r"answers of shape \(3,\).*pass loss='squared_error'"):
        evaluate(model_of("regression"), batches_of("regression"))
    labels = torch.zeros(8, 5, dtype=torch.long)
    data = DataLoader(TensorDataset(images(), labels), batch_size=8)
    with pytest.raises(ValueError, match="Labels of shape.*do not fit"):
        evaluate(model_of("regression"), data, loss="cross_entropy")


def test_a_label_for_every_position_is_scored_with_cross_entropy():
    torch.manual_seed(0)
    model = mn.superpose(
        nn.Sequential(*denoiser()[:-1], nn.Conv2d(16, 4, 1)),
        **{"num_streams": 2, "binding": "tiles", "example": images(1)},
    )
    labels = torch.randint(4, (8, 8, 8))
    data = DataLoader(TensorDataset(images(), labels), batch_size=8)
    found = evaluate(model, data, [1], loss="cross_entropy", metrics=["accuracy"])[1]
    answers = model.eval()(images(), active_streams=1).detach()
    assert found.loss == pytest.approx(float(nn.functional.cross_entropy(answers, labels)))
    right = (answers.argmax(dim=1) == labels).float().mean()
    assert found.metrics["accuracy"] == pytest.approx(float(right))


@pytest.fixture(
    scope="module",
    params=["denoising", "series", "dict", "regression with keys", "U-Net"],
)
def exported(request, tmp_path_factory):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    task, *keys = request.param.split(" with ")
    model = model_of(task, "hrr" if keys else "tiles")
    folder = tmp_path_factory.mktemp(task)
    config = TrainConfig(
        **{"steps": 2, "batch_size": 8, "per_stream": False, "lr": 0.01, "mixup": 0.0},
        loss=TASKS[task][3],
    )
    train(model, batches_of(task), config, run_dir=folder / "run")
    mn.export(model.eval(), folder / "out", measure=False)
    return model, TASKS[task][1], folder / "out"


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_engines_give_the_same_answers(exported, backend):
    model, inputs, folder = exported
    engine = mn.Engine(folder, backend)
    for active in (1, 2):
        wanted = model(inputs[:5], active_streams=active)
        found = engine(inputs[:5], active)
        assert type(found) is type(wanted)
        for one, two in zip(parts_of(found), parts_of(wanted), strict=True):
            assert_close(one, two.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_int8_of_values_is_held_to_float(tmp_path):
    pytest.importorskip("onnxruntime")
    model, inputs = model_of("denoising"), TASKS["denoising"][1]
    batches = [(inputs.numpy(), inputs.numpy())]
    options = mn.ExportOptions(int8_runtimes=["onnxruntime"], max_loss=5.0)
    settings = {"int8": batches, "evaluation": batches, "measure": False, "modes": [2]}
    folder = mn.export(model, tmp_path / "out", options=options, **settings)
    found = mn.Engine(folder, "onnxruntime-int8")(inputs)
    assert_close(found, model(inputs).detach(), rtol=0, atol=0.1)
    strict = replace(options, max_loss=0.0)
    with pytest.raises(ValueError, match="int8 in onnxruntime costs"):
        mn.export(model, tmp_path / "none", options=strict, **settings)
    cascade = mn.ExportOptions(validation=batches)
    with pytest.raises(ValueError, match="answers with values, and a cascade"):
        mn.export(model, tmp_path / "none", options=cascade, measure=False)
    assert not (tmp_path / "none").exists()


def test_a_server_gives_them(exported):
    model, inputs, folder = exported
    network = superposed("mine", mn.Engine(folder, "onnxruntime"))
    wanted = model(inputs[:2], active_streams=1)
    names = network.input_spec.outputs or ("values",)

    async def call():
        async with client_of(Server({"mine": lambda: network}, ServerSettings())) as client:
            tensor = {"name": "input", "datatype": "FP32", "shape": list(inputs[:2].shape)}
            tensor["data"] = inputs[:2].flatten().tolist()
            ask = {"inputs": [tensor], "parameters": {"mode": "slow"}}
            infer = "/v2/models/mine/infer"
            everything = await client.post(infer, json=ask)
            binary = await client.post(
                infer,
                json=ask | {"outputs": [{"name": names[-1], "parameters": {"binary_data": True}}]},
            )
            refused = [
                await client.post(infer, json=ask | {"outputs": [{"name": "label"}]}),
                await client.post(infer, json=ask | {"parameters": {"cascade": True}}),
            ]
            about = await client.get("/v2/models/mine")
            return everything, binary, refused, about

    everything, binary, refused, about = asyncio.run(call())
    assert everything.status_code == 200, everything.text
    outputs = everything.json()["outputs"]
    assert [one["name"] for one in outputs] == list(names)
    for one, part in zip(outputs, parts_of(wanted), strict=True):
        found = np.reshape(one["data"], one["shape"])
        assert_close(torch.tensor(found).float(), part.detach(), rtol=1e-3, atol=1e-4)
    assert "confidence" not in everything.json()["parameters"]
    last = parts_of(wanted)[-1].detach()
    raw = np.frombuffer(binary.content[-last.numel() * 4 :], dtype="<f4").reshape(last.shape)
    assert_close(torch.tensor(raw), last, rtol=1e-3, atol=1e-4)
    assert [one.status_code for one in refused] == [400, 400]
    assert f"Outputs are {', '.join(names)}" in refused[0].json()["error"]
    assert "answers with values" in refused[1].json()["error"]
    described = about.json()["outputs"]
    assert [one["shape"][1:] for one in described] == [list(p.shape[1:]) for p in parts_of(wanted)]


def test_predict_gives_values_and_says_so():
    model = model_of("dict")
    model.input_spec = InputSpec(kind="image", shape=(1, 8, 8), mean=(0.0,), deviation=(1.0,))
    pictures = [np.full((8, 8), value, dtype=np.uint8) for value in (0, 9, 200)]
    found = predict_values(model, pictures, active_streams=1)
    assert [one["mask"].shape for one in found] == [(2, 8, 8)] * 3
    inputs = torch.full((1, 1, 8, 8), 9.0)
    assert_close(
        torch.tensor(found[1]["number"]), model(inputs, active_streams=1)["number"][0].detach()
    )
    with pytest.raises(ValueError, match="answers with values, not with classes"):
        predict(model, pictures)
