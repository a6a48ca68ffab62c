"""Every input alone in its stream: what the solo warm-up runs."""

import pytest
import torch
from torch.testing import assert_close

import mimonets as mn
from mimonets.layers import StreamBatchNorm, running


def warming_up(model, name, *inputs, **options):
    with model.warming_up(name):
        return model(*inputs, **options)


EXTENTS = ["attention", "attention+mlp", "attention+mlp+qkv"]


def former(grid=(2, 3), **settings):
    torch.manual_seed(0)
    size = {"vocab_size": 11, "max_length": 9, "num_classes": 3, "depth": 2, "heads": 2}
    size |= {"head_dim": 5, "dim": 6, "hidden_dim": 7, "dropout": 0.0, "num_features": 13}
    return mn.MIMOFormer(mn.MIMOFormerConfig(**(size | {"grid": grid} | settings)))


def one_stream_of(model, m, n):
    """The same weights, on a grid of one stream that has the keys of stream (m, n)."""
    alone = former(grid=(1, 1), superpose=model.config.superpose, causal=model.config.causal)
    alone.load_state_dict(
        {
            name: value[m : m + 1, n : n + 1] if name.endswith("_keys") else value
            for name, value in model.state_dict().items()
        }
    )
    return alone


def tokens_and_mask(batch):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(11, (batch, 9), generator=generator)
    lengths = torch.randint(1, 10, (batch, 1), generator=generator)
    return tokens, torch.arange(9) < lengths


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_each_answer_is_that_of_a_grid_of_one_with_its_streams_keys(extent, causal):
    model = former(superpose=extent, causal=causal).eval()
    # One stream alone has no damping; ReLU features feel it through their epsilon only.
    for module in model.modules():
        if hasattr(module, "damping"):
            module.damping = False
    tokens, mask = tokens_and_mask(12)
    answers = warming_up(model, "solo", tokens, mask=mask)
    for stream in range(6):
        alone = one_stream_of(model, *divmod(stream, 3)).eval()
        assert_close(answers[stream::6], alone(tokens[stream::6], mask=mask[stream::6]))


@pytest.mark.parametrize("warm_up", ["solo", "exact"])
@pytest.mark.parametrize("extent", EXTENTS)
def test_nobody_disturbs_anybody(extent, warm_up):
    model = former(superpose=extent).eval()
    tokens, mask = tokens_and_mask(12)
    changed = tokens.clone()
    changed[1:] = (changed[1:] + 1) % 11
    answers = warming_up(model, warm_up, tokens, mask=mask)
    assert_close(warming_up(model, warm_up, changed, mask=mask)[0], answers[0])
    assert not torch.allclose(model(changed, mask=mask)[0], model(tokens, mask=mask)[0])
    assert not torch.allclose(model(tokens, mask=mask)[0], answers[0])


def test_a_short_group_and_few_active_streams_answer_in_order():
    model = former().eval()
    tokens, mask = tokens_and_mask(7)
    answers = warming_up(model, "solo", tokens, mask=mask, active_streams=2)
    assert answers.shape == (7, 3)
    assert_close(
        warming_up(model, "solo", tokens[2:4], mask=mask[2:4], active_streams=2), answers[2:4]
    )


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_many_softmax_features_alone_come_near_to_exact(extent, causal):
    options = {"superpose": extent, "causal": causal, "features": "softmax", "damping": False}
    tokens, mask = tokens_and_mask(12)
    distance = []
    for count in (4, 20_000):
        model = former(num_features=count, **options).eval()
        exact = warming_up(model, "exact", tokens, mask=mask)
        distance.append(
            (warming_up(model, "solo", tokens, mask=mask) - exact).norm() / exact.norm()
        )
    assert distance[1] < 0.01 < distance[0]


