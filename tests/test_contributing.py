"""Where things go, as CONTRIBUTING.md says it: each is done once in a copy of the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import mimonets

SOURCE = Path(mimonets.__file__).parent

MODEL = '''"""A network with one hidden layer."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mimonets._config import Config, size
from mimonets.models.base import ImageModel
from mimonets.vsa import check_active_streams


@dataclass(frozen=True, kw_only=True)
class ShallowConfig(Config):
    """One hidden layer."""

    hidden: int = size(8)
    in_channels: int = size(1)
    image_size: int = size(8)
    num_classes: int = size(10)


class Shallow(ImageModel):
    """One hidden layer."""

    kind = "shallow"
    config_class = ShallowConfig

    def __init__(self, config: ShallowConfig) -> None:
        super().__init__(config)
        pixels = config.in_channels * config.image_size**2
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(pixels, config.hidden), nn.ReLU(),
            nn.Linear(config.hidden, config.num_classes),
        )

    def forward(self, images: Tensor, active_streams: int | None = None) -> Tensor:
        self.check_images(images)
        check_active_streams(active_streams, 1)
        return self.layers(images)
'''
RECIPE = """# Stripes, lying or standing.
model: {kind: shallow, num_classes: 2}
data: {name: stripes}
augment: {padding: 0, flip: false}
train: {epochs: 2, batch_size: 16, mixup: 0, lr: 0.1, evaluate_every: 0, threads: 1}
variants:
  shallow: {}
"""
DATA = '''"""Stripes, lying or standing."""

import torch

from mimonets.data.config import DataConfig, DataSet
from mimonets.data.sets import ImageSet, Splits


def load_stripes(config: DataConfig) -> Splits[ImageSet]:
    """Draw them."""
    lying = torch.zeros(8, 8, dtype=torch.uint8)
    lying[::2] = 200
    images = torch.stack([lying, lying.T] * 32).unsqueeze(1)
    labels = torch.tensor([0, 1] * 32)
    return Splits(ImageSet(images, labels, 2, "stripes"), None, ImageSet(images, labels, 2, "x"))


STRIPES = DataSet(
    name="stripes", load=load_stripes, kind="images", class_names=("lying", "standing")
)
'''
FEATURES = '''

class SquareFeatures(FeatureMap):
    """phi(x) = x^2: positive, and as many features as dimensions."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_features = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.square() + 1e-3
'''
BINDING = '''"""Bind by permuting the feature maps: no products at all."""

import torch
from torch import Generator, Tensor

from mimonets.bindings.binding import Binding, BindingSettings
from mimonets.vsa import stream_assignment


class PermutationBinding(Binding):
    """Permute the features of every stream in its own order, and add the streams up."""

    summary = "a permutation of the features per stream"
    orders: Tensor

    def __init__(self, orders: Tensor) -> None:
        super().__init__()
        self.register_buffer("orders", orders)
        self.num_streams = len(orders)

    @classmethod
    def make(
        cls, settings: BindingSettings, generator: Generator | None = None
    ) -> "PermutationBinding":
        """Draw an order per stream."""
        drawn = torch.rand(settings.num_streams, settings.bound_maps, generator=generator)
        return cls(drawn.argsort(dim=1))

    def forward(self, x: Tensor, active_streams: int | None = None) -> Tensor:
        """Permute and add up."""
        x = x[:, stream_assignment(x.shape[1], self.num_streams, x.device)]
        return sum(x[:, k].index_select(1, order) for k, order in enumerate(self.orders))
'''
USES_BINDING = """
import sys, torch, mimonets as mn
from fastapi.testclient import TestClient
from torch import nn
from mimonets.cli.main import make_parser
from mimonets.cli.serve import make_server
from mimonets.serving.app import make_app
from mimonets.training import TrainConfig, train

IMAGES, LABELS = torch.randn(16, 1, 8, 8), torch.arange(16) % 10


def network():
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 10))


size = {"depth": 10, "width": 1, "in_channels": 1, "image_size": 8, "num_classes": 10}
conv = mn.MIMOConv(mn.MIMOConvConfig(**size, num_streams=2, binding="permutation"))
where = {"bind_after": "0", "unbind_before": "5", "binding": "permutation"}
own = mn.superpose(network(), num_streams=2, example=IMAGES[:1], **where)
assert "a permutation of the features per stream" in own.summary
for name, model in {"conv": conv, "own": own}.items():
    config = TrainConfig(epochs=1, steps=2, batch_size=4, mixup=0.0, threads=1, evaluate_every=0)
    data = torch.utils.data.TensorDataset(IMAGES, LABELS)
    found = train(model, torch.utils.data.DataLoader(data, 8), config, run_dir=f"{name}-run")
    assert found.steps == 2
    model.eval()
    with model.warming_up("solo") if name == "conv" else torch.no_grad():
        assert model(IMAGES[:3]).isfinite().all()
    rebuilt = {} if name == "conv" else {"network": network()}
    model = mn.load(f"{name}-run/model", **rebuilt)
    model.input_spec = model.default_input_spec()
    mn.export(model, name, measure=False)
    engine = mn.Engine(name, backend="onnxruntime")
    for active in (1, 2):
        wanted = model(IMAGES[:5], active_streams=active).detach()
        answers = torch.as_tensor(engine(IMAGES[:5].numpy(), active_streams=active))
        torch.testing.assert_close(answers, wanted, rtol=1e-4, atol=1e-4)
    server = make_server(make_parser().parse_args(["serve", name, "--slo-ms", "20000"]))
    tensor = {"name": "input", "datatype": "FP32", "shape": [2, 1, 8, 8]}
    tensor["data"] = IMAGES[:2].flatten().tolist()
    with TestClient(make_app(server), base_url="http://localhost") as client:
        answer = client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    print(name, "is served")
