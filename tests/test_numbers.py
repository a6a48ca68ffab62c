"""Every measured number in README and docs is found in results/."""

import json
import re

import pytest

from pages import notes, page_names, page_text
from results_files import ROOT, result
from tables import PAGES, PLACES, claims_table, rewrite


@pytest.mark.parametrize("page", PLACES)
def test_pages_show_what_was_measured(page):
    text = (ROOT / page).read_text()
    for make in PLACES[page]:
        assert make() in text


@pytest.mark.parametrize("page", PAGES)
def test_make_tables_writes_the_tables_of_a_page_anew(page):
    text = (ROOT / page).read_text()
    made = [make() for make in PAGES[page]]
    old = text
    for table in made:
        header, _, rest = table.partition("\n")
        if rest.startswith("| -"):
            ruler, _, rows = rest.partition("\n")
            gone = "\n".join(re.sub(r"\d", "7", row) for row in rows.split("\n")[:-1])
            old = old.replace(table, f"{header}\n{ruler}\n{gone}".rstrip("\n"))
    assert rewrite(text, made) == text
    assert rewrite(old, made) == text


def test_tables_are_found_though_one_before_them_shrinks():
    def table(name, *rows):
        return "\n".join([f"| {name} |", "| --- |", *(f"| {row} |" for row in rows)])

    page = [table("x", 1), table("x", *range(99)), table("y", 1), table("y", 2)]
    x, xx, y, yy = table("x", 7), table("x", 8), table("y", 9), table("y", 0)
    assert rewrite("\n\n".join(page), [x, y, xx, yy]) == "\n\n".join([x, xx, y, yy])


def test_the_prose_of_the_results_states_no_number_of_its_own():
    """What was measured stands in tables that are made from results/; the rest is words."""
    text = (ROOT / "docs/results.md").read_text()
    for make in PLACES["docs/results.md"]:
        text = text.replace(make(), "")
    assert not re.findall(r"\d+\.\d+|\d+ ?%|\d+ percent", text)


def test_every_result_has_a_page_with_its_numbers():
    names = page_names()
    assert set(notes()) <= set(names)
    assert {"mnist", "ensemble", "published-networks"} <= set(
        names
    )  # one that runs, two that do not
    assert set(re.findall(r"experiments/([\w-]+)\.md", claims_table())) <= set(names)
    text = page_text("mnist")
    (row,) = (row for row in result("mnist")["rows"] if row["what"] == "MIMOConv N=16, ours")
    assert f"{row['ours']:.2f} ± {row['deviation']:.2f} | 80.40 | 3 | exceeded" in text
    assert "mimonets reproduce mnist --data-dir DIR" in text
    assert "```sh" not in page_text("ensemble")


def test_a_comparison_gets_a_page_with_its_advice_and_every_candidate(tmp_path, monkeypatch):
    monkeypatch.setattr("results_files.ROOT", tmp_path)
    row = {"accuracy": 0.9, "interval": 0.01, "macs": 2e6, "speed": 1.5, "engine": "openvino"}
    row |= {"memory": 3e6, "by_seed": [0.9], "inputs_per_pass": 1}
    record = {
        "advice": "At 1.5x the speed: small 90.0 ± 1.0: take small.",
        "rows": [row | {"name": "small"}, row | {"name": "keys, N=2", "inputs_per_pass": 2}],
        "refused": {"tiles, N=2": "no maps"},
        "plan": {"steps": 60},
        **{"test_items": 500, "batch_size": 16},
        "environment": dict.fromkeys(("command", "commit", "cpu", "torch"), "x"),
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "compare-toy.json").write_text(json.dumps(record))
    text = page_text("compare-toy")
    assert text.startswith("# mimonets compare: toy\n\nAt 1.5x the speed")
    assert "| small | 1 | 90.0 ± 1.0 | 2 | 1.50x | openvino | 3.0 |" in text
    assert "keys, N=2 | 2 |" in text
    assert "* tiles, N=2 is missing: no maps." in text
    assert "60 steps for each candidate, 1 seed, 500 test items" in text


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda p: p.stem)
def test_every_result_names_its_command_commit_and_machine(path):
    record = result(path.stem)
    parts = [record] if "environment" in record else list(record.values())
    for where in (part["environment"] for part in parts):
        assert where["command"]
        assert re.fullmatch(r"[0-9a-f]{12}(\+changes)?", where["commit"])
        assert where["cpu"]
        assert where["torch"]


def test_the_targets_for_speed_were_met_where_we_say_so():
    conv = {c["name"]: c for c in result("bench-mimoconv")["contenders"]}
    fast = conv["MIMOConv-28-10 (N=4), 4 active"]["speedup"]
    assert fast["MIMOConv-28-10 (N=1)"]["median"] >= 3.8
    assert fast["WideResNet-28-10"]["median"] >= 3.7
    former = {c["name"]: c for c in result("bench-mimoformer")["contenders"]}
    for name, least in (
        ("MIMOFormer (2x2, attention+mlp), 4 active", 1.5),
        ("MIMOFormer (4x4, attention+mlp), 16 active", 2.2),
    ):
        assert former[name]["speedup"]["Performer"]["median"] >= least
        assert former[name]["peak_bytes"] < former["Performer"]["peak_bytes"]
