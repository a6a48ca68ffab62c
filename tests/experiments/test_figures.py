import matplotlib.figure
import pytest

from mimonets._figure import error_scale, family_colour, legend_below, log_percent, new_axes
from mimonets.experiments.figures import (
    draw_averages,
    draw_curves,
    draw_dots,
    draw_slopes,
    draw_variants,
)
from mimonets.experiments.plan import Average


@pytest.fixture
def drawn(monkeypatch):
    """Keep the figures that are saved."""
    kept = []
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda self, *_, **__: kept.append(self)
    )
    return kept


def row(what, ours, **more):
    return {"what": what, "ours": ours, "unit": "%", "seeds": 3, "deviation": 0.5, **more}


def names_of(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_every_mark_of_a_plot_of_rows_is_in_its_legend(drawn, tmp_path):
    rows = [
        row("WideResNet, recall", 98.0, group="recall", paper=97.0),
        row("MIMOFormer 2x2, recall", 95.0, group="recall", seeds=1),
        row("DataMUX N=2, induction", 20.0, group="induction"),
    ]
    draw_dots({"title": "t", "rows": rows}, tmp_path / "plot.png")
    names = names_of(drawn[0])
    assert names == ["plain network", "keys", "DataMUX", "one seed", "the paper's value"]


def test_variants_share_the_line_of_their_network(drawn, tmp_path):
    rows = [
        row(f"{name}, {epochs} epochs", 60.0 + epochs, variant=f"{epochs} epochs", macs=macs)
        for name, macs in (("late tiles N=4", 7e6), ("WideResNet", 28e6))
        for epochs in (3, 10)
    ]
    draw_variants({"title": "t", "rows": rows}, tmp_path / "plot.png")
    labels = [text.get_text() for text in drawn[0].axes[0].get_yticklabels()]
    assert labels == ["WideResNet (28 MMAC)", "late tiles N=4 (7 MMAC)"]
    assert names_of(drawn[0]) == ["plain network", "late tiles", "3 epochs", "10 epochs"]


def test_an_average_is_drawn_with_its_parts(drawn, tmp_path):
    rows = [row("tiles, digits 1", 97.0), row("tiles, digits 2", 99.0), row("tiles, all", 98.0)]
    draw_averages([Average("tiles, all", "tiles, digits")], {"title": "t", "rows": rows}, tmp_path)
    places = [line.get_xdata()[0] for line in drawn[0].axes[0].get_lines() if len(line.get_xdata())]
    assert {97.0, 98.0, 99.0} <= set(places)
    assert names_of(drawn[0]) == ["tiles", "its parts, mean over seeds"]


@pytest.mark.parametrize(("x", "least"), [("streams", 1), ("macs", 1.3e6)])
def test_curves_have_a_line_per_group(drawn, tmp_path, x, least):
    rows = [
        row("slots", 90.0, group="slots", **{x: 4 * least}),
        row("one", 97.5, group="plain", paper=97.0, **{x: least}, seeds=1),
    ]
    draw_curves({"title": "t", "rows": rows}, tmp_path / "plot.png", x)
    assert names_of(drawn[0]) == ["slots", "plain", "one seed", "the paper's value"]
    shown = [text.get_text() for text in drawn[0].axes[0].get_xticklabels()]
    assert shown == ["1", "4"] if x == "streams" else "2" in shown


def test_accuracies_near_the_top_are_spread_and_others_are_not():
    _, axes = new_axes()
    error_scale(axes, [97.5, 99.3, 99.5])
    up, middle, low = (axes.transData.transform((0, y))[1] for y in (99.5, 99.3, 97.5))
    assert up - middle > 0.1 * (up - low)
    _, axes = new_axes()
    error_scale(axes, [60.0, 70.0])
    assert axes.get_yscale() == "linear"


def test_a_logarithmic_axis_of_percentages_has_no_power_as_label():
    _, axes = new_axes()
    log_percent(axes, 0.2)
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["0.2", "0.5", "1", "2", "5", "10", "20", "50", "100"]


def test_a_thing_has_one_colour_whatever_it_is_called_with():
    assert family_colour("late tiles N=4, distilled") == family_colour("late tiles, 1 active")
    assert family_colour("tiles N=4") != family_colour("late tiles N=4")
    assert family_colour("keys N=4") != family_colour("the paper's binding N=4")


@pytest.mark.parametrize(("length", "columns"), [(3, 4), (24, 3), (45, 2), (90, 1)])
def test_a_legend_below_fits_the_figure(length, columns):
    figure, axes = new_axes(width=8.0)
    handles = [axes.plot([], [], label=f"{number} " + "x" * length)[0] for number in range(6)]
    legend_below(figure, handles)
    (legend,) = figure.legends
    assert legend._ncols == columns
    assert legend.get_window_extent().width <= figure.bbox.width


def slope_run(trial, end, history=()):
    epochs = [{"epoch": n, "slope": value} for n, value in enumerate(history, start=1)]
    return {"trial": trial, "seed": 0, "slopes": {"a": end, "b": end + 0.2}, "history": epochs}


def test_slopes_are_drawn_where_trials_differ_in_their_streams(tmp_path):
    runs = [slope_run("mnist-mimoconv-n1", 0.0, [0.5, 0.1]), slope_run("mnist-mimoconv-n4", 0.6)]
    assert draw_slopes({"runs": runs, "title": ""}, tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize(
    "runs", [[], [slope_run("mnist-mimoconv-n1", 0.0)], [{"trial": "x-n1"}, {"trial": "x-n2"}]]
)
def test_no_slopes_are_drawn_without_two_numbers_of_streams(runs, tmp_path):
    assert draw_slopes({"runs": runs, "title": ""}, tmp_path / "a.png") is None
    assert not (tmp_path / "a.png").exists()
