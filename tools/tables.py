"""Write the tables of README and docs from the files in results/: ``make tables``.

A page's tables are found by their header line; several with the same header stand in the order of
the list of pages. Sentences with numbers are for people to edit: those out of date are printed.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from mimonets.evaluation import count_macs
from mimonets.experiments import experiments
from mimonets.experiments.advice import written as score_of
from mimonets.experiments.cost import plan_needs
from mimonets.experiments.plan import printed
from mimonets.experiments.report import written
from mimonets.recipes import load_recipe
from results_files import ROOT, result, table
from serving_tables import MEASURED, policy_table

SIGNS = {"bound": "≤", "closed form": "=", "approximation": "≈"}


def mimoconv_table(name="bench-mimoconv"):
    record = result(name)
    one, plain = "MIMOConv-28-10 (N=1)", "WideResNet-28-10"
    rows = []
    for contender in record["contenders"]:
        active = contender["active_streams"]
        speedup = contender["speedup"]
        low, high = contender["quartiles"]
        rows.append(
            [
                contender["name"].partition(",")[0] + (f", {active} active" if active else ""),
                f"{contender['inputs_per_second']:.1f} ({low:.1f}-{high:.1f})",
                f"{speedup[one]['median']:.2f}",
                f"{speedup[plain]['median']:.2f}",
                f"{record['macs_per_input'][contender['name']] / 1e6:.0f}",
            ]
        )
    header = ["network", "inputs/s (quartiles)", "× one stream", "× WideResNet", "MMAC/input"]
    return table(header, rows)


def mimoformer_table():
    record = result("bench-mimoformer")
    macs = record["macs_per_input"]
    rows = [
        [
            contender["name"].rpartition(",")[0] or contender["name"],
            f"{contender['inputs_per_second']:.2f}",
            f"{contender['speedup']['Performer']['median']:.2f}",
            f"{macs['Performer'] / macs[contender['name']]:.2f}",
            f"{contender['peak_bytes'] / 1e9:.2f}",
        ]
        for contender in record["contenders"]
    ]
    header = ["network", "sequences/s", "× Performer", "its MACs say", "peak GB"]
    return table(header, rows)


def engine_name(backend):
    return "eager" if backend == "torch" else backend


def engines_table():
    """MIMOConv-28-10 in every engine."""
    rows = []
    found = result("bench-engines")["conv"]
    peaks = {name.removeprefix("gemm ") for name in found["gemm_gmacs"]}
    for row in found["rows"]:
        if row["network"] == "2 active":
            continue
        eager, same, one = (
            f"{row[key]['median']:.2f}"
            for key in (
                "over_eager_wideresnet",
                "over_same_engine_wideresnet",
                "over_one_active",
            )
        )
        name = engine_name(row["engine"])
        plain = row["network"] == "WideResNet"
        rows.append(
            [
                f"`{name}`",
                "WideResNet-28-10" if plain else f"MIMOConv-28-10, {row['network']}",
                f"{row['inputs_per_second']:.1f}",
                eager,
                same,
                "" if plain else one,
                f"{row['share_of_gemm']:.0%}"
                if (row["engine"].partition("-")[2] or "float32") in peaks
                else "",
            ]
        )
    header = ["engine", "network", "inputs/s", "× eager WideResNet", "× WideResNet, same engine"]
    return table([*header, "× 1 active", "of GEMM peak"], rows, left=2)


def engines_memory_table():
    """Memory and cold start of a process without PyTorch."""
    rows = []
    for engine, found in result("bench-engines")["memory"].items():
        one, every = (found[what]["pss_megabytes"] for what in ("one mode", "all modes"))
        first = found["one mode"]["first_answer_cpu_seconds"]
        rows.append(
            [f"`{engine}`", f"{one:.0f}", f"{every:.0f}", f"{every / one:.2f}", f"{first:.2f}"]
        )
    header = ["engine", "one point, MB", "every point, MB", "ratio", "first answer after, s"]
    return table(header, rows)


def engines_digits_table():
    """One group of the digits network: calls in a row, and in turn with other engines."""
    found = result("bench-engines")["digits"]
    rows = [
        [
            f"`{engine_name(name)}`",
            *(
                cell
                for what in ("in a row", "in turn")
                for cell in (
                    f"{found[what][name]['milliseconds']:.2f}",
                    f"{found[what][name]['over_eager']['median']:.1f}",
                )
            ),
        ]
        for name in found["in a row"]
    ]
    header = ["engine", "in a row, ms", "times as fast as eager", "in turn, ms"]
    return table([*header, "times as fast as eager"], rows)


def engines_small_table():
    """The demo's networks in every engine."""
    found = {}
    for row in result("bench-engines")["small"]:
        if "64" not in row["network"]:
            cells = [f"{row['milliseconds']:.2f}", f"{row['over_plain']['median']:.2f}"]
            found.setdefault((row["engine"], row["network"]), []).extend(cells)
    rows = [[f"`{engine_name(engine)}`", name, *cells] for (engine, name), cells in found.items()]
    header = ["engine", "network", "batch 4, ms", "× plain", "batch 64, ms", "× plain"]
    return table(header, rows, left=2)