def test_exact_is_the_transformer_with_the_same_weights():
    size = {"vocab_size": 11, "max_length": 9, "num_classes": 3, "depth": 2, "dropout": 0.0}
    transformer = mn.Transformer(mn.TransformerConfig(**size)).eval()
    tokens, mask = tokens_and_mask(12)
    for model in (
        mn.Performer(mn.PerformerConfig(**size)),
        mn.MIMOFormer(mn.MIMOFormerConfig(**size, grid=(2, 3))),
    ):
        model.load_state_dict(transformer.state_dict(), strict=False)
        found = warming_up(model.eval(), "exact", tokens, mask=mask)
        assert_close(found, transformer(tokens, mask=mask))


@pytest.mark.parametrize("active", [3, 2, 1])
def test_an_image_alone_has_the_pass_of_a_superposition_with_empty_others(active):
    torch.manual_seed(0)
    size = {"depth": 10, "width": 1, "in_channels": 1, "image_size": 8, "num_classes": 4}
    model = mn.MIMOConv(mn.MIMOConvConfig(**size, num_streams=3)).eval()
    images = torch.randn(7, 1, 8, 8)
    answers = warming_up(model, "solo", images, active_streams=active)
    for index, image in enumerate(images):
        first = index - index % active
        group = min(active, len(images) - first)
        streams = model.stem(image.unsqueeze(0)).new_zeros(1, group, *model.stem(images).shape[1:])
        streams[:, index - first] = model.stem(image.unsqueeze(0))
        with running(group):
            pooled = model.trunk(model.binding(streams))
        own = model.unbinding(pooled, group)[0, index - first]
        assert_close(answers[index], model.classifier(own))


@pytest.mark.parametrize("settings", [{}, {"binding": "tiles", "stem_stride": 2}], ids=str)
def test_a_short_group_of_images_alone_shares_one_pass_in_training(settings):
    size = {"depth": 10, "width": 1, "in_channels": 1, "image_size": 8, "num_classes": 4}
    model = mn.MIMOConv(mn.MIMOConvConfig(**size, **settings, num_streams=4))
    passes = []
    model.trunk.register_forward_pre_hook(lambda _, inputs: passes.append(len(inputs[0])))
    assert warming_up(model, "solo", torch.randn(7, 1, 8, 8)).shape == (7, 4)
    assert passes == [7]
    for norm in model.trunk.modules():
        if isinstance(norm, StreamBatchNorm):
            assert norm.batches_seen.tolist() == [0, 0, 0, 1]


def test_a_warm_up_ends_with_its_block_also_after_an_error():
    model = former()
    with model.warming_up("exact", grid=(1, 2)):
        with pytest.raises(ValueError, match="must be integers"), model.warming_up("solo"):
            model(torch.zeros(2, 3))
        assert (model.warm_up, model.smaller_grid) == ("exact", (1, 2))
    assert (model.warm_up, model.smaller_grid) == (None, None)


def test_a_warm_up_that_a_model_does_not_have_is_refused():
    conv = mn.MIMOConv(mn.MIMOConvConfig(depth=10, width=1))
    for model, name, known in (
        (former(), "alone", "choose from exact, solo"),
        (conv, "exact", "choose from solo"),
        (mn.Transformer(mn.TransformerConfig(depth=1)), "exact", "none"),
    ):
        with pytest.raises(ValueError, match=f"{name!r}: {known}"), model.warming_up(name):
            pass
    with (
        pytest.raises(ValueError, match="MIMOConv has no grid"),
        conv.warming_up(None, grid=(1, 1)),
    ):
        pass


@pytest.mark.slow  # traces a whole network
def test_compiled_and_wrapped_models_follow():
    model = former().eval()
    tokens, mask = tokens_and_mask(12)
    compiled = torch.compile(model, backend="aot_eager")
    wrapped = torch.nn.DataParallel(model)
    with torch.inference_mode():
        for name in ("solo", None, "exact", None):
            with model.warming_up(name):
                wanted = model(tokens, mask=mask)
                assert_close(wrapped(tokens, mask=mask), wanted)
                assert_close(compiled(tokens, mask=mask), wanted, rtol=1e-4, atol=1e-5)
