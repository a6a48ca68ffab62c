"""The scripts in examples/ run, and answer what they claim."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_shipped_digits_network_reads_sixteen_digits(capsys):
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    runpy.run_path(str(EXAMPLES / "shipped_weights.py"))
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert list(rows) == ["labels", "fast", "slow"]
    assert rows["labels"] == [str(label) for label in digits.target[-297:][:16]]
    for mode in ("fast", "slow"):
        right = sum(a == b for a, b in zip(rows[mode], rows["labels"], strict=True))
        assert right >= 14, mode