def engines_many_table():
    """Sixty-four images per pass."""
    found = {}
    for row in result("bench-engines")["small"]:
        if "64" in row["network"]:
            found.setdefault((row["engine"], row["batch_size"]), {})[row["network"]] = row
    rows = [
        [
            f"`{engine_name(engine)}`",
            str(size),
            *(f"{row[name]['milliseconds']:.2f}" for name in ("64 keys", "plain for 64")),
            f"{row['64 keys']['over_plain']['median']:.1f}",
        ]
        for (engine, size), row in sorted(found.items(), key=lambda pair: pair[0][1])
    ]
    return table(["engine", "per call", "64 keys, ms", "plain, ms", "times as fast"], rows)


def engines_compiled_table():
    """torch.compile against eager."""
    names = {"wideresnet": "WideResNet-28-10", "mimoconv": "MIMOConv-28-10, 4 active"}
    rows = [
        [
            f"`{engine_name(title.partition(', ')[0])}`",
            names[title.partition(", ")[2]],
            f"{row['inputs_per_second']:.1f}",
            f"{row['over_eager_wideresnet']['median']:.2f}",
            f"{row['first_answer_cpu_seconds']:.0f}",
        ]
        for title, row in result("bench-engines")["compiled"].items()
    ]
    header = ["engine", "network", "inputs/s", "× eager WideResNet", "first answer after, s"]
    return table(header, rows, left=2)


def engines_accuracy_table():
    """What int8 costs, by operating point."""
    rows = []
    for name, found in result("bench-engines")["accuracy"].items():
        for mode in found["modes"]:
            cells = [
                f"{mode['accuracy'][kind]:.2%}"
                for kind in ("float32", "onnxruntime-int8", "openvino-int8")
            ]
            rows.append([f"`{name}`", str(mode["active_streams"]), *cells])
    header = ["run", "active", "float32", "`onnxruntime-int8`", "`openvino-int8`"]
    return table(header, rows)


def engines_large_batch():
    """How much the fast mode gains at a larger batch."""
    found = result("bench-engines")["large"]
    over_one, over_plain = found["over_one_active"], found["over_wideresnet"]
    return table(
        ["engine", "× 1 active", "× WideResNet, same engine"],
        [
            [f"`{name}`", f"{gain['median']:.2f}", f"{over_plain[name]['median']:.2f}"]
            for name, gain in over_one.items()
        ],
    )


def engines_former_table():
    """MIMOFormer against the Performer, engine by engine."""
    rows = [
        [
            f"`{engine_name(row['engine'])}`",
            row["network"]
            if row["network"] == "Performer"
            else f"MIMOFormer 4x4, {row['network']}",
            str(row["sequences"]),
            f"{row['sequences_per_second']:.3f}",
            f"{row['over_performer']['median']:.2f}",
        ]
        for row in result("bench-engines")["former"]["rows"]
    ]
    header = ["engine", "network", "per call", "sequences/s", "× Performer, same engine"]
    return table(header, rows, left=2)


def engines_machine():
    """What the engines were measured on."""
    where = result("bench-engines")["environment"]
    features = [name for name in ("avx512", "vnni", "bf16") if where["features"][name]]
    return f"one core of an {where['cpu']} ({', '.join(features)}), PyTorch {where['torch']}"


def against_table():
    """Latency and throughput against what one would run instead, image networks."""
    found = result("bench-against")["images"]
    sizes = found["settings"]["batch_sizes"]
    calls = {}  # network and engine -> milliseconds of a call, by batch size
    for row in found["rows"]:
        calls.setdefault((row["network"], row["engine"]), []).append(row["milliseconds"])
    rows = []
    for (network, engine), times in sorted(calls.items(), key=lambda row: row[0][0]):
        cells = [f"{time['50']:.2f} / {time['99']:.2f}" for time in times]
        rate = 1000 * sizes[-1] / times[-1]["50"]
        rows.append([network, f"`{engine}`", *cells, f"{rate:.0f}"])
    header = ["network", "engine", *(f"batch {size}, ms" for size in sizes)]
    return table([*header, f"inputs/s at batch {sizes[-1]}"], rows, left=2)


def against_sequences_table():
    """The same for sequences, one block of LRA Text."""
    rows = result("bench-against")["sequences"]["rows"]
    times = {row["network"]: row["cpu_milliseconds"] / row["batch_size"] for row in rows}
    return table(
        ["network, one block", "CPU ms per sequence", "× Performer"],
        [
            [name.rpartition(",")[0] or name, f"{time:.0f}", f"{times['Performer'] / time:.2f}"]
            for name, time in times.items()
        ],
    )


