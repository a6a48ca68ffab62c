"""How fast is each engine, with how much memory? Writes ``results/bench-engines.json``.

All contenders run in one process on one thread, in turn, and CPU time is taken, so that a busy
machine disturbs little. Weights are random: speed does not depend on them. Memory is measured in a
process of its own, as the proportional set size after a call in each mode.

    python benchmarks/engines.py prepare DIR    # export MIMOConv-28-10 and WideResNet-28-10
    python benchmarks/engines.py prepare-small DIR    # export the networks of the next line
    python benchmarks/engines.py small DIR      # the demo's networks, and 64 digits per pass
    python benchmarks/engines.py conv DIR       # race them
    python benchmarks/engines.py large DIR      # the same at a larger batch
    python benchmarks/engines.py memory DIR     # memory and cold start
    python benchmarks/engines.py digits DIR     # one group of a small network
    python benchmarks/engines.py accuracy DIR --run runs/digits    # what int8 costs a trained run
    python benchmarks/engines.py former DIR     # MIMOFormer and Performer on 4,096 tokens
    python benchmarks/engines.py compiled DIR   # torch.compile against eager

The parts that one file holds come from one commit: the first part of another one starts anew.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mimonets import (
    Engine,
    ExportOptions,
    MIMOConv,
    MIMOConvConfig,
    MIMOFormer,
    Performer,
    WideResNet,
    WideResNetConfig,
    export,
)
from mimonets._memory import keep_freed_memory
from mimonets.cli.main import main as main_command
from mimonets.evaluation import count_macs
from mimonets.evaluation.provenance import environment
from mimonets.evaluation.throughput import quartiles
from mimonets.inference import cpu_features, read_manifest
from mimonets.models.registry import model_class_for
from mimonets.recipes import load_recipe
from mimonets.recipes.execute import read_run

RESULT = Path(__file__).parents[1] / "results" / "bench-engines.json"
ENGINES = ("torch", "onnxruntime", "openvino", "openvino-bf16", "onnxruntime-int8", "openvino-int8")
SMALL_ENGINES = ("torch", "onnxruntime", "openvino", "onnxruntime-int8", "openvino-int8")
BATCH = 16
DEMO = {  # what a network of the demo is, and its recipe
    "keys": "mimoconv-narrow",
    "tiles": "tiles-late",
    "plain": "wideresnet",
    "plain of keys' cost": "wideresnet-small",
}
RUNTIMES = {"onnxruntime": "onnx", "openvino": "openvino"}  # and the format of each
MODES_WRITTEN = (1, 2, 4)
SIZE = 1536  # of the matrices whose product is the machine's best

# A process without PyTorch, as a server would be: open modes, call each with one group.
OPEN_AND_MEASURE = """
import json, sys, time
import numpy as np
from mimonets.inference import Engine
from mimonets.inference.engine import example_inputs

start = time.process_time()
engine = Engine(sys.argv[1], sys.argv[2], threads=int(sys.argv[3]))
first = None
for mode in map(int, sys.argv[4:]):
    engine(example_inputs(engine.input_spec, engine.manifest.answers_per_group(mode)), mode)
    first = first or time.process_time() - start
with open("/proc/self/smaps_rollup", encoding="utf-8") as file:
    size = next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
print(json.dumps({"pss_megabytes": size / 1024, "first_answer_cpu_seconds": first}))
"""


def networks():
    """Make the networks of the paper's main table, with random weights."""
    torch.manual_seed(0)
    return {
        "mimoconv": MIMOConv(MIMOConvConfig(num_streams=4, num_classes=100)).eval(),
        "wideresnet": WideResNet(WideResNetConfig(num_classes=100)).eval(),
    }


def small_networks():
    """Make the demo's networks, and MNIST's with 64 streams, with random weights."""
    torch.manual_seed(0)
    sixteen = load_recipe("mnist-mimoconv-n16").model
    configs = {name: load_recipe(f"digits-writers-{recipe}").model for name, recipe in DEMO.items()}
    many = MIMOConv(replace(sixteen, num_streams=64))
    configs["64 keys"], configs["plain for 64"] = many.config, many.alternatives()[-1]
    return {name: model_class_for(config)(config).eval() for name, config in configs.items()}


