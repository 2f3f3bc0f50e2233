"""Reading of a command's rows: training rows with their test rows, or rows to predict."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cacore.comm import Communicator
from cacore.data.encoding import Columns
from cacore.data.kinds import NO_OVERRIDES, Overrides
from cacore.data.labels import all_classes
from cacore.data.rows import block_bounds, is_sparse, scatter_rows
from cacore.data.shuffle import Shuffle
from cacore.errors import InputError
from cacore.io import Dataset, load
from cacore.io.arrays import NATIVE, Arrays
from cacore.io.fingerprints import overlap
from cacore.io.names import Expected
from cacore.io.table import LABELS, RowsRequest, Targets
from cacore.learn.method import Method
from cacore.run.launch import Predicting, Training
from cacore.terminal import say

# Reasoned: measured targets rarely have so few values, and labels rarely more; the count is only shown.
FEW = 20  # most values of a target that are counted as classes


class TrainedModel(Protocol):
    """A model of any family, as the predicting command sees it."""

    @property
    def dtype(self) -> str:
        """Floating-point type of the rows."""

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of rows, or of support vectors, of each part."""

    @property
    def source(self) -> dict[str, Any]:
        """How the training file was read."""

    @property
    def n_features(self) -> int:
        """Number of features of the rows that it predicts."""

    def described(self) -> dict[str, object]:
        """The model's own entries of the report's params."""


@dataclass(frozen=True)
class Disk:
    """Where rows are kept while a method trains: in memory, or in a scratch file.

    `folder` is that file's folder, None if rows are in memory; `offered` is True if the method can train from a file.
    """

    folder: Path | None = None
    offered: bool = False

    @classmethod
    def of(cls, method: Method, job: Training, options: Any) -> Disk:
        """Choose by the options: the folder of ``--scratch``, else of the model, else the one for temporary files."""
        offered = bool(method.has("out_of_core"))
        if not (offered and options.out_of_core):
            return cls(None, offered)
        beside = tempfile.gettempdir() if job.model is None else job.model.parent
        return cls(options.scratch or Path(beside), offered)

    def load(
        self, path: Path, comm: Communicator, job: Training, limit: int, wanted: Targets, expected: Expected,
        training: bool = False, arrays: Arrays = NATIVE,
    ) -> dict[str, Dataset]:  # fmt: skip
        """Load the rows of a file, by split; collective. `training`: see :func:`cacore.io.load`."""
        if self.folder is not None:
            from cacore.io.loading import load_in_file

            request = RowsRequest(
                np.dtype(job.dtype), job.target, limit=limit, wanted=wanted, expected=expected, training=training
            )  # fmt: skip
            return load_in_file(path, comm, request, self.folder, arrays)
        remedy = "--out-of-core, " if self.offered else ""
        return load(
            path, comm, job.dtype, job.target, limit=limit, wanted=wanted, remedy=remedy, expected=expected,
            training=training, arrays=arrays,
        )  # fmt: skip


MEMORY = Disk()


def read(
    job: Training, comm: Communicator, limit: int, wanted: Targets = LABELS, disk: Disk = MEMORY
) -> tuple[Dataset, Dataset | None]:  # fmt: skip
    """Read the training rows, and matching test rows if there are any; mark test rows that are also training rows.

    If targets are not needed, those of the training rows are set to 0, and test rows may have none.
    """
    expected = _expected(job, comm, needed=wanted.needed)
    splits = disk.load(job.data, comm, job, limit, wanted, expected, training=True, arrays=job.arrays)
    with comm.agreed():
        if "train" not in splits:
            raise InputError(f"{job.data}: test rows alone; there is nothing to learn from")
    train, test = splits["train"], splits.get("test")
    with comm.phase("read"):
        with comm.agreed():
            if wanted.needed:
                train.target()
            if job.test is not None and test is not None:
                raise InputError(f"{job.data}: it has its own test rows; drop --test")
        if job.test is not None:
            expected = replace(expected, columns=train.columns, where=train.where, overrides=NO_OVERRIDES)
            arrays = replace(job.arrays, files=())
            wanted = replace(wanted.like(train.y), remedy=f"the labels of {train.where} are numbers")
            if disk.folder is not None:
                others = disk.load(job.test, comm, job, limit, wanted, expected, arrays=arrays)
            else:
                others = load(
                    job.test, comm, job.dtype, job.target, train.X.shape[1], limit=limit, wanted=wanted,
                    expected=expected, arrays=arrays,
                )  # fmt: skip
            test = others.get("test", others.get("train"))
        _describe_target(train, comm)
        train.notes += train.far_numbers(comm)
        if train.columns.table is not None:
            train.notes += train.columns.table.notes
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


