"""Measure MiniLM with a frozen backbone on IMDb: two reviews share its last layers.

The idea is that of RevMUX (Xu et al., EMNLP 2024). The first layers run per review. Half as many
features of each review are mixed by an invertible coupling and take the place of one review's.
The other layers run once per pair. The inverse of the coupling takes the pair apart, and a linear
layer widens each half again. Only these adapters are trained: on labels, on the answers of the
whole network, and on a contrastive term. The whole network is fine-tuned before, as in
superpose_minilm.py, whose MODEL and DATA these are. Writes frozen-minilm.json into FOLDER; the
fine-tuned network is kept in RUNS:
python benchmarks/frozen_minilm.py MODEL DATA RUNS [FOLDER] [EPOCHS] [SEEDS]
"""

import copy
import json
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import torch
import torch.nn.functional as F
from compare_minilm import Classifier, reviews
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader
from torch.utils.flop_counter import FlopCounterMode

import mimonets as mn
from mimonets._files import write_text
from mimonets._seeds import mean_and_deviation
from mimonets.evaluation.provenance import environment
from mimonets.training import TrainConfig, train

TRAINED, TESTED, TOKENS, FIRST = 4000, 1000, 64, 2  # reviews, their tokens, layers per review
SIZE, LR, WEIGHT_DECAY = 32, 2e-3, 0.01  # reviews per step, largest learning rate
SOFT, HEAT = 0.5, 2.0  # weight and temperature of the whole network's answers
CONTRAST, SHARP = 0.5, 0.1  # weight and temperature of the contrastive term


class Seen(NamedTuple):
    """What the whole network makes of reviews."""

    early: Tensor  # (b, t, d) after the first layers
    mask: Tensor  # (b, t)
    pooled: Tensor  # (b, d), what it classifies
    answers: Tensor  # (b, 2)
    labels: Tensor

    def at(self, places: Tensor) -> "Seen":
        """Give some of the reviews."""
        return Seen(*(part[places] for part in self))


