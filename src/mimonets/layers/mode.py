"""Which mode a pass runs in: how many streams are active in the layers that it goes through."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


class _Running(threading.local):
    """The mode that runs in this thread; each thread has a mode of its own.

    Not a ContextVar, which torch.compile cannot trace. The attribute is set here rather than in
    the class, so that a compiler always finds it in the same place.
    """

    def __init__(self) -> None:
        self.mode: int | None = None
        self.again = False  # a pass that gradient checkpointing repeats


_RUNNING = _Running()


@contextmanager
def running(active_streams: int | None) -> Iterator[None]:
    """Let everything called inside that depends on the mode run with this many active streams.

    Entered by whoever folds inputs into streams, once per pass and after checking the mode. It
    holds for the current thread only, so threads may run different modes of one model at once.
    """
    before = _RUNNING.mode
    _RUNNING.mode = active_streams
    try:
        yield
    finally:
        _RUNNING.mode = before


def running_mode(num_streams: int) -> int:
    """Say how many streams are active in the pass that runs in this thread; all, outside of any.

    >>> with running(2):
    ...     running_mode(4)
    2
    """
    return num_streams if _RUNNING.mode is None else _RUNNING.mode


def keep_mode() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Let gradient checkpointing repeat a pass in the mode that it had.

    For ``checkpoint(layers, x, use_reentrant=False, context_fn=keep_mode)``: the backward pass
    computes the layers again outside of :func:`running`, where all streams would be active. Layers
    that are computed again do not update their statistics a second time.
    """
    return nullcontext(), _repeating(_RUNNING.mode)


@contextmanager
def _repeating(active_streams: int | None) -> Iterator[None]:
    before = _RUNNING.again
    _RUNNING.again = True
    try:
        with running(active_streams):
            yield
    finally:
        _RUNNING.again = before


def recomputing() -> bool:
    """Tell whether gradient checkpointing repeats a pass in this thread, see :func:`keep_mode`."""
    return _RUNNING.again
