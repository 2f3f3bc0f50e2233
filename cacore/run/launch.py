"""Start of a command: its parser, one-line errors, exit status, threads, compilation."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

from cacore.comm import Communicator, alone_by_mistake, first_prints, launched, launched_size, world
from cacore.errors import InputError, MemoryLimitError, OutputError
from cacore.files import printing
from cacore.learn.same import same_command
from cacore.machine import process
from cacore.progress import COMPILING, line_while_compiling, spinner
from cacore.terminal import open_closed_streams, put, say

if TYPE_CHECKING:
    from cacore.run.job import Job


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
    found: list[str] = []
    for word in words:
        if found and re.fullmatch(r"--[a-zA-Z][\w-]*", found[-1]) and re.match(r"-[\d.]", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


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
            say(*(f"{prog}: {one}" for one in (error, *error.others)), error=True)
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
        comm.seconds["start"] = process.age()
    _counted = True


def ranks(words: list[str]) -> Communicator:
    """All ranks of the job. A single process that is asked for help does not load the MPI library."""
    return Communicator() if {"-h", "--help"} & set(words) and not launched() else world()


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
    from cacore.machine import memory, segments, threads
    from cacore.machine.clock import check_compiler, compiling_time

    check_compiler()
    comm.charge_compilation(compiling_time)
    if comm.size > 1 and comm.node().rank == 0:
        segments.remove_dead()
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
    from cacore.machine.interrupts import ctrl_c_waits

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
        from numba.core.registry import cpu_target

        from cacore.machine.interrupts import ctrl_c_waits

        cpu_target.typing_context.refresh()
        cpu_target.target_context.refresh()
        first_here = comm.node().rank == 0  # collective: every rank asks
        turn = 0 if comm.rank == 0 else 1 if first_here else 2
        for now in range(3):
            if now == turn:
                with ctrl_c_waits():
                    work()
            comm.barrier()
