import json
import subprocess
import sys

import pytest

from costs import count_costs, write_costs
from mimonets.cli.main import main
from mimonets.recipes.costs import known_costs, model_digest
from mimonets.recipes.families import recipe_names

CHEAP = ["digits-mimoconv-n4", "recall-mimoformer-2x2", "mnist-mimoconv-n16", "digits-wideresnet"]


def test_every_recipe_has_its_cost_in_the_table():
    missing = [name for name in recipe_names() if known_costs(name) is None]
    assert not missing, f"`make costs` counts them: {missing}"


@pytest.mark.parametrize("name", CHEAP)
def test_the_table_says_what_counting_says(name):
    assert known_costs(name) == count_costs(name), "`make costs` counts anew"


@pytest.mark.slow
def test_the_whole_table_is_what_counting_gives(tmp_path):
    write_costs(tmp_path / "costs.json")
    table = json.loads((tmp_path / "costs.json").read_text())
    for name in recipe_names():
        assert known_costs(name) == table[model_digest(name)], f"`make costs`: {name}"


def test_the_cost_of_a_recipe_waits_for_no_pytorch():
    command = "from mimonets.cli.main import main; main(['cost', 'lra-text-mimoformer-n4'])"
    check = "import sys; sys.exit('torch' in sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", f"{command}; {check}"], capture_output=True, text=True, check=True
    )
    assert "attention" in shown.stdout


def test_a_changed_recipe_is_counted_anew(capsys):
    for change in ([], ["--set", "model.width=4"]):
        main(["cost", "digits-mimoconv-n4", "--json", *change])
    usual, wider = (json.loads(text + "}") for text in capsys.readouterr().out.split("\n}\n")[:2])
    assert usual["macs_per_input"] == known_costs("digits-mimoconv-n4")
    totals = [costs["macs_per_input"][0]["plain"]["total"] for costs in (usual, wider)]
    assert totals[1] > 2 * totals[0]
