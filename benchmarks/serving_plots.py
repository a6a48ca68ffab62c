"""Plots of the serving benchmark: against load, for the two traces, and in a spike."""

from pathlib import Path

from mimonets._figure import new_figure, save_figure

STYLES = {
    "policy": ("tab:red", "-", "mimonets: by load"),
    "fixed 1": ("tab:blue", "-", "always 1 active"),
    "fixed 2": ("tab:cyan", "-", "always 2 active"),
    "fixed 3": ("tab:olive", "-", "always 3 active"),
    "fixed 4": ("tab:green", "-", "always 4 active"),
    "big/small": ("tab:purple", "--", "big/small network by load"),
    "LitServe, 1 active": ("tab:orange", ":", "LitServe, 1 active"),
    "LitServe, 4 active": ("tab:orange", "--", "LitServe, 4 active"),
    "Ray Serve, 1 active": ("tab:gray", ":", "Ray Serve, 1 active"),
    "Ray Serve, 4 active": ("tab:gray", "--", "Ray Serve, 4 active"),
}
SHOWN = ("policy", "fixed 1", "fixed 4", "big/small")  # second by second
COURSES = {
    "spike": "a spike in the middle",
    "azure-llm-2023-code": "arrivals of a coding assistant",
    "azure-llm-2023-conv": "arrivals of a chat service",
}


def draw(record: dict, path: Path) -> Path:
    """Draw share, accuracy and p99 against load; a spike and the traces second by second."""
    figure = new_figure(12, 12.5)
    axes = figure.subplots(3, 2)
    pieces: dict[tuple[str, str], list[dict]] = {}
    for piece in sorted(record["pieces"], key=lambda piece: piece["load"]):
        for row in piece["rows"]:
            if row["contender"] == "policy" and piece["set"] == "others":
                continue  # beside Ray's own processes, which take a part of a core
            rows = pieces.setdefault((piece["workload"], row["contender"]), [])
            rows.append({"load": piece["load"], **row})
    shown = {
        "right_in_time": "right and in time / offered",
        "accuracy": "accuracy of answers",
        "p99": "p99 latency of answers, s",
    }
    for place, (key, title) in zip(axes.flat, shown.items(), strict=False):
        for name, (colour, style, label) in STYLES.items():
            values: dict[float, list[float]] = {}  # of all rounds of a load
            for row in pieces.get(("poisson", name), []):
                if row["status"].get("200", 0) >= 50:
                    values.setdefault(row["load"], []).append(row[key])
            points = [(load, sum(found) / len(found)) for load, found in values.items()]
            if points:
                place.plot(
                    *zip(*points, strict=True), style, color=colour, label=label, marker=".", ms=5
                )
        place.set(xlabel="load / slow capacity", ylabel=title)
        place.grid(alpha=0.3)
    axes.flat[2].axhline(record["slo"], color="k", lw=0.8, ls=":")
    axes.flat[2].set(yscale="log")
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    for place, (workload, title) in zip(axes.flat[3:], COURSES.items(), strict=True):
        rate = place.twinx()  # how much came, behind the lines
        for name in SHOWN:
            for row in pieces.get((workload, name), []):
                line, (colour, style, label) = row["timeline"], STYLES[name]
                place.plot(line["seconds"], line["right_in_time"], style, color=colour, label=label)
                if name == "policy":
                    loads = [value / record["slow_capacity"] for value in line["rate"]]
                    rate.fill_between(line["seconds"], loads, color="k", alpha=0.1, lw=0)
        rate.set(ylabel="load / slow capacity (grey)", ylim=(0, None))
        place.set(xlabel=f"seconds; {title}", ylabel="right and in time / offered")
        place.set_ylim(0, 1.05)
        place.grid(alpha=0.3)
        place.set_zorder(rate.get_zorder() + 1)
        place.patch.set_visible(False)
    return save_figure(figure, path)