def _expected(job: Training | Predicting, comm: Communicator, **expected: Any) -> Expected:
    """Expected columns according to the options; without `columns`, their names follow later."""

    def tell(line: str) -> None:
        if comm.rank == 0 and not job.quiet:
            say(line, error=True)

    with comm.uncounted(), comm.agreed():
        expected["overrides"] = job.overrides if isinstance(job, Training) else Overrides(key=job.key or "")
    return Expected(ignore_extra=job.ignore_extra_columns, tell=tell, **expected)


def _check_test(train: Dataset, test: Dataset, wanted: Targets) -> None:
    """Raise an InputError if the test rows do not match the training rows."""
    if wanted.needed:
        test.target()
    _check_base(test, train.base, train.where)
    _check_filled(test, not is_sparse(train.X) and train.base is None, train.where)
    if test.X.shape[1] != train.X.shape[1]:
        raise InputError(f"{test.where}: {test.X.shape[1]} features, but {train.X.shape[1]} in {train.where}")
    if wanted.needed:
        _check_same_targets(test, train.target().shape[1:], train.where)
        if "U" in (kinds := test.target().dtype.kind + train.target().dtype.kind) and kinds != "UU":
            words, numbers = (test, train) if kinds[0] == "U" else (train, test)
            raise InputError(f"{words.where}: the labels are words, and numbers in {numbers.where}: write both alike")


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
        say(f"warning: {what}", error=True)


def _check_same_targets(rows: Dataset, kind: tuple[int, ...], where: str) -> None:
    """Raise an InputError if the number of targets per row differs from that of the training rows."""
    if rows.target().shape[1:] != kind:
        count, need = (shape[0] if shape else 1 for shape in (rows.target().shape[1:], kind))
        raise InputError(f"{rows.where}: {count} targets per row, but {need} in {where}")


def _check_base(rows: Dataset, base: int | None, where: str) -> None:
    if None not in (rows.base, base) and rows.base != base:
        raise InputError(
            f"{rows.where}: the features start at {rows.base}, and at {base} in {where}: "
            "convert both files together, with cacore.io convert --test"
        )


def _check_filled(rows: Dataset, dense: bool, where: str) -> None:
    """Raise an InputError for LIBSVM rows with fewer features than dense rows, which cannot omit features.

    `dense` is True if the rows of `where` are dense.
    """
    if dense and _lacks(rows):
        raise InputError(
            f"{rows.where}: {rows.features} features, but {rows.X.shape[1]} in {where}, which leave out none: "
            "convert both files together, with cacore.io convert --test"
        )


def _lacks(rows: Dataset) -> bool:
    return rows.features is not None and rows.features < rows.X.shape[1]


def notes(train: Dataset | None, rows: Dataset | None, path: Path) -> list[str]:
    """Notes for the report: on the training rows, and on features missing in the file of further rows."""
    lines = [note for data in (train, rows) if data is not None for note in data.notes]
    if rows is None or not _lacks(rows):
        return lines
    return [*lines, f"{path} has {rows.features} of {rows.X.shape[1]} features; the others are taken as 0"]


