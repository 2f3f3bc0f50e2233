"""``python -m cacore.io convert`` and ``python -m cacore.io info``."""

from __future__ import annotations

import argparse

from cacore.checks import path_argument
from cacore.comm import Communicator, launched
from cacore.run.launch import Parser, run


def _parser(rank: int) -> argparse.ArgumentParser:
    description = "Convert data to the native HDF5 layout, and look at it."
    parser = Parser(prog="python -m cacore.io", description=description, rank=rank)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    text = "LIBSVM, CSV, TSV, NPZ (also .gz, .bz2, .xz), Parquet, Arrow, NPY or HDF5 to native HDF5"
    convert = commands.add_parser("convert", rank=rank, help=text)
    convert.add_argument(
        "source", metavar="SRC", nargs="+", type=path_argument, help="of several, the rows follow one another"
    )
    convert.add_argument("destination", metavar="DST.h5", type=path_argument)
    convert.add_argument(
        "--test",
        metavar="SRC",
        action="append",
        type=path_argument,
        help="another source, the test rows; may be repeated",
    )
    convert.add_argument("--target", metavar="COLUMN", help="name or number of the target column (default: the last)")
    convert.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    convert.add_argument("--binarize", metavar="CLASS", help="CLASS becomes +1, the rest -1")
    convert.add_argument(
        "--split", metavar="N_TRAIN", type=int, help="training rows to draw at random; the others are the test rows"
    )
    convert.add_argument(
        "--seed", metavar="S", type=int, default=0, help="of --split (scikit-learn's train_test_split)"
    )
    convert.add_argument(
        "--drop-duplicates", action="store_true", help="keep the first of rows that are equal, target included"
    )
    convert.add_argument("--quiet", action="store_true", help="no progress bar")
    limit = "memory that may be used (default: 0.9 of what is free)"
    convert.add_argument("--memory-limit", metavar="GIB", type=float, help=limit)
    info = commands.add_parser("info", rank=rank, help="what a file holds")
    info.add_argument("data", metavar="DATA", type=path_argument)
    info.add_argument("--target", metavar="COLUMN")
    info.add_argument("--memory-limit", metavar="GIB", type=float, help=limit)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Entry point."""

    def work(comm: Communicator) -> None:
        with comm.agreed():
            args = _parser(comm.rank).parse_args(argv)
        from cacore.io import convert  # loads compiled code: not for --help
        from cacore.machine import memory

        limit = memory.limit_per_rank(comm, args.memory_limit)
        if args.command == "convert":
            convert.convert(args, limit, comm)
            return
        with comm.agreed():
            if comm.rank == 0:
                convert.show(args.data, args.target, limit)

    run(work, "cacore.io", None if launched() else Communicator(), argv)


if __name__ == "__main__":
    main()
