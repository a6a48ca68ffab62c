"""What a person sees while a model trains, and how they stop it without losing anything."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from mimonets._show import QUIET


class TrainingInterrupted(KeyboardInterrupt):
    """Training was asked to stop; its state is saved, and ``resume=True`` resumes it."""

    def __init__(self, step: int, total_steps: int, folder: str, rank: int = 0) -> None:
        self.step = step
        self.folder = folder
        self.rank = rank  # with several devices only 0 should print
        self.saved = f"Stopped after step {step} of {total_steps}; everything is saved in {folder}."
        super().__init__(f"{self.saved} Resume it with resume=True.")


@contextmanager
def listening_for_stop() -> Iterator[list[int]]:
    """Note the first Ctrl-C (or SIGTERM), to look at between steps; the second one ends at once."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came  # only the main thread gets signals
        return

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Bar:
    """A bar with loss, accuracy, inputs per second and time left; lines of epochs elsewhere."""

    refresh_seconds = 0.5  # reading the loss waits for the device, so not at every step
    line_seconds = 10.0  # of short epochs only some get a line, the first and the last among them

    def __init__(self, done: int, total: int, *, show: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(file=sys.stderr)
        show = show and not os.environ.get(QUIET)
        self._shown = show and console.is_terminal
        self._writes_lines = show and not console.is_terminal
        self._total = total
        self._progress = Progress(
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._shown,
        )
        self._task = self._progress.add_task("train", completed=done, total=total, numbers="")
        self._next = self._next_line = 0.0

    def due(self) -> bool:
        """Tell whether it is time to show new numbers."""
        return self._shown and time.monotonic() >= self._next

    def show(self, step: int, loss: float, accuracy: float | None, speed: float) -> None:
        """Show where training is."""
        self._next = time.monotonic() + self.refresh_seconds
        self._progress.update(self._task, completed=step, numbers=_numbers(loss, accuracy, speed))

    def end_epoch(self, row: dict[str, Any]) -> None:
        """Show the numbers of an epoch; where there is no terminal, as a line."""
        self.show(row["step"], row["loss"], row["accuracy"], row["inputs_per_second"])
        is_due = row["step"] == self._total or time.monotonic() >= self._next_line
        if self._writes_lines and is_due:
            self._next_line = time.monotonic() + self.line_seconds
            print(epoch_line(row, self._total), file=sys.stderr, flush=True)

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def epoch_line(row: dict[str, Any], total_steps: int) -> str:
    """Write the numbers of an epoch as a line.

    >>> row = {"epoch": 2, "step": 20, "loss": 0.5, "accuracy": 0.75, "inputs_per_second": 1000.0}
    >>> epoch_line(row | {"validation": {"4": {"accuracy": 0.5}}}, 100)
    'epoch 2  step 20/100  loss 0.500  accuracy 75.0%  1,000 inputs/s  validation 50.0% (4 active)'
    """
    found = row.get("validation", {})
    measured = ", ".join(
        (f"{one['accuracy']:.1%}" if "accuracy" in one else f"loss {one['loss']:.3g}")
        + f" ({mode} active)"
        for mode, one in found.items()
    )
    numbers = _numbers(row["loss"], row["accuracy"], row["inputs_per_second"])
    line = f"epoch {row['epoch']}  step {row['step']}/{total_steps}  {numbers}"
    return f"{line}  validation {measured}" if measured else line


def _numbers(loss: float, accuracy: float | None, speed: float) -> str:
    if accuracy is None or math.isnan(accuracy):  # answers name no class
        return f"loss {loss:.4g}  {speed:,.0f} inputs/s"
    return f"loss {loss:.3f}  accuracy {accuracy:.1%}  {speed:,.0f} inputs/s"
