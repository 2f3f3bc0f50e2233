"""Start of a command: options that every command has, parser, one-line errors, exit status, threads, compilation."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cacore.checks import (
    GAPS,
    array_names,
    column_name,
    column_names,
    columns_file,
    one_of,
    path,
    path_or_stdout,
    paths,
    positive,
    share,
    whole,
    yes_or_no,
)
from cacore.comm import Communicator, alone_by_mistake, first_prints, launched, launched_size, world
from cacore.data.kinds import Overrides
from cacore.errors import InputError, MemoryLimitError, OutputError
from cacore.files import printing
from cacore.io.arrays import Arrays
from cacore.learn.method import same_command
from cacore.learn.options import ADAPTIVE, FILES, RESOURCES, UNCERTAINTY, Options, argument, option
from cacore.machine import deadline
from cacore.progress import COMPILING, line_while_compiling, spinner
from cacore.terminal import open_closed_streams, put, say


@dataclass(frozen=True)
class Job(Options):
    """Options that training and predicting commands share; sizes are in GiB."""

    threads: int | None = option(
        None, "threads per rank (default: the rank's share of the cores)", whole(1), metavar="T"
    )  # fmt: skip
    memory_limit: float | None = option(
        None, "memory that a rank may use (default: its share of what is free)", positive, group=RESOURCES,
        metavar="GIB",
    )  # fmt: skip
    report: Path | None = option(None, "write a report of the run", path, metavar="OUT.json")
    quiet: bool = option(False, "print nothing but errors", yes_or_no, group=FILES, exclusive=True, action="store_true")
    verbose: bool = option(
        False, "also print every setting that was compared, and every part", yes_or_no, group=FILES, exclusive=True,
        action="store_true",
    )  # fmt: skip


def _ignore_extra_columns() -> Any:
    """Declare that columns which are not expected are left out."""
    text = "leave out columns that the model or the training rows do not have (default: refuse them)"
    return option(False, text, yes_or_no, group=FILES, action="store_true")


def _inputs() -> tuple[str, ...]:
    """Declare the arrays of the features."""
    text = (
        "arrays of HDF5, netCDF, Zarr or NPY files that hold the features, such as group/fields[:, 0:9], or "
        "fields(time, y, x, variable) (default: those of the native layout)"
    )
    return option((), text, array_names, flag="--input", group=FILES, metavar="ARRAY")


def _follow_links() -> bool:
    """Declare that links are followed."""
    text = "follow links and virtual arrays of HDF5 to other files in the folder of DATA (default: refuse them)"
    return option(False, text, yes_or_no, group=FILES, action="store_true")


def _more() -> tuple[Path, ...]:
    """Declare files after the first."""
    text = "further HDF5, netCDF, Zarr or NPY files with rows; DATA may also be a pattern in quotes, such as 'run-*.h5'"
    return option((), text, paths, flag="more", group=FILES, metavar="MORE", nargs="*")


@dataclass(frozen=True)
class Training(Job):
    """Options of every training command."""

    data: Path = argument(
        "data", "training rows: HDF5 (native layout, or --input), LIBSVM, CSV, TSV, NPZ, NPY, Parquet or Arrow", path
    )
    more: tuple[Path, ...] = _more()
    test: Path | None = option(None, "test rows (default: those of DATA, if it has any)", path, metavar="DATA")
    target: str | None = option(
        None, "target column of a table, by name or number, or several: A,B (default: the last)", metavar="COLUMN"
    )
    inputs: tuple[str, ...] = _inputs()
    outputs: tuple[str, ...] = option(
        (), "arrays that hold the targets, named as those of --input", array_names, flag="--output", group=FILES,
        metavar="ARRAY",
    )  # fmt: skip
    follow_links: bool = _follow_links()
    category: tuple[str, ...] = option((), "columns of a table that hold categories, whatever their cells look like",
                                       column_names, group=FILES, metavar="A,B")  # fmt: skip
    number: tuple[str, ...] = option(
        (), "columns of a table that hold numbers", column_names, group=FILES, metavar="A,B"
    )
    drop: tuple[str, ...] = option(
        (), "columns of a table that are left out, such as keys", column_names, group=FILES, metavar="A,B"
    )
    gaps: str | None = option(
        None, "cells without a value: filled, and marked where there are many (the default), or refused", one_of(*GAPS),
        group=FILES, choices=GAPS,
    )  # fmt: skip
    weight: str | None = option(
        None, "column of a table with the weights of the rows: 0 leaves a row out, 2 counts it twice", column_name,
        group=FILES, metavar="COLUMN",
    )  # fmt: skip
    key: str | None = option(
        None, "column of a table that is no feature, and is kept beside predictions", column_name, flag="--id",
        group=FILES, metavar="COLUMN",
    )  # fmt: skip
    columns: Mapping[str, object] | None = option(
        None, "category, number, drop, weight, id and gaps from a TOML or JSON file; options are added to it",
        columns_file, group=FILES, metavar="FILE",
    )  # fmt: skip
    ignore_extra_columns: bool = _ignore_extra_columns()
    strict: bool = option(
        False, "refuse test rows that are also training rows", yes_or_no, group=FILES, action="store_true"
    )
    allow_overlap: bool = option(
        False, "do not check for test rows that are also training rows (default: warn about them)", yes_or_no,
        group=FILES, action="store_true",
    )  # fmt: skip
    dtype: str = option(
        "float64", "floating-point type of the rows", one_of("float32", "float64"), group=RESOURCES,
        choices=("float32", "float64"),
    )  # fmt: skip
    model: Path | None = option(None, "save the trained model", path, metavar="OUT.h5")
    comm_matrix: Path | None = option(
        None, "save bytes and messages by phase, sender and receiver, for python -m cacore.traffic", path, group=FILES,
        metavar="FILE.npz",
    )  # fmt: skip
    plot: Path | None = option(
        None, "plot the learned metric or the variogram, if there is one; otherwise a calibration curve, or the "
        "settings compared", path, group=FILES, metavar="FILE.png",
    )  # fmt: skip
    html: Path | None = option(
        None, "write a page of the run: results, settings, parts, seconds and bytes, in one file", path, group=FILES,
        metavar="OUT.html",
    )  # fmt: skip
    libsvm: Path | None = option(
        None, "also write each part's model in LIBSVM's text format", path, group=FILES, metavar="OUT.model"
    )
    dry_run: bool = option(
        False, "check the options and the names of files, and end before rows are read", yes_or_no, group=FILES,
        action="store_true",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outputs and not self.inputs:
            raise InputError(f"--output {','.join(self.outputs)}: name the features as well, by --input")
        if self.strict and self.allow_overlap:
            raise InputError("--strict, --allow-overlap: one refuses what the other does not look for; drop one")

    @property
    def arrays(self) -> Arrays:
        """The arrays that hold the rows."""
        return Arrays(self.inputs, self.outputs, self.more, self.follow_links)

    @property
    def overrides(self) -> Overrides:
        """The user's word on the columns of a table; an InputError if a column has several meanings."""
        options: dict[str, Any] = {"category": self.category, "number": self.number, "drop": self.drop}
        options |= {"weight": self.weight, "id": self.key, "gaps": self.gaps}
        return Overrides.of(self.columns or {}, options)


