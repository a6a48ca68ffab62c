"""Take a trained run into the package: float16 weights, a model card, and the record of both.

    mimonets train digits-writers-mimoconv-dynamic
    python tools/ship.py digits-keys runs/digits-writers-mimoconv-dynamic
    python tools/ship.py mnist-keys-n4 RUN --data-dir DIR --modes 1,2,4

This writes the folder src/mimonets/checkpoints/weights/NAME and an entry of
results/pretrained.json. Nothing else has to be changed: the package finds the folder. The network
is measured on the test data with the rounded weights. What is said about a data set stands in
DATA: a network of other data needs an entry there. `--again` writes all cards anew from the record.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from mimonets._files import write_text
from mimonets.checkpoints import ModelCard, load, save
from mimonets.checkpoints.shipped import CARD_FILE, WEIGHTS
from mimonets.data import load_data
from mimonets.evaluation import count_macs
from mimonets.evaluation.accuracy import evaluate
from mimonets.evaluation.provenance import environment
from mimonets.layers.stream_norm import untrained_modes
from mimonets.models import usual_points
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import (
    describe_inputs,
    make_train_batches,
    read_run,
    split_batches,
)
from mimonets.training.run_folder import choose_model

RECORD = Path(__file__).parents[1] / "results" / "pretrained.json"
DIGITS_ONLY = (
    "Digits only, centred, upright, one per image, bright on black. It answers with a digit "
    "whatever it is shown."
)
DATA = {  # name -> the Hub's name, what an input is called, where it comes from, limits
    "digits-writers": (
        "scikit-learn-digits",
        "Handwritten digits of 8x8 pixels",
        "the 1,797 handwritten digits of scikit-learn (Alpaydin & Kaynak, UCI, 1998, CC BY 4.0), "
        "the last 297 of them, by other writers, for testing (`digits-writers`).",
        (
            "A demonstration: 297 test digits by two or three writers; a percent is three digits.",
            DIGITS_ONLY,
        ),
    ),
    "mnist": (
        "ylecun/mnist",
        "MNIST digits",
        "MNIST (LeCun, Cortes & Burges, 1998).",
        (DIGITS_ONLY, "Prepared as MNIST is: 20x20 pixels, centred by mass in 28x28."),
    ),
    "cifar10": (
        "uoft-cs/cifar10",
        "CIFAR-10 images",
        "CIFAR-10 (Krizhevsky, 2009). The images have no licence and do not ship.",
        ("Ten classes of 32x32 colour images only. It names one of them whatever it is shown.",),
    ),
}
SHARING = (
    "Inputs that share a pass can influence each other's answers: do not mix inputs of people who "
    "must not affect one another."
)


def ship(name, run, data_dir=None, modes=None):
    """Round a run's weights, measure them at every operating point, and write folder and record."""
    recipe = read_run(run).with_data_dir(data_dir)
    chosen, source = choose_model(run)
    model = load(source)
    splits = load_data(recipe.data)
    model.input_spec = describe_inputs(recipe, make_train_batches(recipe, splits))
    missing = set(untrained_modes(model))
    modes = modes or [p.number for p in usual_points(model) if p.number not in missing]
    if missing & set(modes):
        raise SystemExit(f"{run} has no batch-norm statistics of modes {sorted(missing)}.")
    model = load(save(model, WEIGHTS / name, stored="float16"))
    found = evaluate(model, split_batches(recipe.data, "test", spec=model.input_spec), modes)
    trained = json.loads((run / "environment.json").read_text(encoding="utf-8"))
    shares = recipe.train.mode_shares(model.num_streams)
    card = ModelCard.of(
        model,
        name=name,
        **describe(name, model, recipe, splits, shares),
        recipe=command(recipe),
        accuracy={mode: found[mode].accuracy for mode in modes},
        license="apache-2.0",
        usage="import mimonets as mn\n\n"
        f'model = mn.create("{name}", pretrained=True)\n'
        + (
            f"answers = model(images, active_streams={modes[-1]})  # {modes[-1]} inputs per pass"
            if model.num_streams > 1
            else "answers = model(images)"
        ),
        provenance={
            "trained": f"{trained['date']}, commit {trained['commit']}, seed {recipe.train.seed}, "
            f"PyTorch {trained['torch']}, {trained['cpu']}",
            **taught_by(recipe.train.teacher),
            "model": f"the {chosen} one of the run, rounded to float16",
            "record": "results/pretrained.json, made by tools/ship.py",
        },
    )
    (WEIGHTS / name / CARD_FILE).write_text(card.as_markdown(), encoding="utf-8")
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"models": {}}
    record["models"][name] = {
        "environment": {**environment(), "command": f"tools/ship.py {name} RUN"},
        "card": asdict(card),
        "modes": {
            str(mode): {
                "correct": found[mode].correct,
                "total": found[mode].total,
                "accuracy": found[mode].accuracy,
                "interval": found[mode].interval,
                "macs": count_macs(model, mode).paper,
                "trained": mode in shares,
            }
            for mode in modes
        },
    }
    record["environment"] = record["models"][name]["environment"]
    write_text(RECORD, json.dumps(record, indent=2) + "\n")
    for mode in modes:
        print(f"{name}, {mode} active: {found[mode].correct} of {found[mode].total}")


