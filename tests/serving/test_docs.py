"""The numbers of docs/serving-*.md come from results/."""

import math

import pytest

from results_files import ROOT, result
from serving_tables import MEASURED, policy_table

PAGES = [(make, "serving-measured") for make in MEASURED] + [(policy_table, "serving-policy")]


@pytest.mark.parametrize(("make", "page"), PAGES)
def test_the_page_shows_what_was_measured(make, page):
    assert make() in (ROOT / "docs" / f"{page}.md").read_text()


def test_the_drain_test_is_near_the_bound_over_the_whole_range():
    rows = {(row["load"], row["rule"]): row for row in result("serving-policy")["rows"]}
    for load in {load for load, _ in rows}:
        ours = rows[load, "drain test"]["right_in_time"]
        assert ours > 0.965 * rows[load, "fluid bound"]["right_in_time"]
        for rule in ("fixed, 1 active", "fixed, 2 active", "fixed, 4 active"):
            # At the fastest mode's capacity and beyond, always being fast is a little ahead.
            assert ours > rows[load, rule]["right_in_time"] - 0.004, (load, rule)
    assert all(math.isfinite(row["right_in_time"]) for row in rows.values())
