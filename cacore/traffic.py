"""Bytes and messages by phase, sender and receiver: collect, save and draw them.

``--comm-matrix FILE.npz`` of every training command saves what ``python -m cacore.traffic`` draws. Messages that
ScaLAPACK sends itself are not counted; the report gives an estimate of their volume as `library_bytes_predicted`.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cacore.checks import path_argument
from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.files import check_writable, replacing
from cacore.run import figures
from cacore.run.launch import Parser, run

SCHEMA = "cakernels-traffic/1"
TRAINING = ("partition", "train")
_GROUPS = 32  # most rows of the matrices in a report


@dataclass
class Traffic:
    """Traffic of all ranks in one run.

    Attributes
    ----------
    method : str
    phases : tuple of str
    bytes, messages : ndarray of int64, shape (phases, ranks, ranks + 1)
        Indexed by phase, sender and receiver. The last column counts contributions to reductions and allgathers,
        which have no single receiver (see :class:`cacore.comm.communicator.Communicator`).
    seconds, mpi_seconds : ndarray, shape (phases, ranks)
        Wall-clock seconds of each rank, and the seconds of these that it spent inside MPI calls.

    Examples
    --------
    >>> from cacore import traffic
    >>> from cacore.comm import Communicator
    >>> recorded = traffic.collect(Communicator(), "bkrr2")
    >>> isinstance(recorded, traffic.Traffic), recorded.bytes.shape  # five phases of one rank
    (True, (5, 1, 2))
    """

    method: str
    phases: tuple[str, ...]
    bytes: NDArray[np.int64]
    messages: NDArray[np.int64]
    seconds: NDArray[np.float64]
    mpi_seconds: NDArray[np.float64]

    def save(self, path: str | Path) -> None:
        """Write an .npz file, whole or not at all."""
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, schema=SCHEMA, **vars(self))


def collect(comm: Communicator, method: str) -> Traffic | None:
    """Gather the traffic of all ranks so far on rank 0 (None elsewhere); collective, and not counted itself."""
    clock = comm.clock()
    sent = np.array([comm.sent(phase) for phase in clock])  # phase, bytes or messages, receiver
    seconds = np.array([(total, comm.mpi_seconds.get(phase, 0.0)) for phase, total in clock.items()])
    with comm.uncounted():
        tables, times = comm.gather(sent[None]), comm.gather(seconds[None])
    if tables is None or times is None:
        return None
    (nbytes, messages), (total, inside) = tables.transpose(2, 1, 0, 3), times.transpose(2, 1, 0)
    return Traffic(method, tuple(clock), nbytes, messages, total, inside)


def described(traffic: Traffic) -> dict[str, object]:
    """Bytes by phase, sender and receiver for the report: of ranks, or of up to 32 groups of consecutive ranks.

    The last column of each matrix is what has no single receiver.
    """
    ranks = len(traffic.seconds.T)
    group = -(-ranks // _GROUPS)
    starts = np.arange(0, ranks, group)
    summed = np.add.reduceat(np.add.reduceat(traffic.bytes, starts, axis=1), np.append(starts, ranks), axis=2)
    return {"ranks_per_group": group, "bytes": {
        phase: matrix.tolist() for phase, matrix in zip(traffic.phases, summed, strict=True) if matrix.any()
    }}  # fmt: skip


def load(path: str | Path) -> Traffic:
    """Read a file written by :meth:`Traffic.save`; any other file raises an :class:`InputError`.

    Examples
    --------
    >>> from cacore import traffic
    >>> from cacore.comm import Communicator
    >>> recorded = traffic.collect(Communicator(), "bkrr2")
    >>> recorded.save("traffic.npz")
    >>> traffic.load("traffic.npz").phases
    ('read', 'partition', 'train', 'predict', 'other')
    """
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    try:
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if (schema := str(file["schema"])) != SCHEMA:
                raise InputError(f"{path}: its layout is {schema}, but {SCHEMA} is needed")
            arrays = (file[name] for name in ("bytes", "messages", "seconds", "mpi_seconds"))
            traffic = Traffic(str(file["method"]), tuple(file["phases"].tolist()), *arrays)
    except InputError:
        raise
    except Exception as error:  # numpy, zipfile and zlib each raise their own exceptions for an invalid file
        raise InputError(f"{path}: not a file of --comm-matrix, or damaged") from error
    _check(traffic, path)
    return traffic


def _check(traffic: Traffic, path: str | Path) -> None:
    phases = len({p for p in traffic.phases if isinstance(p, str)})
    ranks = traffic.seconds.shape[-1] if traffic.seconds.ndim else 0
    for name, kind, shape in (
        ("bytes", "int64", (phases, ranks, ranks + 1)), ("messages", "int64", (phases, ranks, ranks + 1)),
        ("seconds", "float64", (phases, ranks)), ("mpi_seconds", "float64", (phases, ranks)),
    ):  # fmt: skip
        values = getattr(traffic, name)
        if values.shape != shape or values.dtype != kind or not (np.isfinite(values) & (values >= 0)).all():
            raise InputError(f"{path}: damaged: {name} has the wrong shape or type, or impossible values")


def _places(traffic: Traffic, phases: Sequence[str]) -> list[int]:
    for phase in phases:
        if phase not in traffic.phases:
            raise InputError(f"phase {phase!r}: {traffic.method} has only the phases {', '.join(traffic.phases)}")
    return [traffic.phases.index(phase) for phase in dict.fromkeys(phases)]


def pattern(traffic: Traffic, phases: Sequence[str] = TRAINING) -> NDArray[np.float64]:
    """Bytes from every rank (row) to every rank (column) in `phases`; see :func:`spread`.

    Examples
    --------
    >>> from cacore import traffic
    >>> from cacore.comm import Communicator
    >>> recorded = traffic.collect(Communicator(), "bkrr2")
    >>> traffic.pattern(recorded).tolist()  # one rank sends nothing
    [[0.0]]
    """
    return spread(traffic.bytes[_places(traffic, phases)].sum(axis=0))


def spread(sent: NDArray[np.int64]) -> NDArray[np.float64]:
    """Bytes from every rank (row) to every rank (column), from those of shape (R, R + 1).

    Bytes without a single receiver, the last column, are spread evenly over the R - 1 other ranks, because only the MPI
    library knows where they really go.
    """
    ranks = len(sent)
    even = sent[:, ranks:] * (1 - np.eye(ranks)) / max(1, ranks - 1)
    return np.asarray(sent[:, :ranks] + even)


def ratio(traffic: Traffic, phases: Sequence[str] = TRAINING) -> tuple[float, float]:
    """Mean seconds per rank inside MPI calls, and outside them, in `phases`.

    Examples
    --------
    >>> from cacore import traffic
    >>> from cacore.comm import Communicator
    >>> recorded = traffic.collect(Communicator(), "bkrr2")
    >>> inside, outside = traffic.ratio(recorded)
    >>> inside <= inside + outside
    True
    """
    places = _places(traffic, phases)
    total, inside = (float(s[places].sum(axis=0).mean()) for s in (traffic.seconds, traffic.mpi_seconds))
    return inside, max(0.0, total - inside)


def _parser() -> Parser:
    parser = Parser(prog="python -m cacore.traffic", description="Draw the files that --comm-matrix saved.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser)
    for name, text in (
        ("pattern", "bytes from every rank to every rank, one panel per file (Fig. 2.7 of the thesis)"),
        ("ratio", "seconds inside MPI calls and outside them, one bar per file (Fig. 2.8)"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("files", metavar="FILE.npz", nargs="+", type=path_argument)
        command.add_argument("-o", "--output", metavar="OUT.png", type=path_argument, required=True)
        command.add_argument(
            "--phases", metavar="LIST", help="phases to add up (default: partition,train; for ratio also wait)"
        )
    return parser


def draw(args: argparse.Namespace) -> None:
    """Run the ``pattern`` or ``ratio`` command."""
    check_writable(args.output)
    runs = [load(path) for path in args.files]
    phases = list(TRAINING)
    if args.phases is not None:
        phases = [phase.strip() for phase in args.phases.split(",")]
    elif args.command == "ratio" and all("wait" in traffic.phases for traffic in runs):
        phases.append("wait")  # time spent waiting for the slowest rank
    often = Counter(traffic.method for traffic in runs)
    titles = [
        traffic.method if often[traffic.method] == 1 else path.stem
        for traffic, path in zip(runs, args.files, strict=True)
    ]
    what = " + ".join(phases)
    if args.command == "pattern":
        figure = figures.patterns(titles, [pattern(traffic, phases) for traffic in runs], what)
    else:
        figure = figures.ratios(titles, [ratio(traffic, phases) for traffic in runs], what)
    figures.save(figure, args.output)


def main(argv: list[str] | None = None) -> None:
    """Entry point of ``python -m cacore.traffic``."""
    run(lambda _: draw(_parser().parse_args(argv)), "cacore.traffic", Communicator())


if __name__ == "__main__":
    main()
