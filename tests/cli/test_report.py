import io

import pytest
from rich.console import Console

from mimonets import MIMOConvConfig
from mimonets._show import mmac
from mimonets.cli.cost import cost_table
from mimonets.cli.report import bench_table, shares_line
from mimonets.evaluation import BenchSettings, bench, count_points

TINY = MIMOConvConfig(
    depth=10, width=1, initial_width=1, num_streams=2, num_classes=3, image_size=8
)


def render(table):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@pytest.fixture(scope="module")
def result():
    return bench(TINY, settings=BenchSettings(batch_sizes=(4,), rounds=3, warmup=1, threads=1))


def test_the_cost_table_shows_what_the_paper_prints():
    costs = [cost.as_dict() for cost in count_points(MIMOConvConfig(), [1, 4])]
    text = render(cost_table("mine", costs, "paper"))
    assert "mine" in text
    row = next(line for line in text.splitlines() if "4 active" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        *("4 active", "1.97", "4.19", "1332", "0.41", "0.064", "1339")
    ]


def test_costs_as_data_add_up():
    slow, fast = (cost.as_dict() for cost in count_points(TINY))
    assert slow["active_streams"] == 1
    for convention in ("paper", "plain"):
        *parts, total = fast[convention].values()
        assert sum(parts) == pytest.approx(total)


@pytest.mark.parametrize(
    ("macs", "text"), [(1.234e9, "1234"), (99.5e6, "99.50"), (1e5, "0.10"), (640, "0.0006")]
)
def test_macs_are_printed_in_millions(macs, text):
    assert mmac(macs) == text


def test_the_bench_table_names_its_conditions(result):
    text = render(bench_table(result, {"WideResNet-10-1": 1e6}))
    for part in (
        "median of 3 interleaved rounds",
        "batch 4, float32",
        "eager",
        "1 threads",
        "1.00",
    ):
        assert part in text
    assert "trunk" in shares_line(result)


def test_several_batch_sizes_share_a_table():
    settings = BenchSettings(batch_sizes=(2, 6), rounds=1, warmup=0, threads=1)
    result = bench(TINY, settings=settings)
    assert [timing.inputs for timing in result.timings] == [2] * 4 + [6] * 4
    contender = result.as_dict()["contenders"][-1]
    assert contender["batch_size"] == 6
    assert set(contender["speedup"]) == set(result.baselines_in("eager", 6))
    table = bench_table(result, {})
    assert table.row_count == 8
    headings = [column.header for column in table.columns]
    assert headings[:4] == ["network", "inputs/s", "quartiles", "CPU ms/input"]
    assert headings[4:6] == [f"× {base}" for base in ("MIMOConv-10-1 (N=1)", "WideResNet-10-1")]
    assert "batch 6: WideResNet-10-1" in render(table)
