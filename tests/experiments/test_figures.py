import pytest

from mimonets._figure import legend_below, new_axes


@pytest.mark.parametrize(("length", "columns"), [(3, 4), (24, 3), (45, 2), (90, 1)])
def test_a_legend_below_fits_the_figure(length, columns):
    figure, axes = new_axes(width=8.0)
    handles = [axes.plot([], [], label=f"{number} " + "x" * length)[0] for number in range(6)]
    legend_below(figure, handles)
    (legend,) = figure.legends
    assert legend._ncols == columns
    assert legend.get_window_extent().width <= figure.bbox.width
