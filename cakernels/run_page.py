"""``cakernels report RUN.json ... -o page.html``: a page of one or several runs, from their reports."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from cacore.checks import path
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_apart, check_writable
from cacore.learn.method import same_command
from cacore.run import figures, page
from cacore.run.launch import Parser, parsed, run
from cacore.run.page import element
from cacore.run.report import read

PROG = "cakernels report"
_DAMAGED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def main(argv: list[str] | None = None) -> None:
    """Run the command, and end the process."""
    run(lambda comm: _page(comm, argv), PROG, argv=argv)


def _page(comm: Communicator, argv: list[str] | None) -> None:
    parser = Parser(
        prog=PROG, description="Write a page of one or several runs, which opens in any browser without a network.",
        rank=comm.rank, epilog="example: cakernels report one.json four.json -o page.html",
    )  # fmt: skip
    parser.add_argument(
        "reports", metavar="RUN.json", nargs="+", help="files that --report wrote; several are compared"
    )
    parser.add_argument("-o", "--output", metavar="OUT.html", required=True, help="the page")
    args = parsed(parser, argv, comm)
    with comm.agreed():
        names, output = [path(name, "RUN.json") for name in args.reports], path(args.output, "--output")
    same_command(PROG, {"RUN.json": names, "--output": output}, comm)
    with comm.agreed():
        if comm.rank == 0:
            check_apart([("--output", output)], [(f"RUN.json {name}", name) for name in names])
            check_writable(output)
            page.save(output, built(names))


def built(names: Sequence[Path]) -> str:
    """The page of the reports in these files.

    Raises
    ------
    InputError
        A file is given twice, is not a report, or is damaged; or matplotlib is not installed.
    """
    figures.check()
    reports: dict[str, dict[str, Any]] = {}
    for name in names:
        # A run has its file's name, with the folder where several files have the same one.
        label = name.stem if sum(other_name.stem == name.stem for other_name in names) == 1 else str(name)
        if label in reports:
            raise InputError(f"{name}: is given twice; name each report once")
        reports[label] = read(name)
    try:
        return page.built(reports)
    except _DAMAGED:
        for name, (label, report) in zip(names, reports.items(), strict=True):
            try:
                page.built({label: report})
            except _DAMAGED as error:
                raise InputError(f"{name}: damaged: {type(error).__name__} in its fields; repeat the run") from error
        raise


class RunPage:
    """Page of one or several runs, from the files that ``--report`` wrote; a notebook shows it.

    Parameters
    ----------
    *reports : str or path
        Names of the files; several runs are shown side by side.

    Raises
    ------
    InputError
        No file is named, a file is given twice, is not a report, or is damaged; or matplotlib is not installed.

    Examples
    --------
    >>> from sklearn.datasets import dump_svmlight_file, make_friedman1
    >>> from cakernels import RunPage
    >>> from cakrr import bkrr2, command
    >>> dump_svmlight_file(*make_friedman1(100, random_state=0), "rows.svm")
    >>> words = ["rows.svm", "--sigma", "6", "--lambda", "1e-6", "--report", "run.json", "--quiet"]
    >>> command.main(bkrr2.METHOD, words)
    >>> RunPage("run.json").write("page.html")  # a notebook shows RunPage("run.json") itself
    """

    def __init__(self, *reports: str | PathLike[str]) -> None:
        if not reports:
            raise InputError("RunPage: no report; name one or more files that --report wrote")
        self._page = built([Path(name) for name in reports])

    def write(self, path: str | PathLike[str]) -> None:
        """Write the page to a file, whole or not at all."""
        page.save(Path(path), self._page)

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its styles and the notebook's stay apart."""
        style = "width: 100%; height: 48em; border: 0"
        return element("iframe", srcdoc=self._page, style=style, title="runs of cakernels")
