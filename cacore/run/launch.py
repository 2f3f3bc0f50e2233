"""Starting a command line: one-line errors, exit statuses, threads, and the options all share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from cacore.comm import Communicator, world
from cacore.errors import InputError
from cacore.io import Dataset, load
from cacore.io.fingerprints import count_overlap
from cacore.machine import memory, threads


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Show a default where there is one to show."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """argparse, but usage errors are one line, and only rank 0 prints help."""

    def __init__(self, *args: Any, rank: int = 0, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", _Help)
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)
        self._rank = rank

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise InputError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        if self._rank == 0:
            super()._print_message(message, file)


def run(work: Callable[[Communicator], None], prog: str, comm: Communicator | None = None) -> None:
    """Do `work` on all ranks of the job and end the process as a command line should.

    Exit status 2 and one line on stderr for an :class:`InputError`; anything else on one rank ends
    the whole job with that rank's message and status 1.
    """
    try:
        comm = comm if comm is not None else world()
        with comm.guard():
            work(comm)
    except InputError as error:
        if comm is None or comm.rank == 0:
            print(f"{prog}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def add_common_options(parser: argparse.ArgumentParser, standardize: bool, routes: tuple[str, ...], route: str) -> None:
    """Options that every distributed method's command line has."""
    add_data_options(parser, standardize)
    parser.add_argument(
        "--partitions", metavar="P", type=int, help="number of parts (default: what ranks and memory ask for)"
    )
    parser.add_argument("--route", choices=routes, default=route, help="which models answer for a row")
    parser.add_argument(
        "--checkpoint", metavar="DIR", type=Path,
        help="keep finished parts here; the same command goes on from them if it is killed",
    )  # fmt: skip
    parser.add_argument(
        "--comm-matrix", metavar="FILE.npz", type=Path,
        help="save bytes and messages by phase, sender and receiver (cacore.traffic draws them)",
    )  # fmt: skip
    add_run_options(parser)


def add_data_options(parser: argparse.ArgumentParser, standardize: bool) -> None:
    """What is learnt from, and where the model goes."""
    parser.add_argument("data", metavar="DATA", type=Path, help="HDF5 (native layout), LIBSVM, CSV, TSV or NPZ")
    parser.add_argument("--test", metavar="DATA", type=Path, help="test rows, if DATA has none")
    parser.add_argument("--target", metavar="COLUMN", help="target column of CSV files (default: the last)")
    parser.add_argument("--allow-overlap", action="store_true", help="accept test rows that are also training rows")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="of everything random")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument(
        "--standardize", action=argparse.BooleanOptionalAction, default=standardize,
        help="scale features by the training rows' mean and deviation",
    )  # fmt: skip
    parser.add_argument("--model", metavar="OUT.h5", type=Path, help="save the model")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Options of training and prediction alike."""
    parser.add_argument("--threads", metavar="T", type=int, help="threads a rank (default: its share of the cores)")
    parser.add_argument("--memory-limit", metavar="GIB", type=float, help="memory a rank may use (default: its share)")
    parser.add_argument("--report", metavar="OUT.json", type=Path, help="write a report")
    loud = parser.add_mutually_exclusive_group()
    loud.add_argument("--quiet", action="store_true", help="print nothing but errors")
    loud.add_argument("--verbose", action="store_true", help="print the grid and each part as well")


def start(args: argparse.Namespace, comm: Communicator) -> int:
    """Set this rank's threads, and return the bytes it may use."""
    with comm.agreed():
        if args.threads is not None and args.threads < 1:
            raise InputError(f"--threads {args.threads}: at least 1 is needed")
        if not 0 <= getattr(args, "seed", 0) < 1 << 32:
            raise InputError(f"--seed {args.seed}: it must be from 0 to {(1 << 32) - 1}")
        if args.memory_limit is not None and not 0 < args.memory_limit < float("inf"):
            raise InputError(f"--memory-limit {args.memory_limit:g}: it must be a positive number of GiB")
        if getattr(args, "partitions", None) is not None and args.partitions < 1:
            raise InputError(f"--partitions {args.partitions}: at least 1 is needed")
    threads.set_threads(threads.share(comm, args.threads))
    return memory.limit_per_rank(comm, args.memory_limit)


