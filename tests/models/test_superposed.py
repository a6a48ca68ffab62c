"""Any network takes several inputs: superpose() on plain, residual and attention networks."""

import copy
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import mimonets as mn
from mimonets.bindings.insertion import FoldMask
from mimonets.evaluation import count_macs
from mimonets.layers import StreamBatchNorm
from mimonets.models import MultipleInput
from mimonets.models.surgery import SuperposedConfig, insert, probe_inputs
from models.own_networks import Residual, plain_cnn, superposed_cnn


class Encoder(nn.Module):
    """A BERT-like encoder whose layers take the mask of every sequence beside their features."""

    def __init__(self, dim=16, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(11, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 2, 32, dropout=0.0, batch_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(dim, 4)

    def forward(self, tokens, attention_mask=None):
        x = self.embedding(tokens)
        padding = torch.zeros(tokens.shape) if attention_mask is None else ~attention_mask * -1e9
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=padding)
        return self.head(x[:, 0])


def test_as_many_answers_as_inputs_in_every_mode_and_for_every_batch_size():
    model = superposed_cnn().eval()
    assert isinstance(model, MultipleInput)
    for size in (1, 2, 3, 4, 7):
        for active in (None, 1, 2, 3):
            assert model(torch.randn(size, 1, 9, 9), active_streams=active).shape == (size, 7)


@pytest.mark.parametrize("wish", [True, False])
@pytest.mark.parametrize("binding", ["hrr", "hadamard", "matrix"])
def test_keys_are_trained_if_wished_but_signs_never(binding, wish):
    model = superposed_cnn(binding=binding, trainable_keys=wish)
    keys = model.network[2].binding.stream_keys
    assert keys.requires_grad == (wish and binding != "hadamard")


@pytest.mark.parametrize("binding", ["hrr", "hadamard", "matrix"])
@pytest.mark.parametrize("readout", ["shared", "stream"])
def test_it_is_stem_binding_trunk_unbinding_and_head(binding, readout):
    model = superposed_cnn(binding=binding, readout=readout).eval()
    x = torch.randn(6, 1, 9, 9)
    net = model.network
    stem = net[1](net[0](x)).relu()
    wrapped = net[2]
    matrices = wrapped.binding.as_matrices(wrapped.binding.stream_keys)  # s d d
    sums = [
        sum(torch.einsum("ij,jhw->ihw", matrices[k], stem.relu()[3 * g + k]) for k in range(3))
        for g in range(2)
    ]
    trunk = net[5](net[4](net[3](torch.stack(sums)))).mean(dim=(2, 3))
    per_stream = net[8].unbinding
    features = torch.stack(
        [per_stream.weight[i % 3] @ trunk[i // 3] + per_stream.bias[i % 3] for i in range(6)]
    )
    wanted = features if readout == "stream" else net[8].module(features)
    assert_close(model(x), wanted, rtol=1e-4, atol=1e-5)


def test_an_answer_depends_on_its_own_group_only():
    model = superposed_cnn().eval()
    x = torch.randn(6, 1, 9, 9)
    changed = x.clone()
    changed[3:] = torch.randn(3, 1, 9, 9)
    assert_close(model(changed)[:3], model(x)[:3])
    assert not torch.allclose(model(changed)[3:], model(x)[3:])


def test_left_over_inputs_are_answered_in_the_mode_of_their_number():
    model = superposed_cnn().eval()
    x = torch.randn(5, 1, 9, 9)
    assert_close(model(x)[3:], model(x[3:], active_streams=2))


def test_a_superposed_wide_resnet_is_a_mimoconv():
    config = {"depth": 10, "width": 1, "in_channels": 1, "num_classes": 10, "image_size": 12}
    streams = {"num_streams": 3, "initial_width": 1}
    conv = mn.MIMOConv(mn.MIMOConvConfig(**config, **streams)).eval()
    net = mn.WideResNet(mn.WideResNetConfig(**config, activation="prelu", final_norm=False))
    mine = mn.superpose(
        net, num_streams=3, bind_after="stem", unbind_before="classifier", unbinding_relu=True
    ).eval()
    names = {
        "stem.": "network.stem.module.",
        "binding.": "network.stem.binding.",
        "trunk.": "network.trunk.",
        "unbinding.": "network.classifier.unbinding.",
        "classifier.": "network.classifier.module.",
    }
    weights = {
        next(new + name.removeprefix(old) for old, new in names.items() if name.startswith(old)): w
        for name, w in conv.state_dict().items()
    }
    mine.load_state_dict(weights)
    for size, active in ((6, 3), (6, 2), (4, 1), (3, None)):
        images = torch.randn(size, 1, 12, 12)
        assert torch.equal(mine(images, active_streams=active), conv(images, active_streams=active))
    assert torch.allclose(mine(images[:2]), conv(images[:2]), atol=1e-6)  # a short group
    assert mine.train()(images).shape == (3, 10)


def test_batch_norms_of_the_trunk_get_statistics_per_mode_and_those_before_do_not():
    model = superposed_cnn()
    kinds = {name: type(module) for name, module in model.network.named_modules()}
    assert kinds["1"] is nn.BatchNorm2d
    assert kinds["4"] is StreamBatchNorm
    assert mn.recalibrate(model, [torch.randn(6, 1, 9, 9)]) == [1, 2, 3]


def test_an_identity_start_leaves_a_pretrained_network_nearly_as_it_was_in_slow_mode():
    network = plain_cnn().eval()
    images = torch.randn(4, 1, 9, 9)
    before = network(images)
    model = mn.superpose(
        copy.deepcopy(network),
        num_streams=2,
        bind_after="2",
        unbind_before="8",
        binding="matrix",
        identity_start=True,
        example=images,
    ).eval()
    away = (model(images, active_streams=1) - before).norm() / before.norm()
    assert away < 0.3
    random = mn.superpose(
        network, num_streams=2, bind_after="2", unbind_before="8", binding="matrix", example=images
    ).eval()
    assert (random(images, active_streams=1) - before).norm() / before.norm() > 2 * away


def test_masks_of_a_group_are_joined_for_the_trunk():
    torch.manual_seed(0)
    model = mn.superpose(
        Encoder(),
        num_streams=2,
        bind_after="layers.0",
        unbind_before="head",
        binding="hadamard",
        example=torch.randint(11, (1, 6)),
    ).eval()
    tokens = torch.randint(11, (4, 6))
    mask = torch.ones(4, 6, dtype=torch.bool)
    mask[0, 4:] = False
    mask[1, 4:] = False
    answers = model(tokens, attention_mask=mask)
    assert answers.shape == (4, 4)
    other = tokens.clone()
    other[:2, 4:] = (other[:2, 4:] + 1) % 11  # padding of both inputs of the first group
    assert_close(model(other, attention_mask=mask)[2:], answers[2:])
    # Bound in layer 0, the padding of these tokens is in the sum, but no layer attends to it.
    assert_close(model(other, attention_mask=mask)[:2], answers[:2], rtol=1e-3, atol=1e-3)


def test_a_padding_mask_of_pytorch_is_true_where_all_inputs_of_a_group_are_padded():
    mask = torch.tensor([[False, True, True], [False, False, True]])
    for name, wanted in (
        ("src_key_padding_mask", [[False, False, True]]),
        ("attention_mask", [[False, True, True]]),
    ):
        hiding = ("src_key_padding_mask",)
        fold = FoldMask(nn.Identity(), {1: name}, num_streams=2, hiding=hiding)
        assert fold.fold(mask, name).tolist() == wanted
    assert fold.fold(mask[:1], name).tolist() == mask[:1].tolist(), "one for all inputs"
    with pytest.raises(ValueError, match=r"attention_mask of shape \(3, 3\) does not fit groups"):
        fold.fold(mask[[0, 0, 1]], name)
    added = torch.where(mask, -torch.inf, 0.0)
    assert fold.fold(added, name).tolist() == [[0.0, 0.0, -torch.inf]]


def test_no_mask_may_be_given_to_any_network():
    images = torch.randn(2, 1, 8, 8)
    model = mn.superpose(
        Residual(), num_streams=2, bind_after="stem", unbind_before="head", example=images
    ).eval()
    assert torch.equal(model(images, mask=None), model(images))
    with pytest.raises(ValueError, match="Residual takes no mask"):
        model(images, mask=torch.ones(2, 8, dtype=torch.bool))


def test_one_of_our_models_that_is_refused_stays_as_it_was(tmp_path):
    network = mn.WideResNet(mn.WideResNetConfig(depth=10, width=1)).eval()
    images = network.example_inputs(2)
    before = network(images)
    where = {"bind_after": "trunk.blocks.0.conv1", "unbind_before": "classifier"}
    with pytest.raises(ValueError, match="meets the superposition"):
        mn.superpose(network, num_streams=4, example=images, **where)
    assert torch.equal(mn.load(mn.save(network, tmp_path / "model"))(images), before)


def test_settings_of_matrices_are_not_for_classifiers():
    with pytest.raises(ValueError, match="unbinding_relu and identity_start are for readout="):
        SuperposedConfig(readout="stream", unbinding_relu=True)


class Attending(nn.Module):
    """Every input brings its own boolean mask, as PyTorch's attention takes it: True is hidden."""

    def __init__(self, real: bool):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.real = real
        self.attention = Masked(real)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, mask=None):
        x = self.embedding(tokens)
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
        x = self.attention(x, (mask if self.real else ~mask)[:, None, :])
        return self.head(x.mean(dim=1))


class Masked(nn.Module):
    def __init__(self, real: bool):
        super().__init__()
        self.real = real

    def forward(self, x, attn_mask):
        attn_mask = attn_mask if self.real else ~attn_mask
        return (x @ x.mT).masked_fill(~attn_mask, -torch.inf).softmax(dim=-1) @ x


@pytest.mark.parametrize("real", [True, False])
def test_the_trial_tells_what_a_boolean_mask_means_by_true(real):
    torch.manual_seed(0)
    tokens = torch.randint(11, (2, 5))
    model = mn.superpose(
        Attending(real),
        num_streams=2,
        bind_after="embedding",
        unbind_before="head",
        binding="hadamard",
        example=tokens,
    ).eval()
    mask = torch.tensor([[True, True, False, False, False], [True, True, True, True, False]])
    answers = model(tokens, mask=mask)
    for place, seen in ((2, True), (3, True), (4, False)):  # real in one of the two, or in none
        mask_more = mask.clone()
        mask_more[0, place] = True
        same = torch.equal(model(tokens, mask=mask_more), answers)
        assert same is seen, place


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.attention = Masked(real=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        size = tokens.shape[1]
        mask = torch.ones(size, size, dtype=torch.bool).tril()  # shared by all inputs
        return self.head(self.attention(self.embedding(tokens), mask).mean(dim=1))


@pytest.mark.parametrize("length", range(3, 12))
def test_a_mask_that_all_inputs_share_is_never_taken_for_one_of_each(length):
    tokens = torch.randint(11, (3, length))
    where = {"bind_after": "embedding", "unbind_before": "head", "binding": "hadamard"}
    model = mn.superpose(Causal(), num_streams=2, example=tokens, **where)
    assert model(tokens).shape == (3, 3)


class Pair(NamedTuple):
    side: str
    maps: torch.Tensor


class NamedStem(nn.Conv2d):
    def forward(self, x):
        return Pair("as it was", super().forward(x))


def test_a_module_may_give_a_named_tuple():
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.trunk, self.head = NamedStem(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Flatten()

        def forward(self, x):
            found = self.stem(x)
            assert found.side == "as it was"
            return self.head(self.trunk(found.maps))

    images = torch.randn(4, 1, 8, 8)
    where = {"bind_after": "stem", "unbind_before": "head"}
    assert mn.superpose(Network(), num_streams=2, example=images, **where)(images).shape[0] == 4


@pytest.mark.parametrize(
    ("module", "message"), [("first", "meets the superposition"), ("second", "never called|meets")]
)
def test_a_network_that_is_refused_stays_as_it_was(module, message):
    torch.manual_seed(0)
    network, images = Residual().eval(), torch.randn(3, 1, 8, 8)
    before, modules = network(images), [name for name, _ in network.named_modules()]
    with pytest.raises(ValueError, match=message):
        mn.superpose(
            network, num_streams=2, bind_after=module, unbind_before="head", example=images
        )
    where = {"bind_after": "stem", "unbind_before": "first", "readout": "stream"}
    with pytest.raises(ValueError, match="readout='stream'"):
        mn.superpose(network, num_streams=2, example=images, **where)
    assert [name for name, _ in network.named_modules()] == modules
    assert torch.equal(network(images), before)
    mn.superpose(network, num_streams=2, bind_after="stem", unbind_before="head", example=images)


def test_one_number_for_a_whole_batch_is_no_answer():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = plain_cnn()

        def forward(self, images):
            return self.network(images).mean()

    example = torch.randn(2, 1, 9, 9)
    for streams in (1, 2):
        with pytest.raises(ValueError, match="one number for the whole batch"):
            mn.superpose(Loss(), num_streams=streams, example=example)


@pytest.mark.parametrize(("change", "what"), [
    (lambda answers: None, "gives a NoneType, and"),
    (lambda answers: 5, "gives a int, and"),
    (lambda answers: (), "gives a tuple, and"),
    (lambda answers: (answers, None), "gives a tuple with a NoneType in it"),
    (lambda answers: [answers, answers.mean()], "gives a tuple with a Tensor in it"),
])  # fmt: skip
def test_a_network_that_gives_no_tensors_is_refused_in_a_sentence(change, what):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = plain_cnn()

        def forward(self, images):
            return change(self.network(images))

    with pytest.raises(ValueError, match=what):
        mn.superpose(Odd(), num_streams=2, example=torch.randn(2, 1, 9, 9))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "compile", [torch.jit.script, lambda net: torch.jit.trace(net, torch.randn(1, 1, 9, 9))]
)
def test_networks_of_torch_jit_are_refused_in_a_sentence(compile):
    network = compile(plain_cnn().eval())
    with pytest.raises(ValueError, match="modules that torch.jit made.* as it was before"):
        mn.superpose(network, num_streams=2, example=torch.randn(1, 1, 9, 9))


def test_a_batch_norm_under_two_names_is_replaced_under_both():
    norm = nn.BatchNorm2d(8)

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(1, 8, 3)
            self.norm = norm
            self.block = nn.Sequential(nn.Conv2d(8, 8, 3), norm)
            self.head = nn.Flatten()

        def forward(self, x):
            return self.head(self.block(self.stem(x)))

    where = {"bind_after": "stem", "unbind_before": "head"}
    model = mn.superpose(Shared(), num_streams=2, example=torch.randn(1, 1, 8, 8), **where)
    kinds = {type(one) for _, one in model.named_modules(remove_duplicate=False)}
    assert nn.BatchNorm2d not in kinds
    assert model.network.norm is model.network.block[1]


@pytest.mark.parametrize("training", [True, False])
def test_what_is_put_in_trains_or_not_as_the_network_does(training):
    network = plain_cnn().train(training)
    network[4].eval()  # frozen statistics
    model = mn.superpose(
        network,
        num_streams=2,
        bind_after="2",
        unbind_before="8",
        example=torch.randn(1, 1, 9, 9),
    )
    flags = {name: module.training for name, module in model.named_modules()}
    assert flags.pop("network.4") is False
    assert set(flags.values()) == {training}


@pytest.mark.parametrize(
    "settings",
    [
        {"binding": "hrr"},
        {"binding": "hadamard"},
        {"binding": "matrix", "identity_start": True},
        {"binding": "hrr", "readout": "stream"},
    ],
)
def test_what_is_put_in_lies_where_the_network_does(settings):
    where = {"num_streams": 4, "bind_after": "2", "unbind_before": "8", **settings}
    network = plain_cnn().to("meta")
    inputs = probe_inputs(network, torch.randn(1, 1, 9, 9), 4)
    insert(network, SuperposedConfig(**where), inputs, None)
    weights = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    assert {name for name, value in weights.items() if not value.is_meta} == set()


def test_three_parts_are_a_network_too(tmp_path):
    def three():
        return nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3), nn.Sequential(nn.Flatten())

    images = torch.randn(3, 1, 8, 8)
    model = mn.superpose(three(), num_streams=2, example=images).eval()
    assert model(images).shape == (3, 128)
    assert (model.config.bind_after, model.config.unbind_before) == ("stem", "head")
    found = mn.load(mn.save(model, tmp_path / "x"), network=three())
    assert torch.equal(found(images), model(images))


def test_its_cost_is_counted_by_part_and_equals_the_operator_counter():
    model = superposed_cnn().eval()
    cost = count_macs(model)
    assert {part.name for part in cost.parts} == {"stem", "binding", "trunk", "unbinding", "head"}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(model.example_inputs(3))
    assert cost.plain == pytest.approx(counter.get_total_flops() / 2 / 3)
    assert count_macs(model, 1)["trunk"].plain == 3 * cost["trunk"].plain


def test_gradients_reach_every_part():
    model = superposed_cnn().train()
    model(torch.randn(7, 1, 9, 9)).square().sum().backward()  # seven: the last group is filled up
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
