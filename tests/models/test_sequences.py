"""All sequence models: masks, lengths, heads, modes, and what they refuse."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import mimonets as mn

SMALL = {
    "vocab_size": 11,
    "max_length": 9,
    "num_classes": 3,
    "depth": 2,
    "heads": 2,
    "head_dim": 5,
    "dim": 6,
    "hidden_dim": 7,
    "dropout": 0.0,
}
FEATURES = {"num_features": 13}
EXTENTS = ["attention", "attention+mlp", "attention+mlp+qkv"]


def mimoformer(**settings):
    torch.manual_seed(0)
    return mn.MIMOFormer(mn.MIMOFormerConfig(**{**SMALL, **FEATURES, "grid": (2, 3), **settings}))


def transformer(**settings):
    torch.manual_seed(0)
    return mn.Transformer(mn.TransformerConfig(**{**SMALL, **settings}))


def performer(**settings):
    torch.manual_seed(0)
    return mn.Performer(mn.PerformerConfig(**{**SMALL, **FEATURES, **settings}))


def datamux(**settings):
    torch.manual_seed(0)
    return mn.DataMUXFormer(mn.DataMUXFormerConfig(**{**SMALL, "num_streams": 3, **settings}))


MAKERS = {
    "transformer": transformer,
    "performer": performer,
    "datamux-index": datamux,
    "datamux-slots": lambda **s: datamux(demux="slots", **s),
    **{extent: lambda extent=extent, **s: mimoformer(superpose=extent, **s) for extent in EXTENTS},
}
every_model = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
every_extent = pytest.mark.parametrize("extent", EXTENTS)


def tokens_and_mask(batch=7, length=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(11, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    return tokens, torch.arange(length) < lengths[:, None]


@every_model
@pytest.mark.parametrize(
    "settings", [{}, {"pooling": "cls"}, {"positions": "fixed"}, {"causal": True}]
)
def test_what_stands_in_padded_places_changes_nothing(make, settings):
    model = make(**settings).eval()
    tokens, mask = tokens_and_mask()
    scribbled = torch.where(mask, tokens, (tokens + 3) % 11)
    assert_close(model(scribbled, mask=mask), model(tokens, mask=mask))


@every_model
def test_longer_padding_changes_nothing(make):
    model = make().eval()
    tokens, mask = tokens_and_mask(length=6)
    padded = nn.functional.pad(tokens, (0, 3))
    longer = nn.functional.pad(mask, (0, 3))
    assert_close(model(padded, mask=longer), model(tokens, mask=mask))


@every_model
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int16, torch.int32])
def test_token_ids_may_be_integers_of_any_size(make, dtype):
    model = make().eval()
    tokens, mask = tokens_and_mask()
    assert torch.equal(model(tokens.to(dtype), mask=mask), model(tokens, mask=mask))


@every_model
def test_the_activation_of_the_mlp_is_a_setting(make):
    tokens, _ = tokens_and_mask()
    gelu, relu = make().eval(), make(activation="relu").eval()
    assert not torch.equal(gelu(tokens), relu(tokens))
    for block in relu.blocks:
        block.mlp[1] = nn.GELU()
    assert torch.equal(gelu(tokens), relu(tokens))


@every_model
def test_a_setting_that_a_checkpoint_does_not_name_has_its_default(make, tmp_path):
    """Neither the config nor the copy beside the weights has it."""
    model = make().eval()
    folder = mn.save(model, tmp_path / "old")
    description = json.loads((folder / "config.json").read_text())
    assert description["config"].pop("activation") == "gelu"
    (folder / "config.json").write_text(json.dumps(description))
    weights = load_file(folder / "model.safetensors")
    metadata = {"mimonets": json.dumps(description["config"])}
    save_file(weights, folder / "model.safetensors", metadata=metadata)
    again = mn.load(folder)
    tokens, _ = tokens_and_mask()
    assert torch.equal(again(tokens), model(tokens))
    relu = {**description["config"], "activation": "relu"}
    (folder / "config.json").write_text(json.dumps({**description, "config": relu}))
    with pytest.raises(ValueError, match="belongs to another model.*activation"):
        mn.load(folder)


@every_model
def test_no_mask_means_all_tokens_are_real(make):
    model = make().eval()
    tokens, _ = tokens_and_mask()
    assert_close(model(tokens), model(tokens, mask=torch.ones_like(tokens, dtype=torch.bool)))


@every_model
def test_a_row_of_padding_has_a_finite_answer_and_disturbs_nobody(make):
    model = make().eval()
    tokens, mask = tokens_and_mask(batch=6)
    mask[5] = False
    answers = model(tokens, mask=mask)
    assert answers.isfinite().all()
    changed = tokens.clone()
    changed[5] = 0
    assert_close(model(changed, mask=mask), answers)


@every_model
def test_a_single_token_is_a_sequence(make):
    assert make().eval()(torch.tensor([[3], [4], [5]])).shape == (3, 3)


@every_model
def test_next_token_models_do_not_look_ahead(make):
    model = make(head="next_token", causal=True).eval()
    tokens, _ = tokens_and_mask()
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    before, after = model(tokens), model(changed)
    assert before.shape == (7, 9, 11)
    assert_close(after[:, :5], before[:, :5])
    assert not torch.allclose(after[:, 5:], before[:, 5:])


@every_model
def test_pairs_of_documents_get_one_answer(make):
    model = make(head="pair").eval()
    tokens, mask = tokens_and_mask(batch=10)
    pairs, masks = tokens.view(5, 2, 9), mask.view(5, 2, 9)
    answers = model(pairs, mask=masks)
    assert answers.shape == (5, 3)
    swapped = model(pairs.flip(1), mask=masks.flip(1))
    assert not torch.allclose(swapped, answers)  # x - y knows which is which


@every_model
def test_all_parameters_get_gradients(make):
    model = make(dropout=0.1)
    tokens, mask = tokens_and_mask()
    model(tokens, mask=mask).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@every_model
def test_a_model_comes_back_from_its_folder(make, tmp_path):
    model = make().eval()
    tokens, mask = tokens_and_mask()
    mn.save(model, tmp_path)
    found = mn.load(tmp_path)
    assert found.config == model.config
    assert_close(found(tokens, mask=mask), model(tokens, mask=mask), rtol=0, atol=0)


@every_model
@pytest.mark.parametrize(
    ("tokens", "mask", "message"),
    [
        (torch.zeros(2, 3, 4).long(), None, r"takes token ids \(batch, tokens\)"),
        (torch.zeros(2, 3), None, "must be integers, but got torch.float32: use .long"),
        (torch.zeros(0, 3).long(), None, "at least one sequence"),
        (torch.zeros(2, 0).long(), None, "at least one token"),
        (torch.zeros(2, 10).long(), None, "10 tokens are longer than max_length=9"),
        (torch.tensor([[3, 11]]), None, "between 3 and 11, but vocab_size=11 allows 0 to 10"),
        (torch.tensor([[3, -1]]), None, "between -1 and 3"),
        (torch.zeros(2, 3).long(), torch.ones(2, 4).bool(), r"\(batch, tokens\).*\(2, 3\)"),
        (torch.zeros(2, 3).long(), torch.ones(2, 3), "mask is boolean.*float32"),
    ],
)
def test_what_is_no_batch_of_sequences_is_refused(make, tokens, mask, message):
    with pytest.raises(ValueError, match=message):
        make()(tokens, mask=mask)


def test_pairs_must_be_pairs():
    with pytest.raises(ValueError, match=r"\(batch, 2, tokens\), but got \(4, 3, 5\)"):
        transformer(head="pair")(torch.zeros(4, 3, 5).long())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": "next_token"}, "set causal=True"),
        ({"pooling": "cls", "causal": True}, "use pooling='mean'"),
        ({"dropout": 1.0}, "dropout=1.0 must be a number >= 0 and < 1"),
        ({"embedding_std": 0.0}, "embedding_std=0.0 must be a number > 0"),
        ({"grid": (2, 0)}, r"grid=\(2, 0\) must be a list of 2, each an integer >= 1"),
        ({"grid": (2,)}, "a list of 2, each an integer >= 1"),
        ({"superpose": "mlp"}, "choose from attention, attention.mlp, attention.mlp.qkv"),
        ({"features": "elu"}, "choose from relu, softmax, dpfp"),
        ({"depth": 0, "heads": 0}, "depth=0 .* heads=0"),
    ],
)
def test_configs_refuse_nonsense(settings, message):
    with pytest.raises(ValueError, match=message):
        mimoformer(**settings)


# Superposition


@every_extent
def test_one_stream_is_a_performer(extent):
    one = mimoformer(grid=(1, 1), superpose=extent).eval()
    plain = performer().eval()
    # The same weights; bipolar keys of one stream are undone by unbinding, up to the skip's signs.
    state = {k: v for k, v in one.state_dict().items() if not k.endswith("_keys")}
    plain.load_state_dict(state)
    for block in one.blocks:
        for name in ("stream_keys", "embedding_keys"):
            for module in (block, block.attention):
                if name in dict(module.named_buffers(recurse=False)):
                    getattr(module, name).fill_(1.0)
    tokens, mask = tokens_and_mask()
    assert_close(one(tokens, mask=mask), plain(tokens, mask=mask))


def test_keys_of_one_stream_cancel_in_attention():
    one, plain = mimoformer(grid=(1, 1)).eval(), performer().eval()
    state = {k: v for k, v in one.state_dict().items() if not k.endswith("_keys")}
    plain.load_state_dict(state)
    for block in one.blocks:  # q and k are bound, so the random directions must be as well
        keys = block.attention.stream_keys[0, 0]
        assert set(keys.unique().tolist()) == {-1.0, 1.0}
        block.attention.stream_keys[0, 0] = keys[:1]  # the same signs for all heads
    for block, reference in zip(one.blocks, plain.blocks, strict=True):
        signs = block.attention.stream_keys[0, 0, 0]
        reference.attention.feature_map.projection.mul_(signs)
    tokens, mask = tokens_and_mask()
    assert_close(one(tokens, mask=mask), plain(tokens, mask=mask))


@every_extent
@pytest.mark.parametrize("active", [None, 1, 2, 4, 5, 6])
@pytest.mark.parametrize("batch", [1, 3, 5, 17])
def test_as_many_answers_as_questions_in_every_mode(extent, active, batch):
    model = mimoformer(superpose=extent).eval()
    tokens, mask = tokens_and_mask(batch=batch)
    assert model(tokens, mask=mask, active_streams=active).shape == (batch, 3)


@every_extent
@pytest.mark.parametrize("active", [1, 4, 6])
def test_a_group_is_answered_the_same_whatever_else_is_in_the_batch(extent, active):
    model = mimoformer(superpose=extent).eval()
    tokens, mask = tokens_and_mask(batch=17)
    together = model(tokens, mask=mask, active_streams=active)
    for start in range(0, 17, active):
        group = slice(start, start + active)
        alone = model(tokens[group], mask=mask[group], active_streams=active)
        assert_close(alone, together[group])


@every_extent
def test_a_short_group_is_answered_in_the_mode_of_its_size(extent):
    model = mimoformer(superpose=extent).eval()
    tokens, mask = tokens_and_mask(batch=8)
    rest = model(tokens[6:], mask=mask[6:], active_streams=2)
    assert_close(model(tokens, mask=mask)[6:], rest)


@every_extent
def test_slow_mode_averages_the_features_of_all_streams(extent):
    model = mimoformer(superpose=extent).eval()
    tokens, mask = tokens_and_mask(batch=1)
    x, _ = model.embedding(tokens, mask)
    x = x.expand(6, -1, -1).view(1, 2, 3, 9, 6)
    grid_mask = mask.expand(6, -1).view(1, 2, 3, 9)
    for block in model.blocks:
        x = block(x, grid_mask)
    features = model.summarise(x, grid_mask).flatten(0, 2).mean(dim=0, keepdim=True)
    assert_close(model(tokens, mask=mask, active_streams=1), model.readout(features))


@every_extent
def test_a_sub_grid_is_a_smaller_model_with_the_first_keys(extent):
    model = mimoformer(superpose=extent).eval()
    small = mimoformer(superpose=extent, grid=(1, 2)).eval()
    state = {k: v[:1, :2] if k.endswith("_keys") else v for k, v in model.state_dict().items()}
    small.load_state_dict(state)
    tokens, mask = tokens_and_mask()
    with model.warming_up(None, grid=(1, 2)):
        answers = model(tokens, mask=mask)
    assert_close(answers, small(tokens, mask=mask))


@pytest.mark.parametrize("grid", [(3, 3), (0, 1), (2,)])
def test_a_sub_grid_that_does_not_fit_is_refused(grid):
    model = mimoformer()
    with (
        pytest.raises(ValueError, match=r"does not fit a model with a grid of \(2, 3\)"),
        model.warming_up(None, grid=grid),
    ):
        pass


def superposed_mlp_by_hand(block, x):
    """One "attention+mlp" block, stream by stream. Section 4.2, without masks."""
    from mimonets.attention import favor_s

    groups, m, n = x.shape[:3]
    normed = block.norm1(x)
    q = block.split_heads(block.to_q(normed))
    k, v = (block.split_heads(part) for part in block.to_kv(normed).chunk(2, dim=-1))
    attention = block.attention
    superposed = favor_s(q, k, v, attention.stream_keys, attention.feature_map, normalise="joint")
    out = torch.empty_like(x)
    for g in range(groups):
        for j in range(n):
            heads = torch.cat(list(superposed[g, j]), dim=-1)
            y = block.out(heads)
            for i in range(m):
                y = y + x[g, i, j] * block.embedding_keys[i, j]
            y = y + block.mlp(block.norm2(y))
            for i in range(m):
                out[g, i, j] = y * block.embedding_keys[i, j]
    return out


def fully_superposed_by_hand(block, x):
    """One "attention+mlp+qkv" block, from sums over single streams, without masks."""
    groups, m, n = x.shape[:3]
    phi, keys = block.attention.feature_map, block.embedding_keys
    normed = block.norm1(x)
    scale = (m * n) ** -0.5
    size = block.to_q.out_features // block.heads
    out = torch.empty_like(x)
    for g in range(groups):
        q = [block.to_q(sum(normed[g, i, j] * keys[i, j] for i in range(m))) for j in range(n)]
        kv = [block.to_kv(sum(normed[g, i, j] * keys[i, j] for j in range(n))) for i in range(m)]
        for j in range(n):
            answers = []
            for h in range(block.heads):
                part = slice(h * size, (h + 1) * size)
                phi_q = phi(scale * q[j][:, part])
                top, bottom = 0, 0
                for i in range(m):
                    k, v = kv[i].chunk(2, dim=-1)
                    weights = phi_q @ phi(scale * k[:, part]).T
                    top = top + weights @ v[:, part]
                    bottom = bottom + weights.sum(dim=1, keepdim=True)
                answers.append(top / bottom)
            y = block.out(torch.cat(answers, dim=-1))
            y = y + sum(x[g, i, j] * keys[i, j] for i in range(m))
            y = y + block.mlp(block.norm2(y))
            for i in range(m):
                out[g, i, j] = y * keys[i, j]
    return out


@pytest.mark.parametrize(
    ("extent", "by_hand"),
    [("attention+mlp", superposed_mlp_by_hand), ("attention+mlp+qkv", fully_superposed_by_hand)],
)
def test_superposed_blocks_equal_their_equations_gradients_too(extent, by_hand):
    block = mimoformer(superpose=extent).double().blocks[0]
    x = torch.randn(2, 2, 3, 5, 6, dtype=torch.float64, requires_grad=True)
    inputs = [x, *block.parameters()]
    assert_close(block(x, None), by_hand(block, x))
    fast = torch.autograd.grad(block(x, None).square().sum(), inputs)
    slow = torch.autograd.grad(by_hand(block, x).square().sum(), inputs)
    assert_close(fast, slow)


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("features", ["relu", "softmax", "dpfp"])
def test_bf16_autocast_trains_without_nan(extent, features):
    torch.manual_seed(0)
    config = mn.MIMOFormerConfig(
        **{**SMALL, "max_length": 64, "head_dim": 16, "dim": 16, "dropout": 0.1},
        grid=(2, 2),
        superpose=extent,
        features=features,
        num_features=32,
    )
    model = mn.MIMOFormer(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(10):
        tokens = torch.randint(11, (6, 64))
        labels = tokens[:, 0] % 3
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite(), step
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@every_extent
def test_export_keeps_the_answers_for_any_batch_and_length(extent):
    model = mimoformer(superpose=extent, depth=1).eval()
    tokens, mask = tokens_and_mask(batch=12, length=8)
    groups, length = torch.export.Dim("groups", min=2), torch.export.Dim("length", min=2, max=9)
    shape = {0: 6 * groups, 1: length}
    program = torch.export.export(
        model, (tokens,), {"mask": mask}, dynamic_shapes={"tokens": shape, "mask": shape}
    ).module()
    for batch, tokens_each in ((12, 8), (18, 9), (24, 3)):
        other, other_mask = tokens_and_mask(batch, tokens_each, seed=1)
        ours = program(other, mask=other_mask)
        assert_close(ours, model(other, mask=other_mask), rtol=1e-6, atol=1e-6)


@pytest.mark.slow  # a C++ compiler at work
@pytest.mark.timeout(280)
@every_extent
def test_compile_keeps_the_answers(extent):
    model = mimoformer(superpose=extent, depth=1).eval()
    tokens, mask = tokens_and_mask(batch=6)
    with torch.inference_mode():
        compiled = torch.compile(model, fullgraph=True)
        assert_close(compiled(tokens, mask=mask), model(tokens, mask=mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [m for k, m in MAKERS.items() if k.startswith("datamux")])
def test_export_of_datamux_keeps_the_answers(make):
    model = make().eval()
    tokens, mask = tokens_and_mask(batch=6)
    program = torch.export.export(model, (tokens,), {"mask": mask})
    other, other_mask = tokens_and_mask(batch=6, seed=1)
    assert_close(program.module()(other, mask=other_mask), model(other, mask=other_mask))


class Square(TorchDispatchMode):
    """Remember whether any operation made a tensor with two axes as long as the sequence."""

    def __init__(self, length):
        super().__init__()
        self.length, self.found = length, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor) and tensor.shape.count(self.length) > 1:
                self.found.append((func, tuple(tensor.shape)))
        return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", [MAKERS[k] for k in ("performer", *EXTENTS)])
def test_nothing_grows_with_the_square_of_the_length(make, causal):
    model = make(max_length=311, causal=causal)
    tokens = torch.randint(11, (7, 311))
    with Square(311) as square:
        model(tokens, mask=torch.ones_like(tokens, dtype=torch.bool)).sum().backward()
    assert square.found == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("features", ["relu", "softmax", "dpfp"])
def test_bf16_autocast_trains_without_nan_for_200_steps_on_long_sequences(features, causal):
    # Which symbol did the sequence start with?
    torch.manual_seed(0)
    config = mn.MIMOFormerConfig(
        **{
            **SMALL,
            "max_length": 2048,
            "head_dim": 16,
            "dim": 16,
            "hidden_dim": 32,
            "dropout": 0.1,
        },
        grid=(2, 2),
        superpose="attention+mlp",
        features=features,
        num_features=32,
        causal=causal,
    )
    model = mn.MIMOFormer(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(200):
        tokens = torch.randint(11, (4, 1024))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens), tokens[:, 0] % 3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert loss.isfinite(), step
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_embeddings_start_with_the_deviation_of_the_config():
    wide = transformer(vocab_size=200, dim=50, embedding_std=0.5).embedding
    for weight in (wide.tokens.weight, transformer(max_length=200, dim=50).embedding.positions):
        assert weight.std().item() == pytest.approx(
            0.5 if weight is wide.tokens.weight else 0.02, rel=0.05
        )


@every_model
def test_gpt2_style_scores_by_the_embedding_and_starts_small(tmp_path, make):
    model = make(style="gpt2", head="next_token", causal=True, depth=2, dim=64, hidden_dim=128)
    assert not list(model.readout.parameters())
    features = torch.randn(3, 64)
    assert_close(model.readout(features), features @ model.embedding.tokens.weight.T)
    for block in model.blocks:
        for layer, std in ((block.to_q, 0.02), (block.out, 0.01), (block.mlp[3], 0.01)):
            assert float(layer.weight.detach().std()) == pytest.approx(std, rel=0.2)
            assert not layer.bias.any()
    mn.save(model.eval(), tmp_path)
    tokens = torch.randint(11, (6, 9))
    assert_close(mn.load(tmp_path).eval()(tokens), model(tokens))


def test_gpt2_style_drops_embeddings_and_attention_weights_only():
    settings = {"style": "gpt2", "head": "next_token", "causal": True, "dropout": 0.5}
    model = transformer(**settings)
    assert [name for name, m in model.named_modules() if isinstance(m, nn.Dropout) and m.p] == [
        "embedding.dropout"
    ]
    attention = model.blocks[0].attention
    q, k, v = torch.randn(3, 1, 2, 9, 5).unbind(0)
    assert not torch.equal(attention.train()(q, k, v), attention(q, k, v))
    assert torch.equal(attention.eval()(q, k, v), attention(q, k, v))