def conditions_table():
    """How and when each figure of the page was measured."""
    engines, dates = result("bench-engines"), result("bench-engines").get("dates", {})
    last = engines["environment"]["date"]
    rows = [
        [what, size, "1", "CPU", dates.get(part, last), "bench-engines"]
        for part, what, size in (
            ("conv", "MIMOConv-28-10, every engine", str(engines["conv"]["batch_size"])),
            ("large", "the same, larger batch", str(engines["large"]["batch_size"])),
            ("compiled", "`torch.compile`", "16"),
            ("digits", "digits network", "4"),
            ("small", "the demo's networks, 64 keys", "4, 64; 64, 256"),
            ("memory", "memory", "one group"),
            ("former", "MIMOFormer, engines", "per call in the table"),
        )
    ]
    for part, what in (("images", "images against others"), ("sequences", "sequences")):
        found = result("bench-against")[part]
        sizes = ", ".join(map(str, found["settings"]["batch_sizes"]))
        clock = "wall" if part == "images" else "CPU"
        rows.append([what, sizes, "1", clock, found["environment"]["date"], "bench-against"])
    for name, what in (
        ("bench-mimoconv", "MIMOConv-28-10, eager"),
        ("bench-mimoconv-channels-last", "the same, channels last"),
        ("bench-mimoformer", "MIMOFormer, eager"),
    ):
        found = result(name)
        settings = found["settings"]
        size = str(settings.get("batch_size") or settings["batch_sizes"][0])
        rows.append(
            [what, size, str(settings["threads"]), "wall", found["environment"]["date"], name]
        )
    where = result("bench-isometry")["environment"]
    threads = str(where["threads"])
    rows.append(["penalty", "weights only", threads, "wall", where["date"], "bench-isometry"])
    date = result("bench-allocator")["environment"]["date"]
    rows.append(["kept memory, training", "2,048", "1", "CPU", date, "bench-allocator"])
    rows = [[*row[:-1], f"[{row[-1]}](../results/{row[-1]}.json)"] for row in rows]
    return table(["what", "inputs per call", "threads", "clock", "date", "source"], rows)


def demo_table():
    """What `mimonets demo` printed: accuracy and speed of one training of each network."""
    found = result("demo-digits")
    batches = list(found["rows"][0]["speedup"])
    rows = [
        [
            row["name"],
            str(row["inputs_per_pass"]),
            f"{row['macs'] / 1e6:.2f}",
            "{:.1f} ({:.1f} to {:.1f})".format(
                *(100 * share for share in (row["accuracy"], *row["interval"]))
            ),
            *(f"{row['inputs_per_second'][b]:,.0f} ({row['speedup'][b]:.1f}x)" for b in batches),
        ]
        for row in found["rows"]
    ]
    header = ["network", "inputs per pass", "MMAC/input", "accuracy on 297 digits, %"]
    return table([*header, *(f"inputs/s, batch {batch}" for batch in batches)], rows)


def shipped_table():
    """The networks that ship: how inputs share a pass, and accuracy by inputs per pass."""
    rows = []
    for name, entry in sorted(result("pretrained")["models"].items()):
        summary = entry["card"]["summary"]
        how = next((word for word in ("tiles", "keys") if word in summary), "plain")
        points = [f"{n}: {100 * point['accuracy']:.1f} %" for n, point in entry["modes"].items()]
        rows.append([f"`{name}`", how, ", ".join(points)])
    return table(
        ["network", "how inputs share a pass", "test accuracy by inputs per pass"], rows, 3
    )


def superposed_digits_table():
    rows = [
        [
            row["name"],
            str(row["active_streams"]),
            f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
            f"{row['million_macs']:.2f}",
        ]
        for row in result("superpose-digits")["rows"]
    ]
    return table(["network", "inputs per pass", "test accuracy, %", "MMAC/input"], rows)


def superposed_table(name):
    rows = [
        [
            row["name"] + (f", {row['steps']} steps" if "steps" in row else ""),
            str(row["active_streams"]),
            f"{100 * row['accuracy']:.1f} ({100 * row['interval'][0]:.1f} to "
            f"{100 * row['interval'][1]:.1f})",
            f"{row['macs'] / 1e6:.0f}",
        ]
        for row in result(name)["rows"]
    ]
    return table(["network", "inputs per pass", "test accuracy, %", "MMAC/input"], rows)


def compare_table(name):
    """Show every candidate of ``mimonets compare``."""
    rows = result(name)["rows"]
    score = "accuracy" if "accuracy" in rows[0] else "loss"
    cells = [
        [
            *(row["name"], str(row["inputs_per_pass"]), score_of(row).removeprefix("loss ")),
            *(f"{row['macs'] / 1e6:.3g}", f"{row['speed']:.2f}x", row["engine"]),
            f"{row['memory'] / 1e6:.1f}",
        ]
        for row in rows
    ]
    unit = ", %" if score == "accuracy" else ""
    header = ["candidate", "inputs per pass", f"test {score}{unit}", "MMAC/input", "speed"]
    return table([*header, "engine", "memory, MB"], cells)


