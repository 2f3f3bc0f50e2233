"""``[mpiexec -n R] python -m cacore.info [--report FILE]``: exit status 0 if all is well, 1 if something is wrong."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

from cacore.comm import Communicator, launched_rank, launched_size
from cacore.errors import InputError
from cacore.files import check_writable, printing
from cacore.learn.method import flags, same_command
from cacore.learn.options import add_options, from_arguments
from cacore.run.launch import Job, Parser, parsed, ranks, run, start
from cacore.terminal import say

PROG = "cacore.info"
SCHEMA = "cakernels-info/1"


def inspect(job: Job, comm: Communicator, faults: list[str]) -> dict[str, Any]:
    """Collect the report, which is the same on all ranks but for versions and libraries; collective.

    Parameters
    ----------
    job : Job
    comm : Communicator
    faults : list of str
        Faults found before.
    """
    begin = perf_counter()
    limit = start(replace(job, quiet=True), comm)  # quiet: too many threads are reported as a fault below
    from cacore.info import installation
    from cacore.machine.threads import cpu_name

    everyone = installation.ranks(comm)
    sent, speeds = installation.messages(comm), installation.rates(comm, limit)
    each = [{**asdict(rank), **{name: speed[rank.rank] for name, speed in speeds.items()}} for rank in everyone]
    return {
        "schema": SCHEMA,
        "command": sys.argv,
        "versions": installation.versions(),
        "cpu": cpu_name(),
        "ranks": each,
        "blas": installation.blas(),
        "memory": installation.memory_of(comm, limit),
        "messages": sent,
        "scalapack": installation.scalapack(),  # last, because the libraries it loads stay loaded
        "faults": [*faults, *installation.of(everyone, comm)],
        "notes": installation.notes(everyone),
        "seconds": perf_counter() - begin,
    }


def _show(document: dict[str, Any], job: Job) -> None:
    from cacore.info import installation
    from cacore.run import report

    if job.report is not None:
        report.write(job.report, document)
    with printing():
        if not job.quiet:
            count = len(document["ranks"])
            title = f"cakernels {document['versions']['cakernels']} on {count} rank{'' if count == 1 else 's'}"
            report.show_rows(title, installation.rows(document))
        for line in document["faults"]:
            say(f"WRONG: {line}")
        if job.quiet:
            return
        for line in document["notes"]:
            say(f"Note: {line}")
        if not document["faults"]:
            say("All is well.")


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    faults: list[str] = []

    def work(comm: Communicator) -> None:
        parser = Parser(
            prog=f"python -m {PROG}", rank=comm.rank,
            description="Show versions, ranks, cores, memory and speeds of this job, and what is wrong with it.",
        )  # fmt: skip
        add_options(parser, (Job,), lambda name: name != "verbose")
        args = parsed(parser, argv, comm)
        with comm.agreed():
            job = from_arguments(Job, args)
        same_command(PROG, flags(job), comm)
        with comm.agreed():
            if job.report is not None and comm.rank == 0:
                check_writable(job.report)
        document = inspect(job, comm, list(faults))
        faults[:] = document["faults"]
        with comm.agreed():
            if comm.rank == 0:
                _show(document, job)

    words = sys.argv[1:] if argv is None else argv
    try:
        comm = ranks(words)
    except InputError as error:  # each rank would run alone: for this command a fault to report
        if launched_rank() > 0 and launched_size() > 1:
            return  # rank 0 reports the same fault
        comm = Communicator()
        faults.append(str(error))
    run(work, PROG, comm)
    if faults:
        sys.exit(1)


if __name__ == "__main__":
    main()
