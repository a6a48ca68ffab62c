from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimonets.experiments.figures import DRAWINGS, against_cost
from mimonets.experiments.labels import columns_of, spread_out

heights = st.lists(st.floats(0, 100), min_size=1, max_size=20).map(sorted)


@given(heights, st.floats(0, 10))
def test_names_are_a_line_apart_in_order_and_around_their_points(wanted, gap):
    placed = spread_out(wanted, gap)
    assert all(upper - lower >= gap - 1e-9 for lower, upper in pairwise(placed))
    assert sum(placed) == pytest.approx(sum(wanted), abs=1e-6)


@given(heights)
def test_names_with_room_stay_where_their_points_are(wanted):
    apart = [height + 5 * place for place, height in enumerate(wanted)]
    assert spread_out(apart, 5.0) == pytest.approx(apart)


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=20))
def test_every_point_is_in_one_column_near_its_first(places):
    columns = columns_of([{"x": place} for place in places], "x", near=1.3)
    assert sorted(row["x"] for column in columns for row in column) == sorted(places)
    assert all(row["x"] < 1.3 * column[0]["x"] for column in columns for row in column)
    assert all(right[0]["x"] >= 1.3 * left[0]["x"] for left, right in pairwise(columns))


def test_no_name_lies_on_a_point():
    points = [(7.7, 95.1), (8.5, 99.5), (15.9, 94.1), (19.0, 99.5), (27.1, 99.5), (38.4, 99.4)]
    points += [(52.7, 99.3), (55.6, 99.1), (76.5, 99.2)]
    rows = [{"what": f"network at {x}, {y}", "x": x, "ours": y} for x, y in points]
    figure = against_cost(rows, "x", "cost")
    (axes,) = figure.axes
    figure.canvas.draw()
    for text in axes.texts:
        text.arrow_patch = text.arrowprops = None  # the thin line to its point
    names = [text.get_window_extent() for text in axes.texts]
    assert len(names) == len(rows)
    for row in rows:
        spot = axes.transData.transform((row["x"], row["ours"]))
        assert not any(name.contains(*spot) for name in names), row


def test_variants_have_a_panel_each_and_groups_one_colour_in_all():
    rows = [
        {"what": "", "x": 10.0 + place, "ours": 50.0 + place, "group": group, "variant": variant}
        for place, (group, variant) in enumerate(product("ab", ("short", "long")))
    ]
    aside = {"what": "", "x": 99.0, "ours": 1.0}  # without a variant
    figure = against_cost([*rows[:-1], aside], "x", "cost")
    assert [axes.get_title() for axes in figure.axes] == ["short", "long"]
    looks = [
        {(line.get_xdata()[0], line.get_color()) for line in axes.lines if len(line.get_xdata())}
        for axes in figure.axes
    ]
    assert {(10.0, "C0"), (12.0, "C1")} <= looks[0]
    assert {place for place, _ in looks[0]} & {11.0, 13.0} == set()
    assert (11.0, "C0") in looks[1]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize("axis", DRAWINGS)
def test_a_plan_of_which_nothing_was_run_is_drawn_empty(axis, tmp_path):
    row = {"what": "a network", "group": "", "streams": 2, "macs": 1e6, "unit": "%"}
    record = {"title": "nothing yet", "rows": [row]}
    assert DRAWINGS[axis](record, tmp_path / "plot.png").stat().st_size > 0
