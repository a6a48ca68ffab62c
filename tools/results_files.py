"""Read the files in results/, and write a table."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def result(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table(header, rows, left=1):
    rule = ["---"] * left + ["---:"] * (len(header) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])
