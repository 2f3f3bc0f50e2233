"""Lines of code of the packages, without docstrings, comments and blank lines: ``python -m benchmarks.code_size``."""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from pathlib import Path

PACKAGES = ("asygcd", "cacore", "cakernels", "cakriging", "cakrr", "casvm", "partition")
_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(source: str) -> int:
    """Number of lines of a module's `source` that hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def modules(path: Path) -> list[Path]:
    """Python files of a folder and of those inside it; or the file itself."""
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def main() -> None:
    """Print files and lines of code of each path, and their sums."""
    parser = argparse.ArgumentParser(prog="benchmarks.code_size", description=(__doc__ or "").split(":")[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[Path(name) for name in PACKAGES], metavar="PATH")
    files, lines = 0, 0
    for path in parser.parse_args().paths:
        sources = modules(path)
        size = sum(code_lines(file.read_text()) for file in sources)
        print(f"{path!s:<12} {len(sources):>5,} {size:>8,}")
        files, lines = files + len(sources), lines + size
    print(f"{'all':<12} {files:>5,} {lines:>8,}")


if __name__ == "__main__":
    main()