def advice_table():
    """Show what ``mimonets compare`` said of every network that it was measured with."""
    names = sorted(path.stem for path in (ROOT / "results").glob("compare-*.json"))
    rows = [
        [f"[{name.removeprefix('compare-').replace('-', ' ')}](experiments/{name}.md)", found]
        for name, found in ((name, result(name)["advice"]) for name in names)
    ]
    return table(["worked example", "advice"], rows)


def superpose_overhead():
    found = result("bench-superpose")["overhead"]
    return " and ".join(f"{100 * found[mode]['median']:+.1f} %" for mode in ("1", "4"))


def outside_the_trunk():
    shares = result("bench-mimoconv")["time_shares"]["MIMOConv-28-10 (N=4), 4 active"]
    return f"{shares['stem'] + shares['binding'] + shares['unbinding']:.1%}"


def isometry_speedup():
    return f"{result('bench-isometry')['speedup']['median']:.1f}"


def allocator_speedup():
    return f"{result('bench-allocator')['speedup']['median']:.1f} times as long"


def machine():
    where = result("bench-mimoconv")["environment"]
    cores = f"{where['cores']} cores of an {where['cpu']}, {where['threads']} threads"
    return f"{cores}, PyTorch {where['torch']}"


PAPER = {
    name.removeprefix("lra-text-"): parts["total"]
    for name, parts in printed()["mimoformer"].items()
}


def text_cost_rows():
    rows = []
    for variant in (*PAPER, "mimoformer-2x2-qkv", "mimoformer-4x4-qkv"):
        cost = count_macs(load_recipe(f"lra-text-{variant}").model)
        parts = {part.name: part.paper / 1e9 for part in cost.parts}
        cells = [
            f"{parts[name]:.{digits}f}" if name in parts else ""
            for name, digits in (
                *(("K/Q/V", 2), ("attention", 2), ("binding", 3), ("MLPs", 2), ("readout", 3)),
            )
        ]
        rows.append([f"`{variant}`", *cells, f"{cost.paper / 1e9:.1f}", PAPER.get(variant, "")])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def datamux_rows():
    rows = []
    for streams, paper in ((1, "0.88"), (16, "0.65")):
        cost = count_macs(load_recipe(f"mnist-datamux-n{streams}").model)
        parts = [f"{part.plain / 1e6:.4f}" for part in cost.parts]
        rows.append([f"N={streams}", *parts, f"{cost.plain / 1e6:.3f}", paper])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def recall_rows():
    rows = result("recall-in-superposition")["rows"]
    found = {(row["extent"], row["grid"], row["embedding"], row["head"]): row for row in rows}
    return "\n".join(
        f'| `"{extent}"` | '
        + " | ".join(
            f"{found[extent, grid, 512, head]['accuracy']:.1%}"
            for grid in (2, 4)
            for head in (512, 2048)
        )
        + " |"
        for extent in ("attention", "attention+mlp", "attention+mlp+qkv")
    )


def experiment_table(name):
    """Ours beside the paper's, row by row."""
    rows = []
    for row in result(name)["rows"]:
        seeds = str(row["seeds"]) if row.get("seeds") else ""
        ours = written(row, "ours", "deviation") or "not run"
        cells = [row["what"], row["unit"], ours, written(row, "paper", "paper_deviation"), seeds]
        rows.append([*cells, ": ".join(filter(None, (row["verdict"], row.get("note"))))])
    return table(["", "unit", "ours", "paper", "seeds", "verdict"], rows)


def cost_differences():
    """Rows of the cost tables that differ, and how many do not."""
    rows = []
    for name in ("cost-mimoconv", "cost-mimoformer"):
        for row in result(name)["rows"]:
            if row["verdict"] != "reproduced":
                cells = [written(row, "ours", "-"), written(row, "paper", "-"), row["note"]]
                rows.append([f"`{row['what'].replace(': ', '`: ')}", row["unit"], *cells])
        same = sum(row["verdict"] == "reproduced" for row in result(name)["rows"])
        rows.append([f"`{name}`: {same} other figures", "", "", "", "reproduced"])
    return table(["", "unit", "ours", "paper", "why"], rows)


def three_digits(value):
    return f"{value:.3g}"


def bounds_rows():
    rows = [
        [
            row["name"],
            row["source"],
            row["setting"],
            f"{SIGNS[row['kind']]} {three_digits(row['value'])}",
            f"{three_digits(row['simulated']['mean'])} ± {row['simulated']['standard_error']:.1g}",
        ]
        for row in result("bounds")["report"]["rows"]
        if not row["name"].startswith("FAVOR+S")
    ]
    return table(["formula", "source", "setting", "value", "simulated"], rows, left=3)


