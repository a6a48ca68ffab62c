"""Why a request is not answered: one kind of error, with the status that a client sees."""


class RequestError(Exception):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class RefusedError(RequestError):
    """No room or no time for it: come back in ``retry_after`` seconds; if that is None, never."""

    def __init__(self, message: str, retry_after: float | None = 1.0) -> None:
        super().__init__(429, message, retry_after)
