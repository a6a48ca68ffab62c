"""Write the tables of README and docs anew from results/: ``make tables``.

A page's tables are found by their header line; several with the same header stand in the order of
the list of pages. Numbers in sentences are for people to edit: the tests say which are out of date.
"""

import re
from collections import Counter
from collections.abc import Iterable

from numbers_in_docs import PLACES, ROOT
from serving.test_docs import MEASURED

PAGES = {**PLACES, "docs/serving.md": MEASURED}


def rewrite(text: str, made: Iterable[str]) -> str:
    """Replace every table of a page by the one that was made with the same header.

    >>> print(rewrite("Old:\\n\\n| a |\\n| --- |\\n| 1 |\\n\\nEnd", ["| a |\\n| --- |\\n| 2 |"]))
    Old:
    <BLANKLINE>
    | a |
    | --- |
    | 2 |
    <BLANKLINE>
    End
    """
    written: Counter[str] = Counter()  # tables by their header
    for table in made:
        header, _, rest = table.partition("\n")
        if not rest.startswith("| -"):
            continue  # a sentence, or rows of a larger table
        starts = [found.start() for found in re.finditer(re.escape(header + "\n| -"), text)]
        if len(starts) == written[header]:
            raise ValueError(f"No table with the header {header}: write it by hand first.")
        start = starts[written[header]]
        end = text.find("\n\n", start)
        end = len(text.rstrip("\n")) if end < 0 else end
        text = text[:start] + table + text[end:]
        written[header] += 1
    return text


def main() -> None:
    """Rewrite all pages, and name those that changed."""
    for page, makers in PAGES.items():
        path = ROOT / page
        before = path.read_text(encoding="utf-8")
        text = rewrite(before, [make() for make in makers])
        if text != before:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {page}")


if __name__ == "__main__":
    main()