def read(args: argparse.Namespace, comm: Communicator, limit: int) -> tuple[Dataset, Dataset | None]:
    """Training rows, and test rows if there are any, which must match and must not be training rows."""
    splits = load(args.data, comm, args.dtype, args.target, limit=limit)
    with comm.agreed():
        if "train" not in splits:
            raise InputError(f"{args.data}: test rows alone; there is nothing to learn from")
    train, test = splits["train"], splits.get("test")
    with comm.phase("read"):
        with comm.agreed():
            train.target()
            if args.test is not None and test is not None:
                raise InputError(f"{args.data}: has test rows of its own; drop --test")
        if args.test is not None:
            others = load(args.test, comm, args.dtype, args.target, train.X.shape[1], limit=limit)
            test = others.get("test", others.get("train"))
        comm.wait()
        if test is None:
            return train, None
        with comm.agreed():
            test.target()
            if None not in (train.base, test.base) and train.base != test.base:
                raise InputError(
                    f"{test.where}: the features start at {test.base}, and at {train.base} in {train.where}: "
                    "convert both files together, with cacore.io convert --test"
                )
            if test.X.shape[1] != train.X.shape[1]:
                raise InputError(f"{test.where}: {test.X.shape[1]} features, and {train.X.shape[1]} in {train.where}")
        count, first = (0, -1) if args.allow_overlap else count_overlap(train, test, comm)
        with comm.agreed():
            if count:
                raise InputError(
                    f"{test.where}: {count:,} of {test.n:,} test rows are training rows too (first: row {first}), "
                    "which flatters the error: remove them (convert --drop-duplicates) or pass --allow-overlap"
                )
    return train, test


def add_predict_options(parser: argparse.ArgumentParser) -> None:
    """Options of the commands that predict with a saved model."""
    parser.add_argument("model", metavar="MODEL", type=Path)
    parser.add_argument("data", metavar="DATA", type=Path, help="its test rows, if it has some, or all rows")
    parser.add_argument("--target", metavar="COLUMN", help="target column of CSV files that have one")
    parser.add_argument("-o", "--output", metavar="OUT.csv", type=Path, help="write the predictions, a line a row")
    add_run_options(parser)


def read_to_predict(
    args: argparse.Namespace, comm: Communicator, d: int, dtype: str, source: dict[str, Any], limit: int
) -> Dataset:
    """Rows for a model of `d` features, which was trained on a file read as `source` tells."""
    splits = load(args.data, comm, dtype, args.target, d, source.get("target"), limit)
    rows = splits["test"] if "test" in splits else splits["train"]
    with comm.agreed():
        if None not in (rows.base, source.get("base")) and rows.base != source["base"]:
            raise InputError(
                f"{rows.where}: the features start at {rows.base}, and at {source['base']} in the training rows: "
                "convert both files together, with cacore.io convert --test"
            )
        if rows.X.shape[1] != d:
            raise InputError(f"{rows.where}: {rows.X.shape[1]} features, the model {args.model} has {d}")
    return rows


def compiled(work: Callable[[], object], comm: Communicator) -> None:
    """Do `work`, which compiles or loads what was compiled, before anything is timed; collective.

    numba's cache is on disk, often a shared one, and ranks that all fill it at once do the same work and
    race for the files: so rank 0 goes first, then one rank of each other machine, then the rest.
    """
    with comm.phase("compile"):
        first_here = comm.node().rank == 0  # collective: every rank asks
        turn = 0 if comm.rank == 0 else 1 if first_here else 2
        for now in range(3):
            if now == turn:
                work()
            comm.barrier()
