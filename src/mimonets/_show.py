"""What a person sees at the command line: tables, JSON and progress bars, each in one way."""

import json
import os
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

QUIET = "MIMONETS_QUIET"  # an environment variable: no progress, as mimonets -q


class Advance(Protocol):
    """Called with how many more items are done."""

    def __call__(self, count: int = 1) -> None:
        """Move the bar on."""


@contextmanager
def progress(title: str, total: int, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Show a bar while the block runs; it is erased afterwards. Nothing without a terminal.

    >>> with progress("making trees", 2) as advance:
    ...     advance(2)
    """
    if not sys.stderr.isatty() or os.environ.get(QUIET):
        yield lambda count=1: None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    count = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (*Progress.get_default_columns()[:2], count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count=1: bar.advance(task, count)


def print_json(data: Any) -> None:
    """Print plain data for other programs."""
    print(json.dumps(data, indent=2))


def show(record: Any, table: Callable[[Any], Any], *, as_json: bool) -> None:
    """Print a record as it is, or the table that is made of it."""
    if as_json:
        print_json(record)
    else:
        make_console().print(table(record))


def make_console(*, quiet: bool = False, stderr: bool = False) -> Any:
    """Make a console that does not fold tables when the output is a file or a pipe."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(quiet=quiet, stderr=stderr, width=None if terminal else 160)


def make_table(
    title: str, columns: Iterable[str], caption: str | None = None, *, words: Container[int] = (0,)
) -> Any:
    """Make an empty table of rich: the columns at the places ``words`` are texts, else numbers."""
    from rich.table import Table

    table = Table(title=title, caption=caption)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place in words else "right")
    return table


def mmac(macs: float) -> str:
    """Write MACs in millions, as many digits as the paper prints.

    >>> [mmac(value) for value in (5_328_519_168, 4_194_304, 64_000)]
    ['5329', '4.19', '0.064']
    """
    millions = macs / 1e6
    if not macs:
        return "-"
    digits = 0 if millions >= 100 else 2 if millions >= 0.1 else 3 if millions >= 0.01 else 4
    return f"{millions:.{digits}f}"