def read_to_predict(
    job: Predicting, comm: Communicator, model: TrainedModel, limit: int, wanted: Targets, kind: tuple[int, ...]
) -> Dataset:  # fmt: skip
    """Read rows to predict for a model; `kind` is the shape of its targets per row."""
    d, source = model.n_features, model.source
    with comm.agreed():
        columns = Columns.of_source(source)
    remembered = columns.table.key if columns.table is not None and job.output is not None else ""
    where, key = f"the model {job.model}", job.key or remembered
    expected = _expected(job, comm, columns=columns, where=where, target=job.target, key=key)
    arrays = job.arrays
    if not arrays.inputs and source.get("arrays"):
        from cacore.io.array_files import of_training_rows

        arrays = replace(of_training_rows(source, job.data, job.follow_links, comm), files=arrays.files)
    splits = load(
        job.data, comm, model.dtype, job.target, d, source.get("target"), limit, wanted, expected=expected,
        arrays=arrays,
    )  # fmt: skip
    rows = splits["test"] if "test" in splits else splits["train"]
    with comm.agreed():
        _check_base(rows, source.get("base"), "the training rows")
        # A model from an estimator or an older version has no record of its training file.
        dense = "base" in source and source["base"] is None and not source.get("sparse", True)
        _check_filled(rows, dense, f"the training rows of {job.model}")
        if rows.X.shape[1] != d:
            raise InputError(f"{rows.where}: {rows.X.shape[1]} features, the model {job.model} has {d}")
        if rows.y is not None:
            _check_same_targets(rows, kind, f"the model {job.model}")
    _describe_target(rows, comm)
    return rows


def read_at_root(job: Training, comm: Communicator, limit: int, seed: int) -> tuple[Dataset, Dataset | None]:
    """Read everything on rank 0, which then distributes the training rows in shuffled order (casvm1)."""
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
    """Distribute rank 0's rows evenly, in shuffled order if there is a seed."""
    facts = np.array([0, -1, 0, 0], np.int64)
    X = y = None
    words = np.zeros(0, np.uint8)
    weights = None
    if data is not None:
        n = data.n
        place = np.arange(n) if seed is None else np.argsort(Shuffle(n, seed).position(np.arange(n)))
        X, y = data.X[place], data.target()[place].reshape(-1, 1)
        if y.dtype.kind == "U":
            labels, y = np.unique(y, return_inverse=True)
            words, y = np.frombuffer(json.dumps(labels.tolist()).encode(), np.uint8), y.reshape(-1, 1)
        weights = None if data.weights is None else data.weights[place].reshape(-1, 1)
        facts[:] = n, -1 if data.base is None else data.base, data.overlap is not None, weights is not None
    n, base, marked, weighted = comm.bcast(facts).tolist()
    rows = scatter_rows(X, n, comm)
    target = np.asarray(scatter_rows(y, n, comm)).ravel()
    if len(words := comm.bcast(words)):
        target = np.array(json.loads(words.tobytes()))[target]
    dealt = Dataset(rows, target, n, "rank 0's rows", None if base < 0 else base)
    if marked:
        column = None if data is None or data.overlap is None else data.overlap.astype(np.int8)
        dealt.overlap = np.asarray(scatter_rows(column, n, comm)).astype(np.bool_)
    dealt.weights = np.asarray(scatter_rows(weights, n, comm)).ravel() if weighted else None
    dealt.features = None if data is None else data.features
    if data is not None:
        # For the model's file and the report, by rank 0.
        dealt.columns, dealt.chosen, dealt.notes = data.columns, data.chosen, data.notes
    return dealt


def _describe_target(rows: Dataset, comm: Communicator) -> None:
    """Describe the values of a target column that the user did not name, for the report; collective.

    Its `range` is its least and largest number, and `values` their count where there are few; `classes` counts words.
    """
    if not rows.chosen or rows.y is None:
        return
    y = rows.y
    with comm.uncounted():
        if not comm.all(y.dtype.kind in "biuf"):
            rows.chosen["classes"] = len(all_classes(y, comm))
            return
        values = y.astype(np.float64, copy=False)
        ends = np.array([values.min(initial=np.inf), -values.max(initial=-np.inf)])
        rows.chosen["range"] = (comm.allreduce(ends, "min") * [1, -1]).tolist()
        mine = np.unique(y)
        if comm.all(len(mine) <= FEW):
            count = len(all_classes(mine, comm))
            rows.chosen |= {"values": count} if count <= FEW else {}
