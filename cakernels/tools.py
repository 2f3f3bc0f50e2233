"""The commands around training: convert and describe data, check the installation, compile ahead."""

from __future__ import annotations

from functools import partial

from cacore.comm import Communicator
from cacore.machine.threads import cores
from cacore.run.launch import Parser, compiled, parsed, run, same_arguments


def convert(argv: list[str]) -> None:
    """``cakernels convert SRC DST.h5``: as ``python -m cacore.io convert``."""
    from cacore.io.__main__ import main

    main(["convert", *argv])


def info(argv: list[str]) -> None:
    """``cakernels info DATA`` as ``python -m cacore.io info``; without DATA as ``python -m cacore.info``."""
    if any(not word.startswith("-") for word in argv[:1]):
        from cacore.io.__main__ import main as describe

        describe(["info", *argv])
    else:
        from cacore.info.__main__ import main as check

        check(argv)


def warmup(argv: list[str]) -> None:
    """``cakernels warmup``: compile what commands compile on their first run, into the cache beside the package."""
    prog = "cakernels warmup"

    def work(comm: Communicator) -> None:
        arguments = parsed(Parser(prog=prog, description="Compile all code ahead of the first run.", rank=comm.rank),
                           argv, comm)  # fmt: skip
        same_arguments(prog, arguments, comm)
        from cacore.compiled.compiler import check_compiler

        check_compiler()
        from cakernels import warm

        first, second = warm.halves()

        def take(steps: list[warm.Step], timed: bool) -> None:
            for name, step in steps:
                compiled(partial(warm.timed, name, step) if timed else step, comm)

        if comm.size > 1 or len(cores()) == 1:
            take(first + second, comm.rank == 0)
        else:
            with warm.second_half_beside() as finish:
                take(first, True)
                finish()
            take(second, False)

    run(work, prog, argv=argv)
