"""How the documentation is built: the pages of this folder, those of experiments, the reference."""

import sys
from pathlib import Path

import mimonets

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import pages

pages.write()  # docs/experiments/, from results/

project = "mimonets"
author = "The mimonets developers"
copyright = "the mimonets developers, Apache-2.0"
release = version = mimonets.__version__

extensions = [
    "myst_parser",  # Markdown
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",  # Google's style of docstrings
]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_rtype = False

html_theme = "furo"
html_title = "mimonets"
html_static_path = ["static"]
html_css_files = ["tables.css"]