def crosstalk_rows():
    found = {}
    for row in result("bounds")["report"]["rows"]:
        if row["name"].startswith("FAVOR+S"):
            setting = row["setting"].removesuffix(", cos 0.9, α=0.5")
            found.setdefault(setting, {})[row["name"].removeprefix("FAVOR+S, ")] = row
    names = list(next(iter(found.values())))
    rows = [
        [
            setting,
            *[three_digits(bounds[name]["value"]) for name in names],
            three_digits(bounds[names[0]]["simulated"]["mean"]),
        ]
        for setting, bounds in found.items()
    ]
    return table(["streams", *names[:-1], "Bernstein (ours)", "simulated"], rows)


def published_table():
    """Published networks, none of them measured by us."""
    rows = [
        [
            row["network"],
            str(row["mmac"]),
            f"{row['cifar10']:.2f}",
            f"{row['cifar100']:.2f}",
            row["source"],
        ]
        for row in result("published-networks")["rows"]
    ]
    return table(["network", "MMAC/input", "CIFAR-10, %", "CIFAR-100, %", "source"], rows)


def measured_rows(name):
    """Accuracy beside cost of what has been run of an experiment."""
    rows = [
        [
            row["what"],
            str(row["streams"]),
            f"{row['macs'] / 1e6:.2f}",
            written(row, "ours", "deviation"),
            str(row["seeds"]),
        ]
        for row in result(name)["rows"]
        if "ours" in row
    ]
    return table(["network", "inputs per pass", "MMAC/input", "test accuracy, %", "seeds"], rows)


def demo_parts_table():
    """The demo's networks on four parts of the digits, and the points between them."""
    found = {row["what"]: row for row in result("demo-seeds")["rows"]}
    parts = ["digits 1-300", "digits 301-600", "digits 601-900", "digits 1501-1797", "all four"]
    small = "WideResNet of fast mode's cost"
    networks = [
        (name, name, "", name) for name in ("WideResNet", "WideResNet trained as long", small)
    ]
    for binding, title, before in (
        ("keys", "MIMOConv with keys", "keys, "),
        ("late tiles", "MIMOConv in late tiles", ""),
    ):
        for mode, active in (("slow", 1), ("normal", 2), ("fast", 4)):
            apart = f"{before}{mode} mode"  # as the differences name it
            networks.append((f"{binding}, {mode} mode", title, f", {active} active", apart))
    rows = [
        [
            name,
            *(written(found[f"{title}, {part}{mode}"], "ours", "deviation") for part in parts),
            written(found.get(f"{apart} - WideResNet", {}), "ours", "deviation"),
            written(found.get(f"{apart} - WideResNet trained as long", {}), "ours", "deviation"),
        ]
        for name, title, mode, apart in networks
        if f"{title}, all four{mode}" in found
    ]
    return table(["test accuracy, %", *parts, "beside WideResNet", "trained as long"], rows)


def gears_table(name="gears"):
    """One set of weights in two gears, and the pair: speed, memory, accuracy by training."""
    found = {}
    for row in result(name)["rows"]:
        if row["unit"] == "%":
            title = row["what"].replace(", longer", "")
            found.setdefault(title, {})[row.get("variant", "test accuracy, %")] = row
    lengths = list(dict.fromkeys(length for cells in found.values() for length in cells))
    rows = [
        [
            row["what"],
            f"{row['macs'] / 1e6:.2f}",
            f"{row['inputs_per_second']:.0f}",
            f"`{row['engine']}`",
            f"{row['weight_bytes'] / 1e3:.0f}",
            f"{row['peak_bytes'] / 1e6:.1f}",
            *(with_seeds(found[row["what"]].get(length, {})) for length in lengths),
        ]
        for row in result(f"{name}-speed")["rows"]
        if ", longer" not in row["what"]
    ]
    header = ["network", "MMAC/input", "inputs/s", "engine", "weights, kB", "a pass, MB"]
    return table([*header, *lengths], rows)


def ensemble_table():
    """Slow mode beside a plain network: one line per network, one column per measure."""
    found = {}
    for row in result("ensemble")["rows"]:
        if "ours" in row:
            title, _, measure = row["what"].partition(": ")
            found.setdefault(title, {})[measure or "accuracy"] = row
    measures = list(next(iter(found.values())))
    rows = [
        [
            title,
            f"{cells['accuracy']['macs'] / 1e6:.2f}",
            str(cells["accuracy"]["seeds"]),
            *(written_short(cells[measure]) for measure in measures),
        ]
        for title, cells in found.items()
    ]
    units = {name: row["unit"] for name, row in next(iter(found.values())).items()}
    return table(["network", "MMAC/input", "seeds", *(f"{m}, {units[m]}" for m in measures)], rows)


def written_short(row):
    digits = 3 if row["unit"] == "nats" else 1
    spread = f" ± {row['deviation']:.{digits}f}" if "deviation" in row else ""
    return f"{row['ours']:.{digits}f}{spread}"


