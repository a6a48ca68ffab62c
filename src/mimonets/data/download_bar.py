"""The bar that a download shows on a terminal."""

import sys


class DownloadBar:
    """The bar that pooch drives: it sets ``total`` and calls update, reset and close."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.total = 0.0
        self._bar = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

            columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def update(self, count: int) -> None:
        """Report ``count`` more bytes."""
        if self._bar is None:
            return
        if not self._bar.tasks:
            self._bar.start()
            self._bar.add_task(self.title)
        self._bar.update(self._bar.tasks[0].id, total=self.total, advance=count)

    def reset(self) -> None:
        """Start from nothing, as pooch does before it fills the bar."""

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
