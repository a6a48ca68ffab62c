"""How fast is it against what one would run instead? Writes ``results/bench-against.json``.

Images: MIMOConv-10-4 with four streams against the plain network of its size, the plain network of
fast mode's cost, and both in int8, in batches of 1, 4 and 64. Sequences: MIMOFormer 4x4 against our
Performer, ``performer-pytorch`` and a Transformer with PyTorch's fused attention, one block of LRA
Text at full size. Weights are random; one thread; all of a part run in turn.

    python benchmarks/against.py images [ROUNDS]        # about seven minutes
    python benchmarks/against.py sequences [ROUNDS]     # about two minutes
"""

import json
import statistics
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from performer_pytorch import Performer as PerformerPytorch
from torch import nn

from mimonets import MIMOConvConfig, WideResNetConfig
from mimonets._files import write_text
from mimonets.evaluation import BenchSettings, bench
from mimonets.evaluation.provenance import environment
from mimonets.recipes import load_recipe

RESULT = Path(__file__).parents[1] / "results" / "bench-against.json"
ENGINES = ("eager", "onnxruntime", "openvino", "onnxruntime-int8", "openvino-int8")
GRID = 16  # sequences per call: as many as a 4x4 grid holds


def images(rounds):
    """Race image networks in every engine."""
    ours = MIMOConvConfig(depth=10, width=4, num_streams=4, num_classes=10)
    small = WideResNetConfig(depth=10, width=2, num_classes=10)  # of about a quarter of the cost
    settings = BenchSettings(batch_sizes=(1, 4, 64), rounds=rounds, threads=1, engines=ENGINES)
    return bench([ours, small], [None], settings)


class Published(nn.Module):
    """The block of ``performer-pytorch`` behind an embedding, of the size of ours."""

    num_streams = 1
    input_spec = None
    title = "performer-pytorch"

    def __init__(self, config):
        super().__init__()
        self.length, self.vocabulary = config.max_length, config.vocab_size
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.body = PerformerPytorch(
            dim=config.dim,
            depth=config.depth,
            heads=config.heads,
            dim_head=config.head_dim,
            ff_mult=config.hidden_dim // config.dim,
            nb_features=config.num_features,
        )
        self.classifier = nn.Linear(config.dim, config.num_classes)

    def example_inputs(self, batch_size):
        """Draw tokens."""
        return torch.randint(self.vocabulary, (batch_size, self.length))

    def forward(self, tokens, *, active_streams=None):
        """Classify (b, t)."""
        return self.classifier(self.body(self.embedding(tokens)).mean(dim=1))


def sequences(rounds):
    """Race sequence networks in eager PyTorch, as many sequences per call for each."""
    ours = [load_recipe(f"lra-text-mimoformer-4x4-{kind}").model for kind in ("mlp", "qkv")]
    ours = [replace(config, depth=1) for config in ours]
    softmax = replace(load_recipe("lra-text-transformer").model, depth=1)
    published = Published(replace(load_recipe("lra-text-performer").model, depth=1)).eval()
    settings = BenchSettings(batch_sizes=(GRID,), rounds=rounds, warmup=1, threads=1)
    return bench([*ours, softmax, published], [None], settings)


def percentile(values, percent):
    """Find the smallest value that so many percent of the values do not exceed."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def main():
    """Run one part, and write what it measured beside the other."""
    part, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    measure, usual = {"images": (images, 100), "sequences": (sequences, 3)}[part]
    result = measure(rounds or usual)
    found = {
        "settings": asdict(result.settings),
        "rows": [
            {
                "network": timing.name.rpartition(": ")[2],
                "engine": result.candidates[timing.name].engine,
                "batch_size": timing.inputs,
                "calls": len(timing.seconds),
                "milliseconds": {p: 1000 * percentile(timing.seconds, p) for p in (50, 99)},
                "cpu_milliseconds": 1000 * statistics.median(timing.cpu_seconds),
            }
            for timing in result.timings
        ],
    }
    for row in found["rows"]:
        print(row)
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    command = f"python benchmarks/against.py {part}"
    record[part] = {**found, "environment": {**environment(), "command": command, "threads": 1}}
    write_text(RESULT, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