"""
PLAN = """order: 99
source: "ours: stripes"
title: Stripes
effort: seconds
trials:
  - {title: shallow, recipe: stripes-shallow, seeds: 2}
"""


class Copy:
    """A copy of the package, and which of its files were touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "src" / "mimonets"
        shutil.copytree(SOURCE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        self.touched: set[str] = set()

    def write(self, path: str, text: str) -> None:
        self.touched.add(path)
        (self.package / path).write_text(text)

    def change(self, path: str, old: str, new: str) -> None:
        text = (self.package / path).read_text()
        assert text.count(old) == 1, (path, old)
        self.write(path, text.replace(old, new))

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def mimonets(self, *arguments: str) -> str:
        return self.run("-m", "mimonets.cli.main", *arguments)


def add_data(copy: Copy) -> None:
    copy.write("data/images/stripes.py", DATA)
    copy.change(
        "data/registry.py",
        "from mimonets.data.images.augment",
        "from mimonets.data.images.stripes import STRIPES\nfrom mimonets.data.images.augment",
    )
    copy.change("data/registry.py", "*(own.FOLDER, own.NPZ),", "*(own.FOLDER, own.NPZ, STRIPES),")


def add_model(copy: Copy) -> None:
    copy.write("models/shallow.py", MODEL)
    copy.change(
        "models/registry.py",
        "from mimonets.models.mimoconv import MIMOConv\nfrom mimonets.models.mimoformer",
        "from mimonets.models.mimoconv import MIMOConv\n"
        "from mimonets.models.shallow import Shallow\nfrom mimonets.models.mimoformer",
    )
    copy.change("models/registry.py", "*(WideResNet,", "*(Shallow, WideResNet,")
    copy.write("recipes/stripes.yaml", RECIPE)


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


@pytest.mark.slow
def test_a_model_a_data_set_and_an_experiment(copy):
    add_data(copy)
    assert len(copy.touched) == 2
    copy.touched.clear()
    add_model(copy)
    assert len(copy.touched) == 3
    copy.touched.clear()
    copy.write("experiments/plans/stripes.yaml", PLAN)
    assert len(copy.touched) == 1

    copy.mimonets("train", "stripes-shallow", "--out", "run")
    assert "100.00%" in copy.mimonets("evaluate", "run")
    assert "shallow" in copy.mimonets("reproduce", "stripes")
    assert "0.0" in copy.mimonets("cost", "stripes-shallow")


def test_a_feature_map(copy):
    features = (copy.package / "attention/features.py").read_text()
    copy.write("attention/features.py", features + FEATURES)
    path = "models/baselines/transformer.py"
    copy.change(
        path, 'Literal["relu", "softmax", "dpfp"]', 'Literal["relu", "softmax", "dpfp", "square"]'
    )
    copy.change(
        path,
        '    if config.features == "dpfp":\n',
        '    if config.features == "square":\n        return SquareFeatures(config.head_dim)\n'
        '    if config.features == "dpfp":\n',
    )
    copy.change(
        path,
        "from mimonets.attention.modules",
        "from mimonets.attention.features import SquareFeatures\nfrom mimonets.attention.modules",
    )
    assert len(copy.touched) == 2
    code = (
        "import torch, mimonets as mn\n"
        "config = mn.MIMOFormerConfig(vocab_size=9, max_length=8, num_classes=3, depth=1,"
        " features='square')\n"
        "answers = mn.MIMOFormer(config).eval()(torch.randint(9, (5, 8)))\n"
        "assert answers.isfinite().all()\nprint(tuple(answers.shape))"
    )
    assert copy.run("-c", code).strip() == "(5, 3)"


@pytest.mark.slow  # two exports
def test_a_binding(copy):
    copy.write("bindings/permutation.py", BINDING)
    copy.change(
        "bindings/registry.py",
        "from mimonets.bindings.tiles import Tiles\n",
        "from mimonets.bindings.permutation import PermutationBinding\n"
        "from mimonets.bindings.tiles import Tiles\n",
    )
    copy.change(
        "bindings/registry.py",
        '    "tiles": Tiles,\n',
        '    "tiles": Tiles,\n    "permutation": PermutationBinding,\n',
    )
    assert len(copy.touched) == 2
    found = copy.run("-c", USES_BINDING)
    assert found.split("\n")[-3:-1] == ["conv is served", "own is served"]