def prepare(folder, models):
    """Export networks in float32 and int8; what int8 costs does not matter here.

    For each runtime by itself: exports for OpenVINO alone have a form that it runs faster.
    """
    for name, model in models.items():
        images = model.example_inputs(8)
        for runtime, written in RUNTIMES.items():
            export(
                model,
                folder / name / runtime,
                formats=(written,),
                modes=MODES_WRITTEN if name == "mimoconv" else [model.num_streams],
                int8=[images],
                evaluation=[(images, np.zeros(len(images), np.int64))],
                measure=False,
                options=ExportOptions(
                    max_loss=100,
                    inputs=images,
                    int8_runtimes=[runtime],
                    tell=lambda line: print(line, flush=True),
                ),
            )


def open_engine(folder, name, backend):
    """Open a network in an engine, from what was exported for its runtime."""
    runtime = backend.partition("-")[0]
    runtime = runtime if runtime in RUNTIMES else "onnxruntime"
    return Engine(folder / name / runtime, backend, threads=1)


def race(contenders, rounds, warmup=1):
    """CPU seconds of each contender, round after round, each starting with another one."""
    for _, run in contenders * warmup:
        run()
    seconds = {name: [] for name, _ in contenders}
    for number in range(rounds):
        first = number % len(contenders)
        for name, run in [*contenders[first:], *contenders[:first]]:
            start = time.process_time()
            run()
            seconds[name].append(time.process_time() - start)
        print(f"round {number + 1} of {rounds}", flush=True)
    return seconds


def ratio(seconds, one, other):
    """Say how many times as fast ``one`` is as ``other``, round by round."""
    low, middle, high = quartiles(
        [b / a for a, b in zip(seconds[one], seconds[other], strict=True)]
    )
    return {"median": middle, "low": low, "high": high}


MODELS = dict.fromkeys(
    ("1 active", "2 active", "4 active"), MIMOConvConfig(num_streams=4, num_classes=100)
) | {"WideResNet": WideResNetConfig(num_classes=100)}
MODES = {"1 active": 1, "2 active": 2, "4 active": 4, "WideResNet": 1}


def conv(folder, rounds):
    """Race MIMOConv-28-10 and WideResNet-28-10 in every engine."""
    images = np.random.default_rng(0).standard_normal((BATCH, 3, 32, 32), dtype=np.float32)
    contenders = []
    for backend in ENGINES:
        plain = open_engine(folder, "wideresnet", backend)
        ours = open_engine(folder, "mimoconv", backend)
        contenders.append((f"{backend}, WideResNet", lambda e=plain: e(images)))
        for mode in (1, 2, 4):
            contenders.append((f"{backend}, {mode} active", lambda e=ours, m=mode: e(images, m)))
    gemms = products()
    contenders += [(f"gemm {name}", run) for name, run in gemms.items()]
    seconds = race(contenders, rounds)
    peak = {name: SIZE**3 / statistics.median(seconds[f"gemm {name}"]) for name in gemms}
    rows = []
    for backend in ENGINES:
        for what in ("WideResNet", "1 active", "2 active", "4 active"):
            name = f"{backend}, {what}"
            per_input = count_macs(MODELS[what], MODES[what]).paper
            rate = BATCH / statistics.median(seconds[name])
            precision = backend.partition("-")[2] or "float32"
            rows.append(
                {
                    "engine": backend,
                    "network": what,
                    "inputs_per_second": rate,
                    "over_eager_wideresnet": ratio(seconds, name, "torch, WideResNet"),
                    "over_same_engine_wideresnet": ratio(seconds, name, f"{backend}, WideResNet"),
                    "over_one_active": ratio(seconds, name, f"{backend}, 1 active"),
                    "share_of_gemm": rate * per_input / peak[precision],
                    "seconds": seconds[name],
                }
            )
    return {"batch_size": BATCH, "gemm_gmacs": {k: v / 1e9 for k, v in peak.items()}, "rows": rows}


def large(folder, rounds, batch=64):
    """Race the fast and the slow mode, and WideResNet, in the engines at a larger batch."""
    images = np.random.default_rng(0).standard_normal((batch, 3, 32, 32), dtype=np.float32)
    names = ("onnxruntime", "openvino", "onnxruntime-int8", "openvino-int8")
    contenders = []
    for name in names:
        engine, plain = (open_engine(folder, one, name) for one in ("mimoconv", "wideresnet"))
        contenders.append((f"{name}, WideResNet", lambda e=plain: e(images)))
        for mode in (1, 4):
            contenders.append((f"{name}, {mode}", lambda e=engine, m=mode: e(images, m)))
    seconds = race(contenders, rounds)
    return {
        "batch_size": batch,
        "over_one_active": {name: ratio(seconds, f"{name}, 4", f"{name}, 1") for name in names},
        "over_wideresnet": {
            name: ratio(seconds, f"{name}, 4", f"{name}, WideResNet") for name in names
        },
        "seconds": seconds,
    }