class Coupling(nn.Module):
    """Mix two halves so that ``inverse`` gives them back exactly."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)]
        self.to_first, self.to_second = (nn.Sequential(*copy.deepcopy(layers)) for _ in range(2))
        for one in (self.to_first, self.to_second):
            nn.init.normal_(one[0].weight, std=width**-0.5)
            nn.init.zeros_(one[2].weight)  # starts as the identity
            nn.init.zeros_(one[2].bias)

    def forward(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Mix them."""
        first = first + self.to_first(second)
        return first, second + self.to_second(first)

    def inverse(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Take them apart."""
        second = second - self.to_second(first)
        return first - self.to_first(second), second


class Pairs(nn.Module):
    """The last layers of a classifier, frozen, run once per pair of reviews."""

    def __init__(self, network: Classifier, first: int) -> None:
        super().__init__()
        self.encoder, self.classifier = copy.deepcopy((network.bert.encoder, network.classifier))
        self.encoder.layer = self.encoder.layer[first:]
        self.requires_grad_(False)
        width = network.bert.config.hidden_size
        self.narrow = nn.ModuleList(nn.Linear(width, width // 2) for _ in range(2))
        self.widen = nn.ModuleList(nn.Linear(width // 2, width) for _ in range(2))
        self.coupling = Coupling(width // 2)
        halves = torch.eye(width).chunk(2)  # each review starts with half of the features
        with torch.no_grad():
            for half, narrow, widen in zip(halves, self.narrow, self.widen, strict=True):
                narrow.weight.mul_(0.1).add_(half)
                widen.weight.mul_(0.1).add_(half.T)

    def forward(self, early: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Give pooled features and answers from early features (b, t, d), neighbours in pairs."""
        pairs = early.unflatten(0, (-1, 2)).unbind(1)
        mixed = self.coupling(*(one(x) for one, x in zip(self.narrow, pairs, strict=True)))
        seen = later(self.encoder, torch.cat(mixed, -1), mask.unflatten(0, (-1, 2)).any(1))
        apart = self.coupling.inverse(*seen.chunk(2, -1))
        wide = [one(x) for one, x in zip(self.widen, apart, strict=True)]
        pooled = torch.stack(wide, 1).flatten(0, 1).mean(1)
        return pooled, self.classifier(pooled)


def later(encoder: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Run layers on features (b, t, d)."""
    hidden = (~mask)[:, None, None, :] * torch.tensor(-1e4, dtype=x.dtype)
    return encoder(x, attention_mask=hidden.to(x.dtype)).last_hidden_state


def fine_tuned(network: Classifier, loader: DataLoader, run: Path) -> Classifier:
    """Train the whole network for an epoch, as in superpose_minilm.py."""
    mine = mn.superpose(network, num_streams=1, example=next(iter(loader))[0][:1])
    config = TrainConfig(
        **{"epochs": 1, "batch_size": SIZE, "per_stream": False, "mixup": 0.0, "lr": 2e-4},
        **{"optimizer": "adamw", "weight_decay": WEIGHT_DECAY, "precision": "bf16"},
    )
    train(mine, loader, config, run_dir=run, resume=True)
    return network.eval()


@torch.no_grad()
def see(network: Classifier, data, first: int) -> Seen:
    """Run the whole network once, and keep what comes after the first layers."""
    head, tail = copy.deepcopy(network.bert.encoder), copy.deepcopy(network.bert.encoder)
    head.layer, tail.layer = head.layer[:first], tail.layer[first:]
    found = []
    for tokens, mask, labels in DataLoader(data, 100):
        with torch.autocast("cpu", torch.bfloat16):
            early = later(head, network.bert.embeddings(tokens), mask)
            pooled = later(tail, early, mask).mean(1)
            answers = network.classifier(pooled)
        found.append((early.float(), mask, pooled.float(), answers.float(), labels))
    return Seen(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def loss_of(pairs: Pairs, seen: Seen) -> Tensor:
    """Cross entropy with labels and with soft answers, and the contrastive term."""
    pooled, answers = pairs(seen.early, seen.mask)
    pooled, answers = pooled.float(), answers.float()
    soft = F.log_softmax(seen.answers / HEAT, -1)
    apart = F.kl_div(
        F.log_softmax(answers / HEAT, -1), soft, log_target=True, reduction="batchmean"
    )
    near = F.normalize(pooled, dim=-1) @ F.normalize(seen.pooled, dim=-1).T / SHARP
    contrast = F.cross_entropy(near, torch.arange(len(near)))
    hard = F.cross_entropy(answers, seen.labels)
    return torch.lerp(hard, HEAT**2 * apart, SOFT) + CONTRAST * contrast


def fit(pairs: Pairs, seen: Seen, epochs: int, seed: int) -> None:
    """Train the adapters on pairs that are drawn anew in every epoch."""
    draw, count = torch.Generator().manual_seed(seed), len(seen.labels)
    adapters = [p for p in pairs.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, LR, weight_decay=WEIGHT_DECAY)
    steps = epochs * (count // SIZE)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, steps, pct_start=0.1)
    for epoch in range(epochs):
        losses = []
        for places in torch.randperm(count, generator=draw).split(SIZE)[: count // SIZE]:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(pairs, seen.at(places))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(adapters, 1.0)
            optimizer.step()
            rate.step()
            losses.append(loss.item())
        print(f"seed {seed}, epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}", flush=True)


@torch.no_grad()
def accuracy(pairs: Pairs, seen: Seen) -> float:
    """Measure on pairs of neighbours."""
    places = torch.arange(len(seen.labels)).split(100)
    right = [
        pairs(part.early, part.mask)[1].argmax(-1) == part.labels for part in map(seen.at, places)
    ]
    return torch.cat(right).float().mean().item()


@torch.no_grad()
def macs_per_review(network: Classifier, pairs: Pairs, tokens: Tensor) -> float:
    """Count two reviews through the first layers and one pair through the others."""
    head, mask = copy.deepcopy(network.bert.encoder), torch.ones_like(tokens, dtype=torch.bool)
    head.layer = head.layer[: len(head.layer) - len(pairs.encoder.layer)]
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        pairs(later(head, network.bert.embeddings(tokens), mask), mask)
    return counter.get_total_flops() / 2 / len(tokens)


def main(model: str, data: str, runs: str, folder="runs/results", epochs="1", seeds="3") -> None:
    """Fine-tune once, train the adapters with every seed, and write the result after each."""
    trained, tested = reviews(model, data, (TRAINED, TESTED), TOKENS)
    torch.manual_seed(0)
    loader = DataLoader(trained, SIZE, shuffle=True, drop_last=True)
    network = fine_tuned(Classifier(model), loader, Path(runs) / "frozen-minilm")
    seen, unseen = see(network, trained, FIRST), see(network, tested, FIRST)
    whole = (unseen.answers.argmax(-1) == unseen.labels).float().mean().item()
    print(f"the whole network: {whole:.1%}", flush=True)
    by_seed = []
    for seed in range(int(seeds)):
        torch.manual_seed(seed)
        pairs = Pairs(network, FIRST)
        fit(pairs, seen, int(epochs), seed)
        by_seed.append(accuracy(pairs, unseen))
        print(f"two reviews per pass, seed {seed}: {by_seed[-1]:.1%}", flush=True)
        mean, deviation = mean_and_deviation(by_seed)
        record = {
            "environment": environment(),
            **{"epochs": int(epochs), "reviews": TRAINED, "test_reviews": TESTED},
            **{"tokens": TOKENS, "layers_per_review": FIRST, "whole": whole, "by_seed": by_seed},
            **{"mean": mean, "deviation": deviation, "seeds": list(range(seed + 1))},
            "macs": macs_per_review(network, pairs, tested.tensors[0][:2]),
            "trained_parameters": sum(p.numel() for p in pairs.parameters() if p.requires_grad),
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_text(Path(folder) / "frozen-minilm.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
