"""Quick experiments give the committed file again."""

import json
from pathlib import Path

import pytest

from mimonets.experiments import RunOptions, find_experiment

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["cost-mimoconv", "cost-mimoformer"])
def test_counting_again_gives_the_committed_file_and_every_difference_is_explained(name):
    committed = json.loads((RESULTS / f"{name}.json").read_text())
    again = json.loads(json.dumps(find_experiment(name).run(RunOptions())))
    for record in (committed, again):
        del record["environment"]
    assert again == committed
    rows = again["rows"]
    assert all(row["verdict"] == "reproduced" or row["note"] for row in rows)
    assert sum(row["verdict"] == "reproduced" for row in rows) >= 24
