"""Two inputs share the last layers of a frozen network, and come apart again."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmark_files import load_benchmark

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(vocab_size=50, num_hidden_layers=4, **SIZES)
        self.bert = transformers.BertModel(config, add_pooling_layer=False)
        self.classifier = nn.Linear(32, 2)

    def forward(self, tokens, attention_mask=None):
        x = self.bert(tokens, attention_mask=attention_mask).last_hidden_state
        return self.classifier(x.mean(dim=1))


def test_the_coupling_is_undone_by_its_inverse():
    coupling = load_benchmark("frozen_minilm").Coupling(16).double()
    for p in coupling.parameters():
        nn.init.normal_(p)
    pair = torch.randn(2, 3, 5, 16, dtype=torch.double).unbind()
    for found, wanted in zip(coupling.inverse(*coupling(*pair)), pair, strict=True):
        torch.testing.assert_close(found, wanted)


def test_adapters_learn_and_the_backbone_stays():
    frozen = load_benchmark("frozen_minilm")
    torch.manual_seed(0)
    network, tokens = Classifier().eval(), torch.randint(50, (128, 9))
    mask, labels = torch.arange(9) < torch.randint(2, 10, (128, 1)), torch.arange(128) % 2
    seen = frozen.see(network, TensorDataset(tokens, mask, labels), 2)
    wanted = network(tokens, attention_mask=mask)
    torch.testing.assert_close(seen.answers, wanted, rtol=0, atol=0.02)  # it runs in bf16
    pairs = frozen.Pairs(network, 2)
    before = {name: value.clone() for name, value in pairs.state_dict().items()}
    first = frozen.loss_of(pairs, seen).item()
    frozen.fit(pairs, seen, 4, seed=0)
    assert frozen.loss_of(pairs, seen).item() < first
    changed = {
        name.split(".")[0]
        for name, value in pairs.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"coupling", "narrow", "widen"}
