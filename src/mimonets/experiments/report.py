"""Tables of experiments: what there is, and ours beside the paper's."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mimonets._show import make_table
from mimonets.experiments.cost import plan_needs, total_needs
from mimonets.experiments.experiment import Experiment, Record
from mimonets.recipes.needs import show_hours

STYLES = {
    "reproduced": "green",
    "reached": "green",
    "exceeded": "bold green",
    "unclear": "yellow",
    "holds": "green",
    "scaled down": "yellow",
    "differs": "red",
    "not run": "dim",
}


def record_table(record: Record) -> Any:
    """Lay out every number of ours beside the paper's."""
    title = f"{record['title']} ({record['source']})"
    names = ("", "unit", "ours", "paper", "seeds", "verdict", "note")
    table = make_table(title, names, count_verdicts(record), words=(0, 5, 6))
    for row in record["rows"]:
        table.add_row(
            row["what"],
            row["unit"],
            written(row, "ours", "deviation"),
            f"≤ {row['at_most']:.3g}"
            if "at_most" in row
            else written(row, "paper", "paper_deviation"),
            str(row.get("seeds", "")),
            f"[{STYLES.get(row['verdict'], 'none')}]{row['verdict']}[/]",
            row.get("note", ""),
        )
    return table


def written(row: Record, value: str, deviation: str) -> str:
    """Write a number with as many digits as make sense, and its spread.

    >>> written({"ours": 80.444, "deviation": 0.5, "unit": "%"}, "ours", "deviation")
    '80.44 ± 0.50'
    """
    if value not in row:
        return ""
    number = row[value]
    text = f"{number:.2f}" if row["unit"] in ("%", "points") else f"{number:.4g}"
    return text + (f" ± {row[deviation]:.2f}" if deviation in row else "")


def needs_table(title: str, rows: Sequence[Record]) -> Any:
    """Lay out what each row of a plan needs on an A100."""
    names = ("", "runs", "precision", "A100-hours a run", "GB at the peak")
    table = make_table(f"{title}: what training needs, by estimate", names, total_needs(rows))
    for row in rows:
        hours = "" if row["hours"] is None else show_hours(row["hours"]).removesuffix(" h")
        peak = f"{row['peak'] / 1e9:.1f}" if row["peak"] >= 1e9 else f"{row['peak'] / 1e9:.2f}"
        table.add_row(row["what"], str(row["runs"]), row["precision"], hours, peak)
    return table


def experiments_table(experiments: Sequence[Experiment], results: Path, published: Path) -> Any:
    """Lay out the experiments: where the paper has them, what they take, how they stand."""
    names = ("name", "in the paper", "what", "takes", "how it stands")
    table = make_table("The paper's tables and figures", names, words=range(5))
    for one in experiments:
        stands = standing(one, results, published)
        takes = one.effort
        if one.needs_gpu and one.plan is not None and (rows := plan_needs(one.plan, count=False)):
            takes += f"; {total_needs(rows)}"
        table.add_row(one.name, one.source, one.title, takes, stands)
    return table


def standing(experiment: Experiment, results: Path, published: Path) -> str:
    """Say how an experiment stands: by your own record if there is one, else the published one."""
    mine = results / f"{experiment.name}.json"
    if mine.is_file() or not (published / f"{experiment.name}.json").is_file():
        return status(experiment, results)
    return f"published: {status(experiment, published)}"


def status(experiment: Experiment, results: Path) -> str:
    """Say in a few words how an experiment stands, from its record if there is one."""
    path = results / f"{experiment.name}.json"
    if not path.is_file():
        return "not run: needs a GPU" if experiment.needs_gpu else "not run"
    try:
        return count_verdicts(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"{path} cannot be read: delete it, or run this again"


def count_verdicts(record: Record) -> str:
    """Say how often each verdict was given.

    >>> count_verdicts({"rows": [{"verdict": "holds"}, {"verdict": "differs"}]})
    '1 holds, 1 differs'
    """
    verdicts = Counter(row["verdict"] for row in record["rows"])
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
