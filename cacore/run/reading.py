"""Reading the rows of a command: training rows with their test rows, or rows to predict."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cacore.comm import Communicator
from cacore.data.rows import block_bounds, is_sparse, scatter_rows
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.io import Dataset, load
from cacore.io.fingerprints import overlap
from cacore.io.table import LABELS, Targets
from cacore.run.job import Predicting, Training


@dataclass(frozen=True)
class Disk:
    """Whether rows lie in a file while a method trains, and in which folder.

    `folder` is None where they do not; `offered` says whether the method could.
    """

    folder: Path | None = None
    offered: bool = False

    @classmethod
    def of(cls, method: Any, job: Training, options: Any) -> Disk:
        """As these options say: in the folder of ``--scratch``, or of the model, or that for temporary files."""
        offered = bool(method.has("out_of_core"))
        if not (offered and options.out_of_core):
            return cls(None, offered)
        beside = tempfile.gettempdir() if job.model is None else job.model.parent
        return cls(options.scratch or Path(beside), offered)

    def load(self, path: Path, comm: Communicator, job: Training, limit: int, wanted: Targets) -> dict[str, Dataset]:
        """The rows of a file, by split; collective."""
        if self.folder is not None:
            from cacore.io.in_file import load_in_file

            return load_in_file(path, comm, job.dtype, job.target, self.folder, limit, wanted)
        remedy = "--out-of-core, " if self.offered else ""
        return load(path, comm, job.dtype, job.target, limit=limit, wanted=wanted, remedy=remedy)


MEMORY = Disk()


def read(
    job: Training, comm: Communicator, limit: int, wanted: Targets = LABELS, disk: Disk = MEMORY
) -> tuple[Dataset, Dataset | None]:  # fmt: skip
    """Training rows, and test rows if there are any, which must match; those that are training rows too are marked.

    Where targets are not needed, those of the training rows are 0, and test rows may have none.
    """
    splits = disk.load(job.data, comm, job, limit, wanted)
    with comm.agreed():
        if "train" not in splits:
            raise InputError(f"{job.data}: test rows alone; there is nothing to learn from")
    train, test = splits["train"], splits.get("test")
    with comm.phase("read"):
        with comm.agreed():
            if wanted.needed:
                train.target()
            if job.test is not None and test is not None:
                raise InputError(f"{job.data}: has test rows of its own; drop --test")
        if job.test is not None:
            if disk.folder is not None:
                others = disk.load(job.test, comm, job, limit, wanted)
            else:
                others = load(job.test, comm, job.dtype, job.target, train.X.shape[1], limit=limit, wanted=wanted)
            test = others.get("test", others.get("train"))
        if not wanted.needed:
            train.y = np.zeros(train.X.shape[0])
        comm.wait()
        if test is None:
            return train, None
        with comm.agreed():
            _check_test(train, test, wanted)
        if not job.allow_overlap:
            _mark_overlap(job, train, test, comm, wanted)
    return train, test


def _check_test(train: Dataset, test: Dataset, wanted: Targets) -> None:
    """Refuse test rows that are not as the training rows are."""
    if wanted.needed:
        test.target()
    _check_base(test, train.base, train.where)
    _check_filled(test, not is_sparse(train.X) and train.base is None, train.where)
    if test.X.shape[1] != train.X.shape[1]:
        raise InputError(f"{test.where}: {test.X.shape[1]} features, and {train.X.shape[1]} in {train.where}")
    if wanted.needed:
        _check_same_targets(test, train.target().shape[1:], train.where)


def _mark_overlap(job: Training, train: Dataset, test: Dataset, comm: Communicator, wanted: Targets) -> None:
    both = overlap(train, test if wanted.needed else replace(test, y=np.zeros(test.X.shape[0])), comm)
    lo, hi = block_bounds(test.n, comm.size, comm.rank)
    test.overlap = both[lo:hi]
    if not both.any():
        return
    first, count = int(np.argmax(both)), np.count_nonzero(both)
    what = (
        f"{test.where}: {count:,} of {test.n:,} test rows are training rows too (first: row {first}), which flatters "
        "the error; convert --drop-duplicates removes them"
    )
    if job.strict:
        with comm.agreed():
            raise InputError(f"{what}, and without --strict they are only counted")
    if comm.rank == 0 and not job.quiet:
        print(f"warning: {what}", file=sys.stderr)


def _check_same_targets(rows: Dataset, kind: tuple[int, ...], where: str) -> None:
    """Refuse targets that are more, or fewer, than those of the training rows."""
    if rows.target().shape[1:] != kind:
        found, need = (shape[0] if shape else 1 for shape in (rows.target().shape[1:], kind))
        raise InputError(f"{rows.where}: {found} targets a row, and {need} in {where}")


def _check_base(rows: Dataset, base: int | None, where: str) -> None:
    if None not in (rows.base, base) and rows.base != base:
        raise InputError(
            f"{rows.where}: the features start at {rows.base}, and at {base} in {where}: "
            "convert both files together, with cacore.io convert --test"
        )


def _check_filled(rows: Dataset, dense: bool, where: str) -> None:
    """Refuse LIBSVM rows with fewer features than `dense` rows, which leave none out: they are other features."""
    if dense and _lacks(rows):
        raise InputError(
            f"{rows.where}: {rows.features} features, and {rows.X.shape[1]} in {where}, which leave out none: "
            "convert both files together, with cacore.io convert --test"
        )


def _lacks(rows: Dataset) -> bool:
    return rows.features is not None and rows.features < rows.X.shape[1]


def filled(rows: Dataset | None, path: Path) -> list[str]:
    """A note about features that the rows' file does not have, on rank 0."""
    if rows is None or not _lacks(rows):
        return []
    return [f"{path} has {rows.features} of {rows.X.shape[1]} features; the others are taken as 0"]


