"""``python -m cacore.io convert`` and ``python -m cacore.io info``."""

from __future__ import annotations

import argparse

from cacore.checks import path_argument
from cacore.comm import Communicator, launched
from cacore.machine import memory
from cacore.run.launch import Parser, parsed, run, same_arguments


def _parser(rank: int) -> argparse.ArgumentParser:
    description = "Convert data to the native HDF5 layout, or describe a data file."
    parser = Parser(prog="python -m cacore.io", description=description, rank=rank)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    text = "convert LIBSVM, CSV, TSV, NPZ (also .gz, .bz2, .xz), Parquet, Arrow, NPY or HDF5 to native HDF5"
    convert = commands.add_parser("convert", rank=rank, help=text)
    convert.add_argument(
        "source", metavar="SRC", nargs="+", type=path_argument, help="data file; rows of several files are concatenated"
    )
    convert.add_argument("destination", metavar="DST.h5", type=path_argument)
    convert.add_argument(
        "--test", metavar="SRC", action="append", type=path_argument, help="file of test rows; may be repeated"
    )
    convert.add_argument("--target", metavar="COLUMN", help="name or number of the target column (default: the last)")
    convert.add_argument(
        "--ignore-extra-columns", action="store_true",
        help="leave out columns that the first file does not have (default: refuse them)",
    )  # fmt: skip
    convert.add_argument(
        "--dtype", choices=("float32", "float64"), default="float64",
        help="floating-point type of the features (default: float64)",
    )  # fmt: skip
    convert.add_argument("--binarize", metavar="CLASS", help="relabel: CLASS becomes +1, every other class -1")
    convert.add_argument(
        "--split", metavar="N_TRAIN", type=int, help="number of training rows to draw at random; the rest are test rows"
    )
    convert.add_argument(
        "--seed", metavar="S", type=int, default=0, help="seed of --split, as in scikit-learn's train_test_split"
    )
    convert.add_argument(
        "--drop-duplicates", action="store_true", help="keep only the first of several equal rows (target included)"
    )
    convert.add_argument(
        "--columns", metavar="FILE", type=path_argument,
        help="TOML or JSON file with the columns of a table: category, number, drop (lists of names), gaps",
    )  # fmt: skip
    convert.add_argument("--quiet", action="store_true", help="show no progress bar")
    limit = "memory that may be used (default: 0.9 of what is free)"
    convert.add_argument("--memory-limit", metavar="GIB", type=float, help=limit)
    info = commands.add_parser("info", rank=rank, help="describe the rows and targets in a file")
    info.add_argument("data", metavar="DATA", type=path_argument)
    info.add_argument("--target", metavar="COLUMN", help="name or number of the target column (default: the last)")
    info.add_argument("--memory-limit", metavar="GIB", type=float, help=limit)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Entry point."""

    def work(comm: Communicator) -> None:
        args = parsed(_parser(comm.rank), argv, comm)
        same_arguments("cacore.io", args, comm)
        from cacore.compiled.compiler import check_compiler

        check_compiler()
        from cacore.io import convert  # loads compiled code, which --help does not need

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
