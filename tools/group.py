"""Print the requirements of a dependency group of pyproject.toml, for a pip older than 25.1.

PEP 735 groups hold what only development needs, and are not published. ``pip install --group
NAME`` reads them since pip 25.1; ``make`` works with any pip.
"""

import sys
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def requirements(name):
    """List the requirements of a group."""
    groups = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["dependency-groups"]
    return groups[name]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