def describe(name, model, recipe, splits, shares):
    """Say in words what the network is, what it takes, what it saw and where it fails."""
    hub, inputs, source, limits = DATA[recipe.data.name]
    streams, tiles = model.num_streams, getattr(model.config, "binding", "") == "tiles"
    how = (
        "They stand side by side as tiles on one canvas; nothing is added up."
        if tiles
        else "They are bound with keys, added up, and unbound after the network (the paper's "
        "MIMOConv)."
    )
    spec = model.input_spec
    height, width = spec.original or spec.shape[1:]
    colours = "grey" if spec.shape[0] == 1 else "colour"
    crop = f", of which the centre {spec.crop}x{spec.crop} is used" if spec.crop else ""
    held = "" if splits.validation is None else f"; {len(splits.validation):,} held out"
    untrained = [m for m in range(1, streams + 1) if m not in shares]
    unseen = (
        f"Trained with {', '.join(map(str, sorted(shares)))} active streams only; other numbers "
        f"cost accuracy."
    )
    return {
        "summary": f"{inputs}, one at a time: a plain network to compare with."
        if streams == 1
        else f"{inputs}, up to {streams} in one pass. {how} One set of weights runs at every "
        f"number of inputs per pass.",
        "inputs": f"{colours} images of {height}x{width} pixels{crop}; others are scaled to that "
        f"size",
        "data": f"{source} Trained on {len(splits.train):,}, measured on {len(splits.test):,}"
        f"{held}.",
        "datasets": (hub,),
        "limits": (
            "One training with one seed.",
            *limits,
            *((unseen,) if untrained else ()),
            *((SHARING,) if streams > 1 else ()),
            *(("Tiles are close to batching smaller images: see docs/apart.md.",) if tiles else ()),
        ),
    }


def taught_by(teacher):
    """Name the recipe of the run whose model taught it, if one did."""
    if teacher is None or teacher == "slow":
        return {}
    return {"train.teacher": f"the model of `mimonets train {read_run(Path(teacher).parent).name}`"}


def command(recipe):
    """Write the command that trains it: the recipe, and what differs from it."""
    usual, own = load_recipe(recipe.name).as_dict(), recipe.as_dict()
    changed = [
        f"--set {section}.{setting}={json.dumps(value).replace(' ', '').strip(chr(34))}"
        for section in ("model", "data", "augment", "train")
        for setting, value in (own[section] or {}).items()
        if value != (usual[section] or {}).get(setting)
        and setting not in ("dir", "teacher", "threads", "devices")
    ]
    place = [] if recipe.data.name.startswith("digits") else ["--data-dir DIR"]
    return " ".join([f"mimonets train {recipe.name}", *changed, *place])


def again():
    """Write all cards anew from the record, after a change of their form."""
    for name, entry in json.loads(RECORD.read_text(encoding="utf-8"))["models"].items():
        text = ModelCard.from_dict(entry["card"]).as_markdown()
        (WEIGHTS / name / CARD_FILE).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?")
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--data-dir")
    parser.add_argument("--modes", type=lambda text: [int(mode) for mode in text.split(",")])
    parser.add_argument("--again", action="store_true", help="write all cards anew")
    arguments = parser.parse_args()
    if arguments.again:
        again()
    elif arguments.run is None:
        parser.error("name the network and its run")
    else:
        ship(arguments.name, arguments.run, arguments.data_dir, arguments.modes)
