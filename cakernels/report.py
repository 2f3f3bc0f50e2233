"""``cakernels report RUN.json ... -o page.html``: a page of one or several runs, from their reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cacore.checks import path
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_apart, check_writable
from cacore.learn.same import same_command
from cacore.run import page
from cacore.run.launch import Parser, parsed, run
from cacore.run.saved_report import read

PROG = "cakernels report"


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
            write(output, names)


def _label(file: Path, files: list[Path]) -> str:
    """Name of a run on the page: its file's, with the folder where several files have the same name."""
    return file.stem if sum(one.stem == file.stem for one in files) == 1 else str(file)


def write(output: Path, names: list[Path]) -> None:
    """Write the page of the reports in these files.

    Raises
    ------
    InputError
        A file is given twice, is not a report, or is damaged.
    """
    reports: dict[str, dict[str, Any]] = {}
    for name in names:
        label = _label(name, names)
        if label in reports:
            raise InputError(f"{name}: is given twice; name each report once")
        reports[label] = read(name)
        try:
            page.built({label: reports[label]})
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise InputError(f"{name}: damaged: {type(error).__name__} in its fields; repeat the run") from error
    page.write(output, reports)
