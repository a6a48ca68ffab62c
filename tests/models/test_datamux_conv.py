import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import mimonets as mn
from mimonets.models.baselines.datamux_conv import FEATURES
from oracles import datamux_conv_by_hand


def network(**settings):
    torch.manual_seed(0)
    return mn.DataMUXConv(mn.DataMUXConvConfig(**{"num_streams": 3, **settings})).eval()


def images(count, *, channels=1, size=20, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, channels, size, size, generator=generator, dtype=dtype)


@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_every_mode_equals_the_loop_over_streams(active, batch):
    model = network(in_channels=2, mux_hidden=5, mux_maps=3, num_classes=4, image_size=23).double()
    x = images(batch, channels=2, size=23, dtype=torch.float64)
    assert_close(model(x, active_streams=active), datamux_conv_by_hand(model, x, active))


def test_gradients_equal_those_of_the_slow_version():
    model = network().double()
    x = images(5, dtype=torch.float64).requires_grad_()
    inputs = [x, *model.parameters()]
    fast = torch.autograd.grad(model(x, active_streams=2).square().sum(), inputs)
    slow = torch.autograd.grad(datamux_conv_by_hand(model, x, 2).square().sum(), inputs)
    assert_close(fast, slow)


@pytest.mark.parametrize("active", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("batch", [1, 3, 5, 17])
def test_as_many_answers_as_questions_in_every_mode(batch, active):
    answers = network(num_streams=4)(images(batch), active_streams=active)
    assert answers.shape == (batch, 10)
    assert answers.abs().max() < 1  # tanh at the output too


@pytest.mark.parametrize("active", [1, 2, 3, 4])
def test_a_group_is_answered_the_same_whatever_else_is_in_the_batch(active):
    model, x = network(num_streams=4), images(17)
    together = model(x, active_streams=active)
    for start in range(0, 17, active):
        group = slice(start, start + active)
        assert_close(model(x[group], active_streams=active), together[group])


@pytest.mark.parametrize("active", [1, 2, 3, 4])
def test_the_order_of_groups_does_not_matter(active):
    model, x = network(num_streams=4), images(12)
    order = torch.randperm(12 // active)

    def shuffled(rows):
        return rows.unflatten(0, (-1, active))[order].flatten(0, 1)

    answers = model(x, active_streams=active)
    assert_close(model(shuffled(x), active_streams=active), shuffled(answers))


def test_a_short_group_is_answered_in_the_mode_of_its_size():
    model, x = network(num_streams=4), images(6)
    assert_close(model(x)[4:], model(x[4:], active_streams=2))


def test_streams_have_weights_of_their_own():
    model, x = network(), images(3)
    assert not torch.allclose(model(x.flip(0)).flip(0), model(x), atol=1e-4)
    assert model.demultiplexing.linear.weight.shape == (3 * FEATURES, FEATURES)


def test_black_images_add_nothing_to_the_others():
    model, x = network(), images(3)
    alone = x.clone()
    alone[1:] = 0
    first = F.conv2d(alone[:1], model.multiplexing.layers[0].weight[:16], padding=1).tanh()
    second = F.conv2d(first, model.multiplexing.layers[2].weight[:8], padding=1).tanh()
    assert_close(model.multiplexing(alone.unsqueeze(0)), second)


def test_sizes_shrink_as_in_the_original():
    model = network()
    sizes = []
    for layer in model.trunk[:9]:
        layer.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    model(images(3))
    assert sizes[0::3] == [(10, 18, 18), (16, 6, 6), (120, 1, 1)]
    assert sizes[2:6:3] == [(10, 9, 9), (16, 3, 3)]


def test_other_sizes_are_refused_with_what_fits():
    with pytest.raises(ValueError, match="made for images of 20x20, but got 28x28: crop them"):
        network()(images(3, size=28))
    with pytest.raises(ValueError, match="image_size=19 must be an integer >= 20"):
        mn.DataMUXConvConfig(image_size=19)
    with pytest.raises(ValueError, match=r"\(batch, 1, height, width\)"):
        network()(images(3, channels=3))
    assert network(image_size=28)(images(2, size=28)).shape == (2, 10)


def test_export_gives_the_same_answers():
    model, x = network(), images(6)
    program = torch.export.export(model, (x,))
    assert_close(program.module()(images(6, seed=1)), model(images(6, seed=1)))


@pytest.mark.parametrize(("num_streams", "wanted"), [(1, 0.95), (2, 0.9)])
def test_it_learns_real_digits(num_streams, wanted):
    data = pytest.importorskip("sklearn.datasets").load_digits(n_class=3)
    x = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    x = F.interpolate(x, size=20, mode="bilinear")
    labels = torch.tensor(data.target)
    targets = 2.0 * F.one_hot(labels, 3) - 1
    model = network(num_streams=num_streams, num_classes=3).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        rows = torch.randint(400, (16 * num_streams,), generator=generator)
        optimizer.zero_grad()
        F.mse_loss(model(x[rows]), targets[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        right = model.eval()(x[400:]).argmax(dim=1) == labels[400:]
    assert right.float().mean() > wanted
