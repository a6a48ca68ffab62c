"""One process per run folder: a lock that the system releases when its holder ends or is killed."""

import json
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from mimonets._files import not_written

LOCK_FILE = ".lock"
HOLDER_FILE = ".trained-by.json"
OURS = {LOCK_FILE, HOLDER_FILE}


class FolderInUseError(ValueError):
    """Another process trains into the folder."""


class FolderLock:
    """The right to write into a folder; whoever comes second learns who has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = FileLock(str(folder / LOCK_FILE))

    def acquire(self) -> None:
        """Take the lock, or say which process has it."""
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise FolderInUseError(
                f"{self.folder} is being trained into by {self._holder()}: wait until it has "
                f"ended, or choose another folder."
            ) from None
        holder = {
            "process": os.getpid(),
            "machine": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        path = self.folder / HOLDER_FILE
        try:
            path.write_text(json.dumps(holder) + "\n", encoding="utf-8")
        except OSError as error:
            self.release(remove=True)
            raise not_written(path, error) from error

    def release(self, *, remove: bool = False) -> None:
        """Give it back; with ``remove``, leave no file behind."""
        if not self._lock.is_locked:
            return
        (self.folder / HOLDER_FILE).unlink(missing_ok=True)
        if remove:
            (self.folder / LOCK_FILE).unlink(missing_ok=True)
        self._lock.release()

    def _holder(self) -> str:
        try:
            found = json.loads((self.folder / HOLDER_FILE).read_text(encoding="utf-8"))
            return f"process {found['process']} on {found['machine']}, since {found['since']}"
        except (OSError, ValueError, TypeError, KeyError):
            return "another process"