def speed_rows(name):
    """Accuracy beside cost and measured speed of what has been run of an experiment."""
    speeds = {row["what"]: row for row in result(f"{name}-speed")["rows"]}
    rows = [
        [
            row["what"],
            str(row["streams"]),
            f"{row['macs'] / 1e6:.2f}",
            f"{speeds[row['what']]['inputs_per_second']:.0f}" if row["what"] in speeds else "",
            f"`{speeds[row['what']]['engine']}`" if row["what"] in speeds else "not timed",
            written(row, "ours", "deviation"),
            str(row["seeds"]),
        ]
        for row in result(name)["rows"]
        if "ours" in row and row["unit"] == "%"
    ]
    header = ["network", "inputs per pass", "MMAC/input", "inputs/s", "engine"]
    return table([*header, "test accuracy, %", "seeds"], rows)


def cifar_map_table():
    """A line per network, a column per length of training; other than three seeds are named."""
    lengths = ("3 epochs", "10 epochs", "30 epochs")
    found = {}
    for row in result("cifar-map")["rows"]:
        network, _, length = row["what"].rpartition(", ")
        if row["unit"] == "%":
            found.setdefault(network, {})[length] = row
    speeds = {
        row["what"].rpartition(", ")[0]: row["inputs_per_second"]
        for row in result("cifar-map-speed")["rows"]
    }
    rows = []
    for network, cells in found.items():
        measured = [row for row in cells.values() if "ours" in row]
        if measured:
            cost = f"{measured[0]['macs'] / 1e6:.2f}", f"{speeds[network]:.0f}"
            cells = [with_seeds(cells.get(length, {})) for length in lengths]
            rows.append([network, str(measured[0]["streams"]), *cost, *cells])
    return table(["network", "inputs per pass", "MMAC/input", "inputs/s", *lengths], rows)


def with_seeds(row):
    if row.get("diverged"):
        return row["note"]
    seeds = row.get("seeds", 0)
    few = "" if seeds in (0, 3) else f" ({seeds} seed{'s' if seeds > 1 else ''})"
    return written(row, "ours", "deviation") + few


def pays_table():
    """The best in superposition beside the plain network of its cost, trained alike."""
    found = {
        row["what"]: row for name in ("mnist-map", "cifar-map") for row in result(name)["rows"]
    }
    plans = experiments()
    rows = []
    for name, data in (("mnist-map", "MNIST"), ("cifar-map", "CIFAR-10")):
        for one in plans[name].plan.differences:
            ours, plain, apart = (found[title] for title in (one.of, one.above, one.title))
            if apart["seeds"] < 3:
                continue
            distilled = ", both distilled" if "distilled" in one.title else ""
            length = f", {one.title.rpartition(', ')[2]}" if "epochs" in one.title else ""
            cells = [written(row, "ours", "deviation") for row in (ours, plain)]
            rows.append(
                [
                    f"{data}, {ours['streams']} per pass{length}{distilled}",
                    f"{ours['macs'] / 1e6:.2f}",
                    *cells,
                    f"{apart['ours']:+.2f} ± {apart['deviation']:.2f}",
                ]
            )
    header = ["test accuracy, %", "MMAC/input", "late tiles", "plain, one per pass", "difference"]
    return table(header, rows)


@dataclass(frozen=True)
class Claim:
    """A number of the paper, or of ours, and where it was measured."""

    what: str
    result: str
    row: str = ""  # the title of its row; nothing: how many rows got which verdict
    in_readme: str = ""  # what README calls it, if it is there

    def cells(self) -> list[str]:
        """Write the paper's value, ours, the seeds and the verdict."""
        rows = result(self.result)["rows"]
        if not self.row:
            same = sum(row["verdict"] in ("reproduced", "holds") for row in rows)
            ours = f"{same} of {len(rows)} agree"
            return [
                f"{len(rows)} figures",
                ours,
                "",
                "reproduced" if same == len(rows) else "differs",
            ]
        (row,) = (row for row in rows if row["what"] == self.row)
        unit = {"%": " %", "points": " points"}[row["unit"]]
        paper = written(row, "paper", "paper_deviation")
        ours = written(row, "ours", "deviation")
        seeds = str(row["seeds"]) if row["seeds"] else ""
        return [paper and paper + unit, ours + unit if ours else "not run", seeds, row["verdict"]]


