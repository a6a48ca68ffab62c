import io
import sys

import pytest

from mimonets.training import train
from training.tiny import TinyBatches, tiny_config, tiny_conv


class Screen(io.StringIO):
    def __init__(self, terminal):
        super().__init__()
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_shows_a_bar_and_a_file_gets_a_line_per_epoch(tmp_path, monkeypatch, terminal):
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    for name, value in (("TERM", "xterm"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    train(tiny_conv(), TinyBatches(), tiny_config(), run_dir=tmp_path / "run")
    shown = screen.getvalue()
    if terminal:
        assert all(word in shown for word in ("step", "loss", "accuracy", "inputs/s"))
        assert "8/8" in shown
    else:
        lines = shown.splitlines()
        assert [line.split("  ")[:2] for line in lines] == [
            ["epoch 1", "step 4/8"],
            ["epoch 2", "step 8/8"],
        ]
        assert all(word in lines[0] for word in ("loss", "accuracy", "inputs/s"))


def test_of_many_short_epochs_only_some_get_a_line(tmp_path, monkeypatch):
    screen = Screen(terminal=False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("mimonets.training.progress.Bar.line_seconds", 1e9)
    train(tiny_conv(), TinyBatches(), tiny_config(epochs=5), run_dir=tmp_path / "run")
    epochs = [line.split("  ")[0] for line in screen.getvalue().splitlines()]
    assert epochs == ["epoch 1", "epoch 5"]
