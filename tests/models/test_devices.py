"""No GPU is needed to notice a forgotten device: fake tensors and the meta device raise."""

import pytest
import torch

from fake_gpu import fake_gpu, move_to_fake_gpu
from mimonets import (
    DataMUXConv,
    DataMUXConvConfig,
    MIMOConv,
    MIMOConvConfig,
    WideIsoNet,
    WideIsoNetConfig,
    WideResNet,
    WideResNetConfig,
)

SMALL = {"depth": 10, "width": 1, "num_classes": 5}
MODELS = {
    "mimoconv": lambda: MIMOConv(MIMOConvConfig(**SMALL, initial_width=1, num_streams=3)),
    "slots": lambda: MIMOConv(
        MIMOConvConfig(**SMALL, num_streams=3, binding="matrix", stream_keys="slots")
    ),
    "wideresnet": lambda: WideResNet(WideResNetConfig(**SMALL, shortcut_norm=True)),
    "wideisonet": lambda: WideIsoNet(WideIsoNetConfig(**SMALL, activation="srelu")),
    "datamuxconv": lambda: DataMUXConv(DataMUXConvConfig(num_streams=3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_pass_in_every_mode_stays_on_the_gpu(name):
    with torch.device("meta"):
        model = MODELS[name]()
        shape = model.example_inputs(7).shape  # a short group at the end
    with fake_gpu():
        model = move_to_fake_gpu(model).eval()
        images = torch.empty(shape, device="cuda")
        for active in range(1, model.num_streams + 1):
            answers = model(images, active_streams=active)
            assert answers.device.type == "cuda"
            assert len(answers) == 7


@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_on_the_meta_device_asks_for_no_value(name):
    with torch.device("meta"):
        model = MODELS[name]().train()
        images = model.example_inputs(7)
    for active in range(1, model.num_streams + 1):
        loss = model(images, active_streams=active).square().mean()
        for penalty in ("isometry_penalty", "stream_key_penalty"):
            loss = loss + getattr(model, penalty, lambda: 0)()
        loss.backward()
    assert all(p.grad is not None and p.grad.is_meta for p in model.parameters())
    model.eval()(images)


def test_a_forgotten_device_is_noticed():
    with fake_gpu(), pytest.raises(RuntimeError, match="device"):
        torch.empty(2, 3, device="cuda")[:, 1] + torch.empty(2)
