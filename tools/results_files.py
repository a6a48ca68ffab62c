"""Read the files in results/, and write a table."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def result(name):
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


WORDS = ("verdict", "more", "where", "why", "source", "engine", "advice")  # columns without numbers


def table(header, rows, left=1):
    """Write a table; the first columns and those of words are aligned to the left."""
    rule = ["---" if place < left or name in WORDS else "---:" for place, name in enumerate(header)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])