def read_to_predict(
    job: Predicting, comm: Communicator, d: int, dtype: str, source: dict[str, Any], limit: int,
    wanted: Targets = LABELS, kind: tuple[int, ...] = (),
) -> Dataset:  # fmt: skip
    """Rows for a model of `d` features, and of targets of this shape, trained on a file read as `source` tells."""
    splits = load(job.data, comm, dtype, job.target, d, source.get("target"), limit, wanted)
    rows = splits["test"] if "test" in splits else splits["train"]
    with comm.agreed():
        _check_base(rows, source.get("base"), "the training rows")
        # A model that an estimator trained, or an older version, does not know what its rows were.
        dense = "base" in source and source["base"] is None and not source.get("sparse", True)
        _check_filled(rows, dense, f"the training rows of {job.model}")
        if rows.X.shape[1] != d:
            raise InputError(f"{rows.where}: {rows.X.shape[1]} features, the model {job.model} has {d}")
        if rows.y is not None:
            _check_same_targets(rows, kind, f"the model {job.model}")
    return rows


def read_at_root(job: Training, comm: Communicator, limit: int, seed: int) -> tuple[Dataset, Dataset | None]:
    """casvm1: rank 0 reads everything and deals the training rows out in shuffled order."""
    train: Dataset | None = None
    test: Dataset | None = None
    with comm.phase("read"), comm.agreed():
        if comm.rank == 0:
            train, test = read(job, Communicator(), limit)
    with comm.phase("read"):
        has_test = bool(comm.bcast(np.array([test is not None], np.int64))[0])
    with comm.phase("partition"):
        mixed = _dealt(train, comm, seed)
    if not has_test:
        return mixed, None
    with comm.phase("read"):
        return mixed, _dealt(test, comm, None)


def _dealt(data: Dataset | None, comm: Communicator, seed: int | None) -> Dataset:
    """Each rank's even share of rank 0's rows."""
    facts = np.array([0, -1, 0], np.int64)
    X = y = None
    if data is not None:
        n = data.n
        place = np.arange(n) if seed is None else np.argsort(Shuffle(n, seed).position(np.arange(n)))
        X, y = data.X[place], data.target()[place].reshape(-1, 1)
        facts[:] = n, -1 if data.base is None else data.base, data.overlap is not None
    n, base, marked = comm.bcast(facts).tolist()
    rows = scatter_rows(X, n, comm)
    target = np.asarray(scatter_rows(y, n, comm), np.float64).ravel()
    dealt = Dataset(rows, target, n, "rank 0's rows", None if base < 0 else base)
    if marked:
        column = None if data is None or data.overlap is None else data.overlap.astype(np.int8)
        dealt.overlap = np.asarray(scatter_rows(column, n, comm)).astype(np.bool_)
    dealt.features = None if data is None else data.features
    return dealt
