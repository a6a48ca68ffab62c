"""A superposed network is saved, and loaded with the network or its builder."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mimonets as mn
from mimonets.evaluation import count_macs
from mimonets.models import builders
from mimonets.training import train
from training.tiny import TinyBatches, tiny_config

EXAMPLE = torch.randn(1, 1, 9, 9)


def make_cnn(maps=8):
    return nn.Sequential(
        nn.Conv2d(1, maps, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(maps, 12, 3, stride=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 5),
    )


@pytest.fixture(autouse=True)
def _no_builders(monkeypatch):
    monkeypatch.setattr(builders, "BUILDERS", {})


def superposed(network=None, **settings):
    settings = {"num_streams": 2, "bind_after": "1", "unbind_before": "7", **settings}
    model = mn.superpose(network, example=EXAMPLE, **settings)
    model.train()(torch.randn(8, 1, 9, 9))  # statistics of their own
    return model.eval()


def built(**settings):
    mn.register_builder("cnn")(make_cnn)
    return superposed(builder="cnn", builder_settings={"maps": 6}, **settings)


def test_a_network_passed_to_load_gets_the_saved_weights(tmp_path):
    model = superposed(make_cnn())
    model.input_spec = model.default_input_spec()
    network = make_cnn()
    found = mn.load(mn.save(model, tmp_path / "x"), network=network)
    assert found.network is network
    assert not found.training
    assert (found.config, found.input_spec) == (model.config, model.input_spec)
    images = torch.randn(5, 1, 9, 9)
    for active in (1, 2):
        assert torch.equal(
            found(images, active_streams=active), model(images, active_streams=active)
        )
    assert found.example_inputs(3).shape == (3, 1, 9, 9)


def test_a_registered_builder_needs_no_network(tmp_path):
    model = built(binding="matrix", readout="stream")
    found = mn.load(mn.save(model, tmp_path / "x"))
    images = torch.randn(5, 1, 9, 9)
    assert torch.equal(found(images), model(images))
    saved = json.loads((tmp_path / "x/config.json").read_text())
    assert (saved["format_version"], saved["model"]) == (2, "superposed")
    assert saved["config"]["builder_settings"] == {"maps": 6}


def test_loading_calls_no_code_that_was_not_registered_here(tmp_path):
    folder = mn.save(built(), tmp_path / "x")
    builders.BUILDERS.clear()
    with pytest.raises(
        ValueError, match="is not registered in this process.*or pass network="
    ) as e:
        mn.load(folder)
    assert "\n" not in str(e.value)
    with pytest.raises(ValueError, match="is not registered in this process"):
        superposed(builder="os.system", builder_settings={"command": "true"})


def test_weights_that_are_shared_in_the_network_are_shared_after_loading(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(7, 6)
            self.trunk = nn.Linear(6, 6)
            self.out = nn.Linear(6, 7, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, tokens):
            return self.out(self.trunk(self.embedding(tokens)).mean(dim=1))

    settings = {"num_streams": 2, "bind_after": "embedding", "unbind_before": "out"}
    tokens = torch.randint(7, (4, 3))
    model = mn.superpose(Tied(), example=tokens, **settings).eval()
    found = mn.load(mn.save(model, tmp_path / "x"), network=Tied())
    assert torch.equal(found(tokens), model(tokens))
    assert found.network.out.module.weight is found.network.embedding.module.weight
    assert found.example_inputs(2).max() < 7


def test_half_precision_comes_back_as_it_was(tmp_path):
    model = superposed(make_cnn()).to(torch.bfloat16)
    found = mn.load(mn.save(model, tmp_path / "x"), network=make_cnn())
    assert {p.dtype for p in found.parameters()} == {torch.bfloat16}


def refusals(folder):
    def edit(**changes):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    yield "without a builder: load it from Python and pass network=", lambda: mn.load(folder)
    yield (
        "do not fit the network= that was given",
        lambda: mn.load(folder, network=make_cnn(maps=4)),
    )
    yield "already superposed", lambda: mn.load(folder, network=superposed(make_cnn()).network)
    yield "names no module", lambda: mn.load(folder, network=nn.Sequential(nn.Flatten()))
    for example in (None, [1], {"shape": [1, -9, 9], "dtype": "float32"}, {"shape": "x"}):
        edit(example=example)
        yield "no description of inputs", lambda: mn.load(folder, network=make_cnn())
    edit(example={"shape": [10**6, 10**6], "dtype": "float32"})
    yield "is too large", lambda: mn.load(folder, network=make_cnn())
    edit(example={"shape": [3], "dtype": "int64", "values": [1, 2]})
    yield "do not fit its shape", lambda: mn.load(folder, network=make_cnn())
    edit(config={"num_streams": 2, "bind_after": 3})
    yield "must be the name of a module", lambda: mn.load(folder, network=make_cnn())


class WithBuffers(nn.Module):
    """A causal mask with -inf, and a table in another precision."""

    def __init__(self):
        super().__init__()
        self.stem, self.trunk, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("causal", torch.full((5, 5), -torch.inf).triu(1))
        self.register_buffer("table", torch.rand(5, dtype=torch.float64))

    def forward(self, x):
        x = self.causal.softmax(dim=-1) @ self.stem(x) * self.table.float()[:, None]
        return self.head(self.trunk(x).mean(dim=1))


def test_what_is_infinite_or_in_double_precision_by_design_comes_back(tmp_path):
    where = {"num_streams": 2, "bind_after": "stem", "unbind_before": "trunk"}
    tokens = torch.randn(3, 5, 4)
    model = mn.superpose(WithBuffers(), example=tokens, **where).eval()
    mn.save(model, tmp_path / "m")
    again = mn.load(tmp_path / "m", network=WithBuffers())
    assert torch.equal(again(tokens), model(tokens))
    assert again.network.table.dtype == torch.float64

    with torch.no_grad():
        model.network.trunk.module.weight[0, 0] = torch.inf
    mn.save(model, tmp_path / "broken")
    with pytest.raises(ValueError, match="infinite or not a number: network.trunk"):
        mn.load(tmp_path / "broken", network=WithBuffers())


def test_what_does_not_fit_is_refused_with_a_sentence_that_names_the_folder(tmp_path):
    folder = mn.save(superposed(make_cnn()), tmp_path / "x")
    for message, call in refusals(folder):
        with pytest.raises(ValueError, match=message) as error:
            call()
        assert str(folder) in str(error.value)
        assert "\n" not in str(error.value)
    conv = mn.MIMOConv(mn.MIMOConvConfig(depth=10, width=1, initial_width=1))
    with pytest.raises(ValueError, match="needs no network="):
        mn.load(mn.save(conv, tmp_path / "y"), network=make_cnn())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"builder": 3}, "must be the name of a registered builder"),
        ({"builder": "cnn", "builder_settings": {"maps": {1, 2}}}, "must be plain data"),
        ({"builder": "cnn", "builder_settings": {"sizes": (1, 2)}}, "must be plain data"),
        ({"builder_settings": {"maps": 3}}, "builder_settings are for a builder"),
        ({"builder": "cnn", "builder_settings": {"map": 3}}, "fails with these settings"),
        ({"builder": "cnm"}, "did you mean 'cnn'"),
        ({"builder": "number"}, "gives a int, no torch.nn.Module"),
        ({}, "needs a network, or builder="),
    ],
)
def test_wrong_builders_are_refused_when_superposing(settings, message):
    mn.register_builder("cnn")(make_cnn)
    mn.register_builder("number")(lambda: 3)
    with pytest.raises(ValueError, match=message):
        superposed(**settings)


def test_a_run_keeps_a_network_that_loads(tmp_path):
    torch.manual_seed(0)
    mn.register_builder("cnn")(make_cnn)
    model = mn.superpose(
        builder="cnn",
        num_streams=2,
        bind_after="1",
        unbind_before="7",
        example=next(TinyBatches().epoch(0))[0][:1],
    )
    config = tiny_config(epochs=1, mixup=0, fast_share=0.5)
    result = train(model, TinyBatches(), config, run_dir=tmp_path / "run")
    images = model.example_inputs(4)
    found = mn.load(result.model_dir)
    assert torch.equal(found(images), model.eval()(images))
    assert load_file(result.model_dir / "model.safetensors").keys() == model.state_dict().keys()


def test_the_network_itself_teaches_its_superposed_copy(tmp_path):
    torch.manual_seed(0)
    teacher = make_cnn()
    images = next(TinyBatches().epoch(0))[0]
    options = {"num_streams": 2, "bind_after": "1", "unbind_before": "7", "example": images[:1]}
    config = tiny_config(epochs=3, mixup=0, distill=1.0, lr=0.02)
    student = mn.superpose(copy.deepcopy(teacher), **options)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    result = train(student, TinyBatches(), config, run_dir=tmp_path / "a", teacher=teacher)
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    with pytest.raises(ValueError, match="Two teachers"):
        train(
            mn.superpose(copy.deepcopy(teacher), **options),
            TinyBatches(),
            tiny_config(teacher="slow", fast_share=0.5),
            run_dir=tmp_path / "b",
            teacher=teacher,
        )


def test_its_config_alone_is_no_network():
    with pytest.raises(ValueError, match="is more than its config: load it from Python"):
        count_macs(superposed(make_cnn()).config)


def test_one_stream_without_names_is_the_network_itself(tmp_path):
    network = make_cnn().eval()
    images = torch.randn(3, 1, 9, 9)
    wanted = network(images)
    model = mn.superpose(network, num_streams=1, example=EXAMPLE).eval()
    assert torch.equal(model(images), wanted)
    assert (model.title, float(model.stream_key_penalty())) == ("Sequential", 0.0)
    assert torch.equal(mn.load(mn.save(model, tmp_path / "x"), network=make_cnn())(images), wanted)
    two = mn.superpose(make_cnn(), num_streams=2, example=EXAMPLE)  # boundaries are found
    assert two.config.bind_after
    assert two.config.unbind_before