CLAIMS = (
    Claim(
        "MNIST, 16 digits per pass, keys, the paper's recipe",
        "mnist",
        "MIMOConv N=16",
        "MNIST, 16 digits added up (keys), the paper's recipe",
    ),
    Claim(
        "MNIST, 16 digits per pass, keys, our recipe",
        "mnist",
        "MIMOConv N=16, ours, a trunk that starts in lanes",
        "the same, our recipe",
    ),
    Claim(
        "MNIST, 16 digits per pass, late tiles (not the paper's method)",
        "mnist-map",
        "late tiles N=16",
        "the same, as tiles instead of keys",
    ),
    Claim("MNIST, 16 digits per pass, DataMUX", "mnist", "DataMUX N=16"),
    Claim(
        "CIFAR-10, accuracy lost from one to two images per pass",
        "cifar-regime",
        "N=2 - N=1",
        "CIFAR-10 scaled down, keys, lost from one to two images",
    ),
    Claim(
        "The same, our recipe",
        "cifar-regime",
        "N=2 - N=1, ours",
        "the same, our recipe",
    ),
    Claim(
        "The same after three epochs at 24x24, keys by our recipe",
        "keys-cpu",
        "N=2 - N=1, by our recipe",
        "the same after three epochs at 24x24, our recipe",
    ),
    Claim(
        "CIFAR-10, accuracy lost from one to four images per pass",
        "cifar-regime",
        "N=4 - N=1",
        "CIFAR-10, keys, lost from one to four images",
    ),
    Claim(
        "Recall, MIMOFormer 2x2, FAVOR+, our recipe",
        "synthetic",
        "MIMOFormer 2x2, FAVOR+, recall, ours",
        "recall, four sequences per pass, our recipe",
    ),
    Claim(
        "Recall, MIMOFormer 2x2, DPFP, our recipe",
        "synthetic",
        "MIMOFormer 2x2, DPFP, recall, ours",
    ),
    Claim(
        "Induction, MIMOFormer 2x2, FAVOR+, our recipe",
        "synthetic",
        "MIMOFormer 2x2, FAVOR+, induction, ours",
    ),
    Claim("Recall, Transformer, the source's recipe", "synthetic", "Transformer, recall"),
    Claim(
        "Text of 256 bytes, MIMOFormer 2x2, lost against the Performer",
        "lra-cpu",
        "MIMOFormer 2x2 - Performer, Text",
    ),
    Claim(
        "ListOps of 100 tokens, MIMOFormer 2x2, lost against the Performer",
        "lra-cpu",
        "MIMOFormer 2x2 - Performer, ListOps",
    ),
    Claim(
        "Images of 16x16 pixels, MIMOFormer 2x2, lost against the Performer",
        "lra-cpu",
        "MIMOFormer 2x2 - Performer, Image",
    ),
    Claim("Multiply-accumulates of MIMOConv and its baselines", "cost-mimoconv"),
    Claim("Multiply-accumulates of MIMOFormer and its baselines", "cost-mimoformer"),
    Claim("The theorems, each bound beside a simulation", "bounds"),
)


def claims_table() -> str:
    """The paper's claims, ours beside them: the results page."""
    rows = [
        [one.what, *one.cells(), f"[{one.result}](experiments/{one.result}.md)"] for one in CLAIMS
    ]
    return table(["claim", "paper", "ours", "seeds", "verdict", "more"], rows)


# Ours, without a value in the paper: what a visitor has to know beside the claims.
PLAIN = (
    Claim(
        "a narrow plain network, one digit per pass, 0.34 MMAC",
        "mnist-map",
        "ResNet-10, a quarter of the width",
    ),
    Claim(
        "CIFAR-10, 4 tiles minus the plain network of that cost, both distilled",
        "cifar-map",
        "late tiles - WideResNet-10-1, distilled, 30 epochs",
    ),
)


def readme_table() -> str:
    """The claims that README shows, those that were not run left out."""
    shown = [(one.in_readme, one) for one in CLAIMS if one.in_readme]
    shown[3:3] = [(PLAIN[0].what, PLAIN[0])]
    shown.append((PLAIN[1].what, PLAIN[1]))
    rows = []
    for what, one in shown:
        paper, ours, seeds, _ = one.cells()
        if ours != "not run":
            where = f"[{one.result}](results/{one.result}.json)"
            rows.append([what, paper or "none", ours, seeds, where])
    return table(["test accuracy", "paper", "ours", "seeds", "where"], rows)


def not_run_table() -> str:
    """The paper's experiments that nobody has run here, and what they need."""
    rows = [
        [f"`{name}`", one.source, one.title, one.effort]
        for name, one in experiments().items()
        if not (ROOT / "results" / f"{name}.json").is_file()
    ]
    return table(["not run", "in the paper", "what", "needs"], rows, left=4)


def speed_sentence() -> str:
    """How much faster four images per pass are than the plain network of the same size."""
    rows = result("bench-engines")["conv"]["rows"]
    ratios = [
        row["over_same_engine_wideresnet"]["median"] for row in rows if row["network"] == "4 active"
    ]
    return (
        f"Four images per pass through MIMOConv-28-10 are {min(ratios):.1f} to {max(ratios):.1f} "
        f"times as fast as WideResNet-28-10, by engine ([measured](docs/speed.md), random weights)."
    )


