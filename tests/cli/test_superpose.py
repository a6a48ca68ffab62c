"""``mimonets superpose`` lists where a user's network can take several inputs per pass."""

import json

import pytest

from mimonets.cli.main import main

MINE = """
from torch import nn

def make():
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

def broken():
    raise RuntimeError("no weights")

number = 3
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "a_network_of_mine.py"
    path.write_text(MINE)
    return path


def test_it_prints_pairs_of_modules(mine, capsys):
    assert main(["superpose", "--import", f"{mine}:make", "--shape", "1,16,16", "--json"]) == 0
    first, *_ = json.loads(capsys.readouterr().out)
    assert (first["bind_after"], first["unbind_before"]) == ("1", "6")
    assert main(["superpose", "--import", f"{mine}:make", "--shape", "1,16,16"]) == 0
    assert "bind_after='1', unbind_before='6'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing.py:make"], "there is no file nothing.py"),
        (["{mine}"], "FILE.py:FUNCTION"),
        (["{mine}:other"], "no function other"),
        (["{mine}:number"], "no function number"),
        (["{mine}:broken"], "no weights"),
        (["{mine}:make"], "example="),
        (["{mine}:make", "--shape", "3,16,16"], "fails on the example"),
    ],
)
def test_bad_input_gets_one_line(words, message, mine, capsys):
    words = [word.replace("{mine}", str(mine)) for word in words]
    assert main(["superpose", "--import", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
