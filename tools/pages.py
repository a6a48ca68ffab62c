"""Write a page for every experiment that has a result, from results/ and docs/experiments.yaml.

docs/conf.py calls this when the documentation is built; the pages are not kept in the repository.
"""

from pathlib import Path

import yaml

from mimonets.experiments import experiments
from mimonets.experiments.experiment import Experiment
from results_files import ROOT, result, table
from tables import (
    cifar_map_table,
    compare_table,
    cost_differences,
    demo_parts_table,
    demo_table,
    ensemble_table,
    experiment_table,
    gears_table,
    published_table,
    speed_rows,
)

NOTES = ROOT / "docs" / "experiments.yaml"
FOLDER = ROOT / "docs" / "experiments"
# Experiments whose accuracies stand in a table of their own form.
TABLES = {
    "cifar-map": cifar_map_table,
    "cost-mimoconv": cost_differences,
    "cost-mimoformer": cost_differences,
    "demo-seeds": demo_parts_table,
    "ensemble": ensemble_table,
    "gears": gears_table,
    "gears-mnist": lambda: gears_table("gears-mnist"),
    "mnist-map": lambda: speed_rows("mnist-map"),
    "published-networks": published_table,
}

DEMO = (
    "One `mimonets demo`: one training of each, with fewer epochs. Speed in ONNX Runtime on one "
    "thread; x: times the plain network of the same size."
)


def notes() -> dict[str, str]:
    """Read what is said by hand about experiments."""
    return yaml.safe_load(NOTES.read_text(encoding="utf-8"))


def page_names() -> list[str]:
    """List what has a page: experiments in their order, other results with notes, comparisons."""
    compared = sorted(path.stem for path in (ROOT / "results").glob("compare-*.json"))
    names = dict.fromkeys([*experiments(), *notes(), *compared])
    return [name for name in names if is_measured(name)]


def is_measured(name: str) -> bool:
    return (ROOT / "results" / f"{name}.json").is_file()


def page_text(name: str) -> str:
    """Write the page of an experiment, or of the result of one that is gone."""
    one = experiments().get(name)
    said = notes().get(name, "").strip()
    parts = [f"# {title(name)}", *(about(one) if one else []), said]
    if name.startswith("compare-"):
        return "\n\n".join(filter(None, [*parts, *comparison(name)])) + "\n"
    parts += [*pictures(name), *tables(name), origin(name)]
    return "\n\n".join(filter(None, parts)) + "\n"


def title(name: str) -> str:
    if name in experiments():
        return experiments()[name].title
    if name.startswith("compare-"):
        return f"mimonets compare: {name.removeprefix('compare-').replace('-', ' ')}"
    return result(name).get("title", "Published networks on CIFAR")


def about(one: Experiment) -> list[str]:
    """Say where the paper has it, what it takes and how to run it."""
    where = f"In the paper: {one.source}."
    if one.source.startswith("ours: "):
        where = f"Not in the paper. Ours: {one.source.removeprefix('ours: ')}."
    return [f"{where} It takes {one.effort}.", command(one)]


def command(one: Experiment) -> str:
    """Show how to run it; how its networks were timed, if that was done."""
    where = " --data-dir DIR" if one.plan else ""
    lines = ["```sh", f"mimonets reproduce {one.name}{where}", "```"]
    if is_measured(f"{one.name}-speed"):
        timed = result(f"{one.name}-speed")["environment"]
        lines += [
            f"Speed: [record](../../results/{one.name}-speed.json) of `{timed['command']}`, commit "
            f"`{timed['commit']}`; later versions time networks by `mimonets bench`."
        ]
    return "\n".join(lines)


def pictures(name: str) -> list[str]:
    """Show the plots that there are."""
    kinds = {
        name: title(name),
        f"{name}-speed": f"{title(name)}, against speed",
        f"{name}-slopes": "Mean slope of the parametric ReLUs",
    }
    return [
        f"![{text}](../../results/{kind}.png)"
        for kind, text in kinds.items()
        if (ROOT / "results" / f"{kind}.png").is_file()
    ]


def tables(name: str) -> list[str]:
    """Show every row: in the experiment's own form where it has one, with its differences."""
    if name not in TABLES:
        return [experiment_table(name)]
    rows = [row for row in result(name)["rows"] if row.get("unit") == "points" and "ours" in row]
    cells = [
        [row["what"], f"{row['ours']:+.2f} ± {row.get('deviation', 0):.2f}", str(row["seeds"])]
        for row in rows
    ]
    apart = table(["difference", "points", "seeds"], cells)
    demo = [DEMO, demo_table()] if name == "demo-seeds" else []
    return [TABLES[name](), *([apart] if cells else []), *demo]


def comparison(name: str) -> list[str]:
    """Show what ``mimonets compare`` found: its advice, plot and table, and what ran."""
    found = result(name)
    where, plan = found["environment"], found["plan"]
    refused = [f"* {one} is missing: {why}." for one, why in found["refused"].items()]
    seeds = len(found["rows"][0]["by_seed"])
    said = (
        f"± is the 95 % interval over seeds and test items. {plan['steps']} steps for each "
        f"candidate, {seeds} seed{'s' if seeds > 1 else ''}, {found['test_items']} test items; "
        f"speed at batches of {found['batch_size']}; int8 with one seed. Source: "
        f"[{name}.json](../../results/{name}.json), `{where['command']}`, commit "
        f"`{where['commit']}`, {where['cpu']}, PyTorch {where['torch']}."
    )
    return [found["advice"], *pictures(name), compare_table(name), "\n".join(refused), said]


def origin(name: str) -> str:
    """Say where the numbers come from."""
    where = result(name)["environment"]
    if name == "published-networks":
        return ""
    return (
        f"± is the standard deviation over seeds. [The verdicts](../results.md#verdicts) are "
        f"explained with the results. Source: [{name}.json](../../results/{name}.json), commit "
        f"`{where['commit']}`, {where['cpu']}, PyTorch {where['torch']}."
    )


def write(folder: Path = FOLDER) -> None:
    """Write all pages and their list, and delete those of experiments that are gone."""
    folder.mkdir(exist_ok=True)
    texts = {name: page_text(name) for name in page_names()}
    names = "\n".join(texts)
    texts["index"] = f"# Experiments\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n"
    for path in folder.glob("*.md"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
