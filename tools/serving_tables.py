"""The tables of docs/serving-*.md, made from the files in results/."""

from statistics import fmean, stdev

from results_files import result, table


def policy_table():
    rules = {
        "fixed, 1 active": "always 1",
        "fixed, 4 active": "always 4",
        "superpose what waits": "superpose what waits",
        "deadline fit": "deadlines alone",
        "big/small switch": "big/small",
        "drain test": "**drain test**",
        "fluid bound": "bound",
    }
    rows = {(row["load"], row["rule"]): row for row in result("serving-policy")["rows"]}
    lines = []
    for load in sorted({load for load, _ in rows}):
        cells = [f"{load:g}"]
        for rule in rules:
            row = rows[load, rule]
            late = "" if "p99" not in row else f", {1000 * row['p99']:.0f}"
            cells.append(f"{100 * row['right_in_time']:.2f}{late}")
        lines.append(cells)
    return table(["load / slow capacity", *rules.values()], lines, left=0)


def isolation_table():
    rows = result("serving-isolation")["isolation"]
    names = list(dict.fromkeys(row["neighbours"] for row in rows))
    modes = sorted({row["active_streams"] for row in rows})
    lines = []
    for name in names:
        found = {row["active_streams"]: row for row in rows if row["neighbours"] == name}
        lines.append([name, *(f"{found[mode]['wrong']:.1%}" for mode in modes)])
    return table(["neighbours", *(f"wrong answers, {mode} active" for mode in modes)], lines)


def cascade_table():
    rows = result("serving-isolation")["cascade"]
    lines = [
        [f"{row['rerun']:.0%}", f"{row['accuracy']:.2%}", f"{row['cost']:.2f}"] for row in rows
    ]
    return table(["run again", "accuracy", "passes per input"], lines, left=0)


NAMES = {
    "policy": "**by load**",
    "fixed 1": "always 1",
    "fixed 2": "always 2",
    "fixed 3": "always 3",
    "fixed 4": "always 4",
    "big/small": "big/small",
    "LitServe, 1 active": "LitServe, 1",
    "LitServe, 4 active": "LitServe, 4",
    "Ray Serve, 1 active": "Ray Serve, 1",
    "Ray Serve, 4 active": "Ray Serve, 4",
}


def real_table(others=False):
    """Compare the servers that stood side by side: our own rules, or other software."""
    title = {"azure-llm-2023-code": "code", "azure-llm-2023-conv": "conv"}
    found = {}
    for piece in result("serving-real")["pieces"]:
        if (piece["set"] == "others") == others:
            name = f"{title.get(piece['workload'], piece['workload'])}, {piece['load']:g}"
            for row in piece["rows"]:
                found.setdefault(name, {}).setdefault(row["contender"], []).append(row)
    order = sorted(found, key=lambda name: (not name.startswith("poisson"), name))
    shown = [name for name in NAMES if any(name in cells for cells in found.values())]
    lines = [[name, *(mean_cell(found[name].get(one, [])) for one in shown)] for name in order]
    return table(["arrivals, load", *(NAMES[one] for one in shown)], lines)


def others_table():
    return real_table(others=True)


def pair_table():
    """By load beside always 4, run by run with the same arrivals."""
    pairs = {}
    for piece in result("serving-real")["pieces"]:
        good = {row["contender"]: 100 * row["right_in_time"] for row in piece["rows"]}
        if piece["workload"] == "poisson" and "fixed 4" in good:
            pairs.setdefault(piece["load"], []).append((good["policy"], good["fixed 4"]))
    lines = []
    for load, runs in sorted(pairs.items()):
        ahead = [ours - fixed for ours, fixed in runs]
        error = f" ± {stdev(ahead) / len(runs) ** 0.5:.2f}" if len(runs) > 1 else ""
        means = [f"{fmean(side):.2f}" for side in zip(*runs, strict=True)]
        lines.append([f"{load:g}", str(len(runs)), *means, f"{fmean(ahead):+.2f}{error}"])
    return table(["load", "runs", "**by load**", "always 4", "difference"], lines, left=0)


def mean_cell(rows):
    """Give the mean over all runs of a server with some arrivals; a star marks void ones."""
    if not rows:
        return ""
    good, p99 = (sum(row[key] for row in rows) / len(rows) for key in ("right_in_time", "p99"))
    return f"{100 * good:.1f}, {1000 * p99:.0f}" + "*" * any(row["void"] for row in rows)


def soak_sentence():
    record = result("serving-soak")
    soak = record["soak"]
    late = sum(chunk["p99"] > record["slo"] for chunk in soak["chunks"])
    refused = 1000 * max(chunk["refused_p50"] for chunk in soak["chunks"])
    return (
        f"Soaked for {soak['minutes']:.0f} minutes at twice its capacity "
        f"(`benchmarks/serving_soak.py`): {soak['offered']:,} requests,\n{soak['lost']} lost, "
        f"{soak['status'].get('504', 0)} late (504); {soak['wrong_of_slow']} wrong of "
        f"{soak['answered_of_slow']:,} that ran alone and can be checked;\n"
        f"memory {soak['memory_mb'][0]:.0f} MB after {soak['chunks'][0]['seconds']:.0f} s, "
        f"{soak['memory_mb'][-1]:.0f} MB at the end; p99 of the answers "
        f"{1000 * soak['p99_median_chunk']:.0f} ms\n(over 250 ms in {late} of "
        f"{len(soak['chunks'])} pieces of {soak['chunks'][0]['seconds']:.0f} s), "
        f"refusals within {refused:.0f} ms (median)."
    )


def overhead_table():
    lines = []
    for row in result("serving-overhead")["rows"]:
        full, idle = row["full_load"], row["idle"]
        lines.append(
            [
                row["network"],
                f"{idle['model_p50_ms']:.1f}",
                f"{idle['above_model_p50_ms']:.1f}",
                f"{full['offered_per_second']:.0f}",
                f"{full['model_ms_per_answer']:.1f}",
                f"{full['overhead_ms_per_request']:.2f}",
                f"{full['overhead_over_model']:.0%}",
            ]
        )
    titles = [
        "network",
        "idle: model, ms",
        "more than that, ms",
        "full load: requests/s",
        "model, ms of CPU",
        "the rest, ms of CPU",
        "overhead",
    ]
    return table(titles, lines)


def ray_sentences():
    record = result("serving-ray")
    ours, fixed, killed = record["rows"]["policy"], record["rows"]["fixed 1"], record["killed"]
    return (
        f"With {killed['offered']} requests over 20 s to two replicas, one of them killed on the "
        f"way, {killed['status']['200']} were answered.\n"
        f"In a spike from {record['loads'][0]} to {record['loads'][1]} times what one replica "
        f"answers in slow mode, the second one was ready after "
        f"{ours['second_replica_after']:.0f} s.\nUntil then "
        f"{100 * ours['right_in_time_until_then']:.0f} % of the requests were answered right and "
        f"in time, and {100 * fixed['right_in_time_until_then']:.0f} % by a server that is always "
        f"slow\n(whose second replica took {fixed['second_replica_after']:.0f} s)"
    )


MEASURED = [
    isolation_table,
    cascade_table,
    real_table,
    others_table,
    pair_table,
    soak_sentence,
    overhead_table,
    ray_sentences,
]
