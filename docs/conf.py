"""How Sphinx makes the pages: ``make docs``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import class_pages  # noqa: E402
from names_table import Names  # noqa: E402

import cacore  # noqa: E402 - found by the line above

project = "cakernels"
author = "The cakernels authors"
version = release = cacore.__version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton",
    "sphinx_design", "sphinx_gallery.gen_gallery",
]  # fmt: skip

myst_enable_extensions = ["colon_fence"]

sphinx_gallery_conf = {
    "examples_dirs": str(ROOT / "examples" / "gallery"), "gallery_dirs": "gallery", "abort_on_example_error": True,
    "download_all_examples": False, "show_memory": False, "write_computation_times": False,
    "within_subsection_order": "FileNameSortKey",
}  # fmt: skip

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types and shapes
autosummary_generate = True
autosummary_context = class_pages.context()
templates_path = ["_templates"]
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = class_pages.SECTIONS
default_role = "code"

smartquotes = False
html_theme = "pydata_sphinx_theme"
html_title = "cakernels"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_theme_options = {
    "logo": {"text": f"cakernels {release}"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "navigation_depth": 2,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc", "sourcelink"],
    "footer_start": ["facts"],
    "footer_end": [],
    "show_prev_next": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_show_copyright = False

NOT_SEARCHED = ("architecture", "changelog", "measurements", "records")


def as_text(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Formulas in docstrings are text: |x| is no substitution, * and _ mark nothing; links to other sites are text.

    Examples stay as they are.
    """
    example = False
    for number, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and line.strip() != "")
        if example:
            continue
        line = re.sub(r":ref:`([^`<]*?)\s*(?:<[^`]*>)?`", r"\1", line)
        line = re.sub(r":math:(`[^`]*`)", r"`\1`", line)  # formulas would be drawn by a script from the network
        pieces = re.split(r"(``.*?``|:\w+:`.*?`|`.*?`)", line)
        pieces[::2] = [re.sub(r"([|*])", r"\\\1", piece) for piece in pieces[::2]]
        lines[number] = "".join(pieces)


def within(_app: Any, _name: str, source: list[str]) -> None:
    """Links to the repository's pages outside docs/ lead to the pages here that include them."""
    source[0] = re.sub(r"\]\(\.\./(CONTRIBUTING|CHANGELOG)\.md", lambda name: f"]({name[1].lower()}.md", source[0])


def not_searched(app: Any, _doctree: Any) -> None:
    """Leave pages of evidence and of the code's history out of the search."""
    if app.env.docname in NOT_SEARCHED:
        app.env.metadata[app.env.docname]["nosearch"] = True


def on_one_core(_app: Any) -> None:
    """Let the gallery's scripts use one core: their times are alike, and threads do not wait for other programs."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def setup(app: Any) -> None:
    """Register what is done to pages, and to docstrings before napoleon reads them."""
    app.add_directive("names", Names)
    app.connect("builder-inited", on_one_core, priority=100)
    app.connect("source-read", within)
    app.connect("doctree-read", not_searched)
    app.connect("autodoc-process-docstring", class_pages.whole, priority=300)
    app.connect("autodoc-process-docstring", as_text, priority=400)
