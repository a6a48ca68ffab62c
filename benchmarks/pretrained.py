"""Take trained runs into the package: weights, a model card each, and the record of both.

    mimonets train digits-writers-tiles-dynamic-small
    mimonets train mnist-tiles-n16 --data-dir DIR --out RUN
    python benchmarks/pretrained.py digits runs/digits-writers-tiles-dynamic-small
    python benchmarks/pretrained.py mnist-n16 RUN --data-dir DIR

Every mode is measured on the test data, and results/pretrained.json holds what the cards say.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mimonets._files import write_text
from mimonets.checkpoints import ModelCard, load
from mimonets.checkpoints.shipped import WEIGHTS
from mimonets.data import load_data
from mimonets.evaluation import count_macs
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.provenance import environment
from mimonets.layers.stream_norm import untrained_modes
from mimonets.recipes.execute import (
    choose_model,
    describe_inputs,
    make_train_batches,
    read_run,
    split_batches,
)

RECORD = Path(__file__).parents[1] / "results" / "pretrained.json"


@dataclass(frozen=True)
class Facts:
    """What a card says that no run knows."""

    summary: str
    inputs: str
    data: str
    command: str
    modes: tuple[int, ...]
    limits: tuple[str, ...]


FACTS = {
    "digits": Facts(
        summary="Handwritten digits of 8x8 pixels, up to four in one pass. One set of weights: "
        "one digit fills the canvas in slow mode, four share it in fast mode (tiles). "
        '`mimonets.create("digits", pretrained=True)` loads it.',
        inputs="grey images of 8x8 pixels, bright strokes on black; others are scaled to that size",
        data="the 1,797 handwritten digits of scikit-learn (Alpaydin & Kaynak, UCI, 1998, CC BY "
        "4.0). Trained on the first 1,500, measured on the last 297, which are other writers' "
        "(`digits-writers`). Settings were chosen on digits of the 1,500 only.",
        command="mimonets train digits-writers-tiles-dynamic-small",
        modes=(1, 2, 3, 4),
        limits=(
            "A demonstration: 297 test digits by two or three writers; a percent is three digits.",
            "Digits only, centred, upright, one per image, 8x8 pixels. It answers with a digit "
            "whatever it is shown.",
            "Tiles are close to batching images of half the resolution: see docs/apart.md.",
            "Digits that share a pass can influence each other's answers at the borders of tiles: "
            "do not mix inputs of people who must not affect one another.",
        ),
    ),
    "mnist-n16": Facts(
        summary="MNIST digits, sixteen in one pass, as tiles on one canvas. "
        '`mimonets.create("mnist-n16", pretrained=True)` loads it.',
        inputs="grey images of 28x28 pixels, bright strokes on black, of which the centre square "
        "of 20x20 is used; others are scaled to 28x28",
        data="MNIST (LeCun, Cortes & Burges, 1998). Trained on 55,000 images, measured on the "
        "10,000 test images; the 5,000 others were held out for validation.",
        command="mimonets train mnist-tiles-n16 --data-dir DIR",
        modes=(1, 2, 4, 8, 16),
        limits=(
            "Trained with sixteen active streams only. With fewer it shows copies of an input in "
            "several tiles, which costs more and gains little; batch-norm statistics of those "
            "modes were measured afterwards, on eight batches of 128 training images.",
            "Digits only, centred, upright, one per image, as MNIST prepares them. It answers "
            "with a digit whatever it is shown.",
            "Tiles are close to batching images of a fifth of the resolution: see docs/apart.md.",
            "Digits that share a pass can influence each other's answers at the borders of tiles: "
            "do not mix inputs of people who must not affect one another.",
        ),
    ),
}


def ship(name: str, run: Path, data_dir: str | None) -> None:
    """Measure a run's model in every mode, and write weights, card and record."""
    facts = FACTS[name]
    recipe = read_run(run, [f"data.dir={data_dir}"] if data_dir else [])
    chosen, folder = choose_model(run)
    model = load(folder)
    missing = set(untrained_modes(model)) & set(facts.modes)
    if missing:
        raise SystemExit(f"{folder} has no statistics of modes {sorted(missing)}: recalibrate it.")
    model.input_spec = describe_inputs(recipe, make_train_batches(recipe, load_data(recipe.data)))
    batches = split_batches(recipe, "test", spec=model.input_spec)
    found = evaluate(model, batches, list(facts.modes))
    trained = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    card = ModelCard.of(
        model,
        name=name,
        summary=facts.summary,
        inputs=facts.inputs,
        data=facts.data,
        recipe=facts.command,
        accuracy={mode: found[mode].accuracy for mode in facts.modes},
        limits=facts.limits,
        license="apache-2.0",
        provenance={
            "trained": f"{trained['date']}, commit {trained['commit']}, seed {recipe.train.seed}, "
            f"PyTorch {trained['torch']}, {trained['cpu']}",
            "model": f"the {chosen} one of the run",
            "record": f"results/pretrained.json, made by benchmarks/pretrained.py {name}",
        },
    )
    model.save_pretrained(WEIGHTS / name, card=card)
    models = json.loads(RECORD.read_text(encoding="utf-8"))["models"] if RECORD.exists() else {}
    here = {**environment(), "command": f"benchmarks/pretrained.py {name} RUN"}
    models[name] = {
        "environment": here,
        "card": asdict(card),
        "modes": {
            str(mode): {
                "correct": found[mode].correct,
                "total": found[mode].total,
                "accuracy": found[mode].accuracy,
                "interval": found[mode].interval,
                "macs": count_macs(model, mode).paper,
                "trained": mode in recipe.train.mode_shares(model.num_streams),
            }
            for mode in facts.modes
        },
    }
    record = {"environment": here, "models": models}
    write_text(RECORD, json.dumps(record, indent=2) + "\n")
    for mode in facts.modes:
        print(f"{name}, {mode} active: {found[mode].correct} of {found[mode].total}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=FACTS)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    ship(arguments.name, arguments.run, arguments.data_dir)
