"""What is special about DataMUX; tests/models/test_sequences.py holds it to all other promises."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import mimonets as mn
from oracles import datamux_former_by_hand

SMALL = {
    **{"vocab_size": 11, "max_length": 9, "num_classes": 3, "depth": 2, "heads": 2},
    **{"head_dim": 5, "dim": 6, "hidden_dim": 7, "dropout": 0.0, "num_streams": 3},
}
both = pytest.mark.parametrize("demux", ["index", "slots"])


def network(**settings):
    torch.manual_seed(0)
    return mn.DataMUXFormer(mn.DataMUXFormerConfig(**{**SMALL, **settings})).eval()


def tokens_and_mask(batch=7, length=9):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(11, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    return tokens, torch.arange(length) < lengths[:, None]


@both
@pytest.mark.parametrize("active", [1, 2, 3])
@pytest.mark.parametrize(
    "settings",
    [{}, {"pooling": "cls", "positions": "fixed"}, {"head": "next_token", "causal": True}],
)
def test_every_mode_equals_the_loop_over_streams_and_tokens(demux, active, settings):
    model = network(demux=demux, **settings).double()
    tokens, mask = tokens_and_mask(batch=5, length=7)
    for some in (None, mask):
        fast = model(tokens, mask=some, active_streams=active)
        slow = datamux_former_by_hand(model, tokens, some, active)
        if some is not None and fast.ndim == 3:
            fast, slow = fast[some], slow[some]  # what padding answers is nobody's business
        assert_close(fast, slow)


@both
def test_gradients_equal_those_of_the_slow_version(demux):
    model = network(demux=demux).double()
    tokens, mask = tokens_and_mask(batch=5, length=7)
    inputs = list(model.parameters())
    fast = torch.autograd.grad(model(tokens, mask=mask).square().sum(), inputs)
    slow = datamux_former_by_hand(model, tokens, mask, 3).square().sum()
    assert_close(fast, torch.autograd.grad(slow, inputs))


@both
def test_keys_are_gaussian_frozen_and_saved(demux, tmp_path):
    model = network(demux=demux, dim=600, num_streams=2)
    keys = model.multiplexing.stream_keys
    assert float(keys.std()) == pytest.approx(1, abs=0.08)
    assert not any(parameter is keys for parameter in model.parameters())
    mn.save(model, tmp_path)
    assert_close(mn.load(tmp_path).multiplexing.stream_keys, keys, rtol=0, atol=0)


@both
def test_the_order_of_groups_does_not_matter_and_groups_do_not_touch(demux):
    model = network(demux=demux)
    tokens, mask = tokens_and_mask(batch=9)
    answers = model(tokens, mask=mask).unflatten(0, (3, 3))
    order = torch.tensor([2, 0, 1])
    shuffled = [x.unflatten(0, (3, 3))[order].flatten(0, 1) for x in (tokens, mask)]
    assert_close(model(shuffled[0], mask=shuffled[1]).unflatten(0, (3, 3)), answers[order])
    assert_close(model(tokens[3:6], mask=mask[3:6]), answers[1])


def test_the_prefix_has_an_index_for_its_own_stream_and_padding_elsewhere():
    model = network()
    special = model.demultiplexing.special.weight
    prefix = model.demultiplexing.prefix()[0]
    for stream in range(3):
        for place in range(3):
            assert_close(prefix[stream, place], special[place if place == stream else 3])


def test_the_prefix_sees_the_tokens_unless_attention_is_causal():
    tokens, _ = tokens_and_mask(batch=6)
    for causal in (False, True):
        model = network(causal=causal)
        seen = []
        model.demultiplexing.register_forward_hook(lambda _, inputs, __, s=seen: s.append(inputs))
        model(tokens)
        prefix = seen[0][0]
        assert torch.allclose(prefix[0], prefix[1]) == causal


def warming_up(model, name, *args, **options):
    with model.warming_up(name):
        return model(*args, **options)


@both
def test_retrieval_names_a_token_for_each_place(demux):
    tokens, mask = tokens_and_mask()
    for settings in ({}, {"pooling": "cls"}, {"head": "next_token", "causal": True}):
        model = network(demux=demux, **settings)
        for active in (None, 1, 2):
            logits = warming_up(model, "retrieval", tokens, mask=mask, active_streams=active)
            assert logits.shape == (7, 9, 11)
    pairs = warming_up(network(demux=demux, head="pair"), "retrieval", tokens[:6].view(3, 2, 9))
    assert pairs.shape == (3, 2, 9, 11)
    with pytest.raises(ValueError, match="allows 0 to 10"):
        warming_up(network(demux=demux), "retrieval", tokens + 11)


@both
def test_it_learns_to_retrieve_and_then_to_answer_in_both_streams(demux):
    model = network(
        demux=demux, depth=1, dim=32, heads=1, head_dim=32, hidden_dim=32, num_streams=2
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    test = torch.randint(11, (400, 5), generator=generator)
    for name, steps, wanted in (("retrieval", 60, 0.8), (None, 90, 0.55)):  # chance: 0.09, 0.33
        for tokens in torch.randint(11, (steps, 64, 5), generator=generator):
            logits = warming_up(model, name, tokens).flatten(0, -2)
            labels = tokens.flatten() if name else tokens[:, 0] % 3
            optimizer.zero_grad()
            F.cross_entropy(logits, labels).backward()
            optimizer.step()
        wanted_answers = test if name else test[:, 0] % 3
        right = warming_up(model, name, test).argmax(-1) == wanted_answers
        for stream in range(2):
            assert right[stream::2].float().mean() > wanted


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="demux='mlp' is not known: choose from index, slots"):
        network(demux="mlp")
    with pytest.raises(ValueError, match="num_streams=0 must be an integer >= 1"):
        network(num_streams=0)