def accuracy_sentence() -> str:
    """What keys lose on MNIST, and what a plain network has."""
    rows = {row["what"]: row for name in ("mnist", "mnist-map") for row in result(name)["rows"]}
    lanes = "MIMOConv N=16, ours, a trunk that starts in lanes"
    titles = ("keys N=1", "keys N=4", lanes, "ResNet-10, a quarter of the width")
    one, four, many, plain = (rows[title] for title in titles)
    assert plain["macs"] < many["macs"]
    assert {row["seeds"] for row in (one, four, many, plain)} == {3}
    values = [written(row, "ours", "deviation") + " %" for row in (one, four, many, plain)]
    return (
        f"With keys on MNIST: {values[0]} with one digit per pass, {values[1]} with four, "
        f"{values[2]} with sixteen. A plain network cheaper than the last has {values[3]} (three "
        f"seeds each)."
    )


def demo_sentence() -> str:
    """How fast the demo's networks are, exported."""
    record = result("demo-digits")
    speed = {row["name"]: row["speedup"]["64"] for row in record["rows"]}
    assert record["engine"] == "onnxruntime"
    assert record["threads"] == 1
    return (
        f"In `make demo`, with ONNX Runtime and 64 digits per call on one thread, fast mode is "
        f"{speed['keys: fast']:.1f} times as fast as the plain network of its size. The plain "
        f"network of its cost is {speed['plain, cost of fast']:.1f} times as fast."
    )


def scale_table():
    """List what the plans that need a GPU take."""
    header = ["plan", "in the paper", "runs"]
    header += ["A100-hours, float32", "A100-hours, bf16"]
    header += ["GB of the largest row, float32", "GB of the largest row, bf16"]
    rows = []
    for one in experiments().values():
        if one.needs_gpu:
            found = [
                plan_needs(one.plan.changed([f"train.precision={name}"]), count=False)
                for name in ("32", "bf16")
            ]
            if not all(found):
                continue  # not counted yet: make costs
            hours = [sum(row["runs"] * row["hours"] for row in needs) for needs in found]
            peaks = [max(row["peak"] for row in needs) for needs in found]
            runs = sum(row["runs"] for row in found[0])
            numbers = [f"{value:,.0f}" for value in hours] + [f"{p / 1e9:.1f}" for p in peaks]
            rows.append([f"`{one.name}`", one.source, str(runs), *numbers])
    return table(header, rows)


PLACES = {
    "docs/scale.md": [scale_table],
    "docs/when-it-pays.md": [pays_table],
    "README.md": [readme_table, speed_sentence, accuracy_sentence, demo_sentence],
    "docs/results.md": [not_run_table, claims_table],
    "docs/start.md": [shipped_table],
    "docs/speed.md": [
        engines_table,
        engines_memory_table,
        engines_digits_table,
        engines_small_table,
        engines_many_table,
        engines_compiled_table,
        engines_accuracy_table,
        engines_former_table,
        engines_large_batch,
        engines_machine,
        against_table,
        against_sequences_table,
        conditions_table,
        mimoconv_table,
        lambda: mimoconv_table("bench-mimoconv-channels-last"),
        mimoformer_table,
        outside_the_trunk,
        isometry_speedup,
        allocator_speedup,
        machine,
    ],
    "docs/cost.md": [datamux_rows],
    "docs/your-network-measured.md": [
        superposed_digits_table,
        lambda: superposed_table("superpose-resnet56"),
        lambda: superposed_table("superpose-minilm"),
        advice_table,
        superpose_overhead,
    ],
    "docs/superposition.md": [text_cost_rows, recall_rows],
    "docs/did-not-win.md": [lambda: measured_rows("shared-keys")],
    "docs/theory.md": [bounds_rows, crosstalk_rows],
}

PAGES = {**PLACES, "docs/serving-measured.md": MEASURED, "docs/serving-policy.md": [policy_table]}


def rewrite(text: str, made: Iterable[str]) -> str:
    """Replace every table of a page by the one that was made with the same header.

    >>> print(rewrite("Old:\\n\\n| a |\\n| --- |\\n| 1 |\\n\\nEnd", ["| a |\\n| --- |\\n| 2 |"]))
    Old:
    <BLANKLINE>
    | a |
    | --- |
    | 2 |
    <BLANKLINE>
    End
    """
    written: Counter[str] = Counter()  # tables by their header
    for one in made:
        header, _, rest = one.partition("\n")
        if not rest.startswith("| -"):
            continue  # a sentence, or rows of a larger table
        starts = [found.start() for found in re.finditer(re.escape(header + "\n| -"), text)]
        if len(starts) == written[header]:
            raise ValueError(f"No table with the header {header}: write it by hand first.")
        start = starts[written[header]]
        end = text.find("\n\n", start)
        end = len(text.rstrip("\n")) if end < 0 else end
        text = text[:start] + one + text[end:]
        written[header] += 1
    return text


def main() -> None:
    """Rewrite all pages, and name those that changed."""
    for page, makers in PAGES.items():
        path = ROOT / page
        before = path.read_text(encoding="utf-8")
        made = [make() for make in makers]
        text = rewrite(before, made)
        for sentence in made:
            if sentence not in text:
                print(f"to be edited by hand in {page}: {sentence}")
        if text != before:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