@dataclass(frozen=True)
class Predicting(Job):
    """Options of every predicting command."""

    model: Path = argument("model", "model saved by a training command", path)
    data: Path = argument("data", "rows to predict: the file's test rows, if it has any, or all its rows", path)
    more: tuple[Path, ...] = _more()
    inputs: tuple[str, ...] = _inputs()
    follow_links: bool = _follow_links()
    target: str | None = option(
        None, "target column to compare the predictions with, if the table has one", metavar="COLUMN"
    )
    key: str | None = option(
        None, "column of DATA that is kept beside the predictions (default: the one that training was given, if it is "
        "there)", column_name, flag="--id", group=FILES, metavar="COLUMN",
    )  # fmt: skip
    ignore_extra_columns: bool = _ignore_extra_columns()
    output: Path | None = option(
        None, "write the predictions: CSV, or Parquet or HDF5 if the name ends with .parquet or .h5; - for CSV on "
        "standard output", path_or_stdout, short="-o",
        metavar="OUT.csv",
    )  # fmt: skip
    decisions: bool = option(False, "also write the decision values", yes_or_no, group=FILES, action="store_true")
    probability: bool = option(
        False, "also write the probability of each class; the model must have been trained with --probability",
        yes_or_no, group=UNCERTAINTY, action="store_true",
    )  # fmt: skip
    std: bool = option(
        False, "also write the predictive standard deviation of each row", yes_or_no, group=UNCERTAINTY,
        action="store_true",
    )  # fmt: skip
    interval: float | None = option(
        None, "also write intervals that contain the target with this probability; the model must have been trained "
        "with --calibrate", share, group=UNCERTAINTY, metavar="COVERAGE",
    )  # fmt: skip
    adaptive: str | None = option(
        None, "vary the width of --interval: in proportion to the standard deviation (std; the model must have been "
        "trained with --keep-factors), or by the errors of each part (parts); without a value: std", one_of(*ADAPTIVE),
        group=UNCERTAINTY, choices=ADAPTIVE, nargs="?", const="std",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adaptive is not None and self.interval is None:
            raise InputError("--adaptive: needs --interval, for example --interval 0.9")

    @property
    def arrays(self) -> Arrays:
        """The arrays that hold the rows; without `inputs`, those of the training rows are read where they are there."""
        return Arrays(self.inputs, (), self.more, self.follow_links)


_counted = False  # True if a command of this process has counted the process' start


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows every default except None and False."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.default is False else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An argparse parser whose usage errors are one line and whose help is printed by rank 0 alone."""

    def __init__(self, *, rank: int = 0, **kwargs: Any) -> None:
        super().__init__(formatter_class=_Help, allow_abbrev=False, **kwargs)
        self._rank = rank

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse words, of which one that begins with a negative number belongs to the option before it."""
        optional = {flag: action for action in self._actions for flag in action.option_strings if action.nargs == "?"}
        words = _joined(sys.argv[1:] if args is None else args)
        return super().parse_known_args(list(_without_value(words, optional)), namespace)

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage and exiting."""
        raise InputError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        if self._rank == 0 and launched():
            with suppress(OSError):  # the other ranks have left already
                put(message, file or sys.stdout)
        elif self._rank == 0:
            with printing():
                put(message, file or sys.stdout)


def _joined(words: Sequence[str]) -> list[str]:
    """The words, with a value such as -180:180:1, which argparse takes for an option, joined to the option before."""
    joined: list[str] = []
    for word in words:
        if joined and re.fullmatch(r"--[a-zA-Z][\w-]*", joined[-1]) and re.match(r"-[\d.]", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _without_value(words: Sequence[str], optional: Mapping[str, argparse.Action]) -> Iterator[str]:
    """The words; an option whose value may be left out takes the word after it only if that is one of its choices.

    So DATA may follow such an option.
    """
    for place, word in enumerate(words):
        after = words[place + 1] if place + 1 < len(words) else ""
        action = optional.get(word)
        left_out = action is not None and action.choices and after not in action.choices
        yield f"{word}={action.const}" if action is not None and left_out else word


def run(
    work: Callable[[Communicator], None], prog: str, comm: Communicator | None = None, argv: list[str] | None = None
) -> None:
    """Do `work` on all ranks of the job; on an error, print it and end the process.

    One line on stderr, of rank 0, and exit status 2 for an :class:`InputError`, 1 for an :class:`OutputError`, also of
    one rank; anything else on one rank ends the whole job with that rank's message and status 1.
    """
    open_closed_streams()
    try:
        try:
            comm = comm if comm is not None else ranks(sys.argv[1:] if argv is None else argv)
            _count_start(comm)
            with comm.guard():
                with _memory_errors():
                    work(comm)
                comm.free()
        finally:
            with printing():  # help, which ends the process
                pass
    except (InputError, OutputError) as error:
        if comm is None:
            first_prints(f"{prog}: {error}")
        elif comm.rank == 0:  # all ranks have the same error
            say(*(f"{prog}: {line}" for line in (error, *error.others)), error=True)
        sys.exit(2 if isinstance(error, InputError) else 1)
    except KeyboardInterrupt:
        if launched():
            # An exit waits for the other ranks in MPI_Finalize, and mpiexec takes no notice of one before MPI_Init.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        sys.exit(130)


@contextmanager
def _memory_errors() -> Iterator[None]:
    """Turn an allocation that the system refuses, such as under ``ulimit -v``, into an error of one line."""
    try:
        yield
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        remedy = "use more ranks or fewer rows, or allow more (ulimit -v, or the job's memory)"
        raise MemoryLimitError(f"out of memory{reason}: {remedy}") from error


def run_alone(work: Callable[[Communicator], None], prog: str, why: str, argv: list[str] | None = None) -> None:
    """Do `work` in this process, as :func:`run` does; under mpiexec, refuse in one line of rank 0, status 2.

    The process connects to no others. `why` is the reason why it needs none, such as "it works in one process".
    """
    if launched_size() <= 1:
        run(work, prog, Communicator(), argv)
        return
    first_prints(f"{prog}: {why}: run it without mpiexec")
    sys.exit(2)


def _count_start(comm: Communicator) -> None:
    """Charge the time before the ranks met to the phase `start`; only the first command of a process waited for it."""
    global _counted
    if not _counted:
        comm.seconds["start"] = deadline.age()
    _counted = True


def ranks(words: list[str]) -> Communicator:
    """All ranks of the job. A single process that has no rows to read does not load the MPI library.

    On the login nodes of some clusters that library cannot start.
    """
    return Communicator() if {"-h", "--help", "--dry-run"} & set(words) and not launched() else world()


def parsed(parser: argparse.ArgumentParser, words: list[str] | None, comm: Communicator) -> argparse.Namespace:
    """The arguments; ends the process where help was asked for, on all ranks or on none. Collective."""
    helped: SystemExit | None = None
    with comm.agreed():
        try:
            arguments = parser.parse_args(words)
        except SystemExit as end:
            helped = end
    same_command(parser.prog, {"--help": helped is not None}, comm)
    if helped is not None:
        raise helped
    return arguments


def same_arguments(prog: str, arguments: argparse.Namespace, comm: Communicator) -> None:
    """Raise an InputError on all ranks if they were given other arguments, of a command without options; collective."""
    same_command(prog, {name.replace("_", "-"): value for name, value in vars(arguments).items()}, comm)


def start(job: Job, comm: Communicator) -> int:
    """Set this rank's threads, remove shared memory that killed jobs left, and return the bytes that it may use.

    From now on, whatever is compiled is charged to the phase `compile`.
    """
    from cacore.compiled.compiler import check_compiler
    from cacore.machine import memory, threads
    from cacore.machine.clock import compiling_time

    check_compiler()
    comm.charge_compilation(compiling_time)
    if comm.size > 1 and comm.node().rank == 0:
        memory.remove_dead()
    threads.set_threads(threads.share(comm, job.threads))
    if comm.rank == 0 and not job.quiet and (job.threads or 0) > (usable := len(threads.cores())):
        what = f"--threads {job.threads}: this process may use {usable} core{'' if usable == 1 else 's'}"
        say(f"warning: {what}, and more threads than that are slower", error=True)
    if not job.quiet and (alone := alone_by_mistake(comm.size)):
        say(f"warning: {alone}", error=True)
    return memory.limit_per_rank(comm, job.memory_limit)


@contextmanager
def may_compile(comm: Communicator, shown: bool) -> Iterator[None]:
    """Let Ctrl-C wait for what numba compiles in the block, and let rank 0's terminal say so meanwhile, if `shown`."""
    from cacore.machine.clock import ctrl_c_waits

    with ctrl_c_waits(), line_while_compiling(shown and comm.rank == 0):
        yield


def compiled_ahead(work: Callable[[], object], comm: Communicator, shown: bool = False) -> None:
    """Compile, by `work`, what several ranks would otherwise all compile at once; collective.

    A single rank compiles what it needs when it needs it, and no more.
    """
    several = comm.size > 1
    compiled(work if several else lambda: None, comm, shown and several)


def compiled(work: Callable[[], object], comm: Communicator, shown: bool = False) -> None:
    """Do `work`, which compiles code or loads it from the cache, on one rank of each machine first; collective.

    If `shown`, a terminal says so meanwhile.

    numba's cache is on disk, which is often shared. Ranks that all fill it at once do the same work and
    race for the files, so rank 0 goes first, then one rank of each other machine, then the rest. What numba
    itself loads before its first call takes longer than a filled cache, and all ranks load that at once.
    """
    with comm.phase("compile"), spinner(shown and comm.rank == 0, COMPILING):
        from cacore.compiled.compiler import load_targets
        from cacore.machine.clock import ctrl_c_waits

        load_targets()
        first_here = comm.node().rank == 0  # collective: every rank asks
        turn = 0 if comm.rank == 0 else 1 if first_here else 2
        for now in range(3):
            if now == turn:
                with ctrl_c_waits():
                    work()
            comm.barrier()
