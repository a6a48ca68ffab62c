"""Words for error messages: what came, in one line, and what was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def short(value: object, most: int = 60) -> str:
    """Show a value in a message, cut if it is long.

    >>> short("x" * 100, most=10)
    "'xxxxxx..."
    """
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # deeply nested, or an integer of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= most else text[: most - 3] + "..."


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggest the name that was probably meant, in brackets; nothing if none is close.

    >>> did_you_mean("widht", ["depth", "width"])
    " (did you mean 'width'?)"
    """
    close = get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {prefix + close[0]!r}?)" if close else ""


def shorten(text: str, most: int = 120) -> str:
    """Keep an error message to one short line, whatever came.

    >>> shorten("a" * 9, most=5)
    'aaaa…'
    """
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1] + "…"


def first_line(error: BaseException, most: int = 300) -> str:
    r"""Quote the first line of an error, without its full stop or a stack of C++.

    >>> first_line(ValueError("no room.\n  in write()")), first_line(KeyError())
    ('no room', 'KeyError')
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shorten(lines[0], most).rstrip(".") if lines else type(error).__name__