def small(folder, rounds):
    """Race small networks, all streams busy, in every engine and several batch sizes."""
    models = small_networks()
    rows = []
    races = ((4, "plain"), (64, "plain"), (64, "plain for 64"), (256, "plain for 64"))
    for size, plain in races:
        names, calls = [name for name in models if ("64" in name) == ("64" in plain)], 256 // size
        images = models[plain].example_inputs(size).numpy()
        contenders = []
        for backend in SMALL_ENGINES:
            for name in names:
                engine = (
                    Engine(models[name], backend, threads=1)
                    if backend == "torch"
                    else open_engine(folder, name, backend)
                )
                run = partial(several, engine, images, calls)
                contenders.append((f"{backend}, {name}", run))
        seconds = race(contenders, rounds, warmup=3)
        rows += [
            {
                "engine": backend,
                "network": name,
                "batch_size": size,
                "milliseconds": 1000 * statistics.median(seconds[f"{backend}, {name}"]) / calls,
                "over_plain": ratio(seconds, f"{backend}, {name}", f"{backend}, {plain}"),
            }
            for backend in SMALL_ENGINES
            for name in names
        ]
    return rows


def products():
    """Make large matrix products: what the machine gives at best."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    whole = torch.randint(-127, 127, (SIZE, SIZE), dtype=torch.int8)
    x, y = a.bfloat16(), b.bfloat16()
    return {
        "float32": lambda: a @ b,
        "bf16": lambda: x @ y,
        "int8": lambda: torch._int_mm(whole, whole),
    }


def memory_of(folder, engine, modes, threads):
    """Measure the proportional set size with no, one and all modes open, a fresh process each."""
    found = {}
    for what, some in (("nothing", []), ("one mode", modes[-1:]), ("all modes", modes)):
        arguments = [str(folder), engine, str(threads), *map(str, some)]
        done = subprocess.run(
            [sys.executable, "-c", OPEN_AND_MEASURE, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        found[what] = json.loads(done.stdout)
    return found


def memory(folder):
    """Measure memory with no, one and all modes open."""
    names = ("onnxruntime", "onnxruntime-int8", "openvino", "openvino-int8")
    return {
        name: memory_of(folder / "mimoconv" / name.partition("-")[0], name, MODES_WRITTEN, 1)
        for name in names
    }


def several(engine, inputs, number):
    """Call an engine several times in a row, all streams busy."""
    for _ in range(number):
        engine(inputs)


def digits(folder, rounds=20, calls=20):
    """Time one group of the digits network: some calls in a row, engine after engine."""
    if not (folder / "digits").is_dir():
        export("digits", folder / "digits", modes=(4,), measure=False)
    image = np.zeros((4, 1, 8, 8), np.float32)
    names = ("torch", "onnxruntime", "openvino")
    engines = {name: Engine(folder / "digits", name, threads=1) for name in names}

    found = {}
    # In a row an engine finds its network in the cache; in turn the others have thrown it out.
    for what, number, times in (("in a row", calls, rounds), ("in turn", 1, 10 * rounds)):
        contenders = [(name, partial(several, e, image, number)) for name, e in engines.items()]
        seconds = race(contenders, times, warmup=3)
        found[what] = {
            name: {
                "milliseconds": 1000 * statistics.median(seconds[name]) / number,
                "over_eager": ratio(seconds, name, "torch"),
            }
            for name in names
        }
    return found


def accuracy(folder, run, data_dir, modes):
    """Export a trained run, or what ships, with int8; keep what the manifest says of every mode."""
    name = read_run(run).name if (Path(run) / "recipe.yaml").is_file() else run
    options = ["--data-dir", data_dir] if data_dir else []
    options += ["--active-streams", modes] if modes else []
    if main_command(["export", run, "--out", str(folder / name), "--int8", *options]):
        raise SystemExit(2)
    manifest = read_manifest(folder / name)
    return {
        name: {
            "modes": [vars(mode) for mode in manifest.modes],
            "notes": {kind: graphs.notes for kind, graphs in manifest.formats.items()},
        }
    }


def former(folder, rounds):
    """Race MIMOFormer 4x4 against the Performer on LRA Text at full length."""
    torch.manual_seed(0)
    variants = {"mlp": "attention+mlp", "qkv": "attention+mlp+qkv"}
    recipe = load_recipe("lra-text-performer")
    models = {"Performer": Performer(recipe.model).eval()}
    for variant, kind in variants.items():
        recipe = load_recipe(f"lra-text-mimoformer-4x4-{variant}")
        models[kind] = MIMOFormer(recipe.model).eval()
    tokens = np.random.default_rng(0).integers(256, size=(16, 4096))
    contenders = []
    for name, model in models.items():
        place = folder / name.replace("+", "-")
        streams = model.num_streams
        if not place.is_dir():
            short = torch.from_numpy(tokens[:, :64])
            options = ExportOptions(inputs=short)
            export(model, place, modes=(streams,), measure=False, options=options)
        for backend in ("torch", "openvino"):
            engine = Engine(place, backend, threads=1)
            engine(tokens[:, :64], streams)
            contenders.append((f"{backend}, {name}", lambda e=engine, s=streams: e(tokens, s)))
    seconds = race(contenders, rounds, warmup=0)
    return {
        "tokens": 4096,
        "blocks": recipe.model.depth,
        "rows": [
            {
                "engine": name.partition(", ")[0],
                "network": name.partition(", ")[2],
                "sequences": len(tokens),
                "sequences_per_second": len(tokens) / statistics.median(seconds[name]),
                "over_performer": ratio(seconds, name, f"{name.partition(', ')[0]}, Performer"),
                "seconds": seconds[name],
            }
            for name, _ in contenders
        ],
    }


def compiled(rounds):
    """Race torch.compile against eager, all streams busy."""
    images = np.random.default_rng(0).standard_normal((BATCH, 3, 32, 32), dtype=np.float32)
    contenders, starts = [], {}
    for name, model in networks().items():
        for backend in ("torch", "compiled"):
            engine = Engine(model, backend, threads=1)
            start = time.process_time()
            engine(images)
            starts[f"{backend}, {name}"] = time.process_time() - start
            contenders.append((f"{backend}, {name}", lambda e=engine: e(images)))
    seconds = race(contenders, rounds)
    return {
        title: {
            "inputs_per_second": BATCH / statistics.median(seconds[title]),
            "over_eager_wideresnet": ratio(seconds, title, "torch, wideresnet"),
            "first_answer_cpu_seconds": starts[title],
        }
        for title, _ in contenders
    }


def main():
    """Run one part, and write what it measured beside the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("prepare", "prepare-small", "conv", "large", "small", "memory", "digits")
    parts += ("accuracy", "former", "compiled")
    parser.add_argument("part", choices=parts)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", default="runs/digits-mimoconv-dynamic")
    parser.add_argument("--data-dir", help="accuracy: where the data of the run are")
    parser.add_argument("--active-streams", help="accuracy: only these modes, such as 1,4,16")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.part.startswith("prepare"):
        prepare(args.folder, networks() if args.part == "prepare" else small_networks())
        return
    keep_freed_memory()
    if args.part == "conv":
        found = {"conv": conv(args.folder, args.rounds)}
    elif args.part == "large":
        found = {"large": large(args.folder, args.rounds)}
    elif args.part == "small":
        found = {"small": small(args.folder, args.rounds)}
    elif args.part == "memory":
        found = {"memory": memory(args.folder)}
    elif args.part == "digits":
        found = {"digits": digits(args.folder)}
    elif args.part == "accuracy":
        found = {"accuracy": accuracy(args.folder, args.run, args.data_dir, args.active_streams)}
    elif args.part == "compiled":
        found = {"compiled": compiled(args.rounds)}
    else:
        found = {"former": former(args.folder, args.rounds)}
    where = environment()
    where["command"] = "python benchmarks/engines.py PART DIR, part by part"
    record = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    commits = dict.fromkeys(found.get("accuracy", found), where["commit"])
    commits = {**record.get("commits", {}), **commits}  # part by part, each from its own
    before = dict.fromkeys(record.keys() & {*parts}, record.get("environment", {}).get("date"))
    dates = {**before, **record.get("dates", {}), **dict.fromkeys(found, where["date"])}
    if "accuracy" in found:
        found["accuracy"] = {**record.get("accuracy", {}), **found["accuracy"]}
    record = {**record, **found, "commits": commits, "dates": dates}
    record["environment"] = {**where, "threads": 1, "features": cpu_features()}
    RESULT.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
