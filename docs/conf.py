"""How Sphinx makes the pages: ``make docs``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import cacore  # noqa: E402 - found by the line above

project = "cakernels"
author = "The cakernels authors"
version = release = cacore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types and shapes
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"

smartquotes = False
html_theme = "alabaster"
html_theme_options = {
    "description": "Kernel SVM and kernel ridge regression over MPI",
    "page_width": "1200px",
    "body_max_width": "none",
    "fixed_sidebar": True,
    "show_powered_by": False,
}
html_show_copyright = False


def as_text(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Formulas in docstrings are text: |x| is no substitution, and * and _ mark nothing."""
    for number, line in enumerate(lines):
        pieces = re.split(r"(``.*?``|:\w+:`.*?`|`.*?`)", line)
        pieces[::2] = [re.sub(r"([|*])", r"\\\1", piece) for piece in pieces[::2]]
        lines[number] = "".join(pieces)


def within(_app: Any, _name: str, source: list[str]) -> None:
    """Links to the repository's pages outside docs/ lead to the pages here that include them."""
    source[0] = re.sub(r"\]\(\.\./(CONTRIBUTING|CHANGELOG)\.md", lambda name: f"]({name[1].lower()}.md", source[0])


def setup(app: Any) -> None:
    """Register what is done to pages, and to docstrings before napoleon reads them."""
    app.connect("source-read", within)
    app.connect("autodoc-process-docstring", as_text, priority=400)
