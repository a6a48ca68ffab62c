"""``python -m mimonets`` is the command ``mimonets``."""

import sys

from mimonets.cli.main import main

sys.exit(main())
