"""superpose() opens networks of the transformers library as they are.

That library is no test dependency: it weighs more than the rest of them together, and what its
networks need of superpose() is also tested on networks of our own. These tests run where it is.
"""

import pytest
import torch
from torch.testing import assert_close

import mimonets as mn
from mimonets.evaluation import count_macs

transformers = pytest.importorskip("transformers")

IMAGES = torch.randn(5, 3, 32, 32)


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16],
        depths=[1, 1, 1],
        layer_type="basic",
        num_labels=4,
    )
    return transformers.ResNetForImageClassification(config)


def convnext():
    config = transformers.ConvNextConfig(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4, num_labels=4
    )
    return transformers.ConvNextForImageClassification(config)


def bert():
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=4,
        max_position_embeddings=16,
    )
    return transformers.BertForSequenceClassification(config)


TILES = {"binding": "tiles", "num_streams": 4}
CASES = {
    "resnet": (resnet, "resnet.encoder.stages.0", "classifier", IMAGES),
    "resnet-embedder": (resnet, "resnet.embedder", "classifier", IMAGES),
    "convnext": (convnext, "convnext.encoder.stages.0", "classifier", IMAGES),
    "bert": (bert, "bert.encoder.layer.0", "classifier", torch.randint(50, (5, 12))),
    "bert-embeddings": (bert, "bert.embeddings", "bert.pooler", torch.randint(50, (5, 12))),
}


@pytest.mark.parametrize("case", CASES)
def test_networks_of_transformers_take_several_inputs(case, tmp_path):
    make, bind_after, unbind_before, inputs = CASES[case]
    settings = {"num_streams": 2, "bind_after": bind_after, "unbind_before": unbind_before}
    model = mn.superpose(make(), example=inputs[:1], **settings).eval()
    for active in (1, 2):
        assert model(inputs, active_streams=active).shape == (5, 4)
    answers = model(inputs)
    assert_close(model(inputs[:2]), answers[:2], rtol=1e-4, atol=1e-5)  # groups stay apart
    trunk = [count_macs(model, active)["trunk"].plain for active in (1, 2)]
    assert trunk[0] == 2 * trunk[1] > 0
    model.train()(inputs).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    model.eval()
    found = mn.load(mn.save(model, tmp_path / "x"), network=make())
    assert torch.equal(found(inputs), model(inputs))


def test_a_resnet_of_transformers_takes_four_images_side_by_side():
    network = resnet().eval()
    wanted = network(IMAGES).logits
    where = {"bind_after": "resnet.embedder", "unbind_before": "resnet.pooler"}
    model = mn.superpose(network, example=IMAGES, **where, **TILES).eval()
    assert_close(model(IMAGES, active_streams=1), wanted)
    assert model(IMAGES).shape == (5, 4)
    assert count_macs(model, 1)["trunk"].plain == 4 * count_macs(model)["trunk"].plain > 0


def test_masks_go_by_the_name_that_the_network_has():
    make, bind_after, unbind_before, tokens = CASES["bert"]
    model = mn.superpose(
        make(), num_streams=2, bind_after=bind_after, unbind_before=unbind_before, example=tokens
    ).eval()
    mask = torch.ones(4, 12, dtype=torch.bool)
    mask[:2, 8:] = False
    answers = model(tokens[:4], mask=mask)
    assert torch.equal(answers, model(tokens[:4], attention_mask=mask))
    other = tokens[:4].clone()
    other[:2, 8:] = (other[:2, 8:] + 1) % 50  # padding of both inputs of the first group
    assert_close(model(other, mask=mask), answers, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(tokens[:4]), answers)
    assert_close(model(tokens[:4], mask=torch.ones_like(mask)), model(tokens[:4]))
    with pytest.raises(ValueError, match="takes no mask"):
        mn.superpose(
            torch.nn.Sequential(torch.nn.Linear(3, 4)), num_streams=1, example=torch.zeros(1, 3)
        )(torch.zeros(2, 3), mask=torch.ones(2, 3))
