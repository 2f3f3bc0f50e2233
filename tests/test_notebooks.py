"""The notebooks in examples/ run from the first cell to the last, and are kept as text that a diff shows."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path, kind):
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


@each
def test_notebooks_store_no_outputs(path):
    notebook = json.loads(path.read_text())
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert set(cell) - {"execution_count", "outputs"} == {"cell_type", "id", "metadata", "source"}
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert path.stat().st_size < 20_000
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@each
def test_says_what_it_does(path):
    """Every picture says what is on its axes."""
    assert cells(path, "markdown")[0].startswith("# ")
    for text in cells(path, "code"):
        if "plt.show()" in text:
            assert "label" in text or re.search(r"^draw\w*\(", text, re.MULTILINE)
