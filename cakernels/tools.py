"""The commands around training: convert and describe data, check the installation, compile ahead."""

from __future__ import annotations

from time import process_time

from cacore.comm import Communicator
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
        from cakernels.warm import steps

        for name, step in steps():
            begun = process_time()
            compiled(step, comm)
            if comm.rank == 0:
                print(f"{name:<16} {process_time() - begun:6.1f} s", flush=True)

    run(work, prog, argv=argv)
