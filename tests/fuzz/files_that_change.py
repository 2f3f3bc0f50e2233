"""Files that change, shrink or vanish while a command reads them, and worlds that are odd otherwise.

A case runs a command, on one rank or on two or three, and at a random moment of its reading and writing something
happens: see `meddling`. Right is the answer that the command gives when nothing happens, to the file as it was or as it
is afterwards, bit by bit; or one line that names the file, status 2 (1 if a file cannot be written), and nothing new
or changed in the folder. A mixture of both files is wrong, and so is one rank's view of a file.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import gzip
import io
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import h5py
import numpy as np

from .meddling import CHANGES, Meddling, launched, run
from .meddling import PATIENCE as A_JOB

FORMATS = ("csv", "csv.gz", "h5", "parquet", "libsvm", "npz")
COMMANDS = {
    "convert": ("cacore.io", ["convert", "DATA", "out", "--quiet"]),
    "svm": ("casvm.cpsvm", ["DATA", "--model", "out", "--gamma", "0.5", "--partitions", "3", "--quiet"]),
    "krr": (
        "cakrr.bkrr2", ["DATA", "--model", "out", "--sigma", "1", "--lambda", "1e-3", "--partitions", "3", "--quiet"]
    ),
    "out-of-core": (
        "casvm.cpsvm", ["DATA", "--model", "out", "--gamma", "0.5", "--partitions", "3", "--out-of-core", "--quiet"]
    ),
    "predict": ("casvm.predict", ["model", "DATA", "-o", "out", "--quiet"]),
}  # fmt: skip
ODD = {"quota": 1, "full": 1, "quota on ranks": 3, "one rank's file": 3, "stopped": 3, "clock": 1, "model": 1}
_ALONE = {f"{what} {form}": (what, form) for what in ("convert", "svm", "krr", "predict") for form in FORMATS}
_TOGETHER = {f"{what} {form} on ranks": (what, form) for what, form in (
    ("convert", "csv"), ("svm", "csv"), ("svm", "h5"), ("krr", "csv.gz"), ("krr", "parquet"), ("predict", "libsvm"),
    ("predict", "npz"), ("out-of-core", "h5"))}  # fmt: skip
FORMS = [*_ALONE, "out-of-core h5", *_TOGETHER, *ODD]
QUICK = ["convert csv", "convert h5", "predict libsvm", "out-of-core h5", "quota", "full", "clock", "model"]
GOOD = ("refused", "answered")
N, D = 400, 4
PATIENCE = 3 * A_JOB  # of several jobs


# -- files -------------------------------------------------------------------------------------------


def content(form, seed):
    """Bytes of rows whose numbers all have the same length, so that two files of a form have the same size."""
    rng = np.random.default_rng([77, seed])
    X = np.round(rng.uniform(-9, 9, (N, D)), 4)
    return WRITERS[form](X, np.where(X[:, 0] * X[:, 1] + rng.normal(size=N) > 0, 1, -1))


def _csv(X, y):
    return "".join(",".join([*(f"{v:+.4f}" for v in x), f"{t:+d}"]) + "\n" for x, t in zip(X, y, strict=True)).encode()


def _libsvm(X, y):
    lines = ([f"{t:+d}", *(f"{j}:{v:+.4f}" for j, v in enumerate(x, 1))] for x, t in zip(X, y, strict=True))
    return "".join(" ".join(words) + "\n" for words in lines).encode()


def _npz(X, y):
    stream = io.BytesIO()
    np.savez(stream, x=X, y=y.astype(float))
    return stream.getvalue()


def _parquet(X, y):
    import pyarrow as pa
    import pyarrow.parquet as pq

    stream, columns = io.BytesIO(), dict(zip("abcdy", [*X.T, y.astype(float)], strict=True))
    pq.write_table(pa.table(columns), stream, row_group_size=50, compression="none", use_dictionary=False)
    return stream.getvalue()


def _hdf5(X, y):
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["train/X"], file["train/y"] = X, y.astype(float)
    return stream.getvalue()


WRITERS = {
    "csv": _csv, "csv.gz": lambda X, y: gzip.compress(_csv(X, y), mtime=0), "h5": _hdf5, "parquet": _parquet,
    "libsvm": _libsvm, "npz": _npz,
}  # fmt: skip


@functools.cache
def _first(form):
    return content(form, 0)


# -- one case ----------------------------------------------------------------------------------------


class Place:
    """A folder with a data file, a model, and in every other case an earlier output."""

    def __init__(self, folder, form, data, earlier):
        self.folder = folder
        self.path = folder / f"data.{form}"
        self.path.write_bytes(data)
        (folder / "model").write_bytes(_model())
        if earlier:
            (folder / "out").write_bytes(b"earlier")
        self.before = self._files()

    def _files(self):
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path != self.path
        }

    def words(self, what):
        """Program and words of a command; its files are named relative to the folder."""
        program, words = COMMANDS[what]
        return program, [self.path.name if word == "DATA" else word for word in words]

    def ended(self, status, err, right):
        """Judge an end: `right` says whether the output is."""
        told = [line for line in err.splitlines() if not line.startswith("warning: ")]
        after = self._files()
        if status == 0:
            out = after.pop("out", None)
            left = set(after) - set(self.before)
            if told or left:
                return f"status 0, left {sorted(left)}, said {told}"
            return "answered" if out is not None and right(out) else "another answer"
        if after != self.before:
            names = sorted(name for name in {*after, *self.before} if after.get(name) != self.before.get(name))
            return f"status {status}, changed {names}: {told}"
        if status not in (1, 2) or len(told) != 1 or len(told[0]) > 1000:
            return f"status {status}: {err[-1000:]}"
        if status == 1:
            return "refused" if "cannot be written" in told[0] else f"status 1: {told[0]}"
        named = "data." in told[0] or " model:" in told[0]
        return "refused" if named else f"status 2: {told[0]}"


def alone(place, what, meddling):
    """Exit status and stderr of a command in this process."""
    program, words = place.words(what)
    err = io.StringIO()
    with contextlib.chdir(place.folder), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        status = run(program, words, meddling)
    return status, err.getvalue()


@functools.cache
def answer(what, form, data, ranks=1):
    """The output for a file to which nothing happens, None if it is refused, and the moments of each rank's run."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), form, data, earlier=False)
        nothing = Meddling()
        if ranks == 1:
            status, _ = alone(place, what, nothing)
        else:
            status, _ = launched(ranks, *place.words(what), {}, folder)
        out = place.folder / "out"
        return (out.read_bytes() if status == 0 else None), nothing.seen


@functools.cache
def _model():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data.csv").write_bytes(content("csv", 9))
        with contextlib.chdir(folder):
            program, words = COMMANDS["svm"]
            assert run(program, ["data.csv" if word == "DATA" else word for word in words], Meddling()) == 0
        return (folder / "out").read_bytes()


def case(form, number, seed, folder):
    """One command, to which something happens."""
    rng = np.random.default_rng([seed, number, FORMS.index(form)])
    place = folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if form in ODD:
        return WORLDS[form](rng, place)
    what, kind = _TOGETHER.get(form) or form.rsplit(" ", 1)
    return changed(rng, place, what, kind, int(rng.integers(2, 4)) if form in _TOGETHER else 1)


def changed(rng, folder, what, kind, ranks):
    """The file changes while it is read, by one of the ranks."""
    change, old = str(rng.choice(list(CHANGES))), _first(kind)
    right, moments = answer(what, kind, old)
    place = Place(folder, kind, old, rng.random() < 0.5)
    other = folder.parent / "other"
    other.write_bytes(content(kind, int(rng.integers(1, 1 << 30))))
    if change == "truncated":
        os.truncate(other, int(rng.integers(1, len(old))))
    told = {"moment": int(rng.integers(moments)), "change": change, "path": str(place.path), "content": str(other)}
    if ranks == 1:
        status, err = alone(place, what, Meddling(**told))
    else:
        right, _ = answer(what, kind, old, ranks)
        status, err = launched(ranks, *place.words(what), {int(rng.integers(ranks)): told}, folder)
    now = place.path.read_bytes() if place.path.exists() else old
    end = place.ended(status, err, lambda out: out == right or out == answer(what, kind, now, ranks)[0])
    return end if end in GOOD else f"{end} ({change} at {told['moment']} of {moments}, {ranks} ranks)"


def _drawn(rng):
    """A command and a form of file that it reads."""
    what = str(rng.choice(list(COMMANDS)))
    return what, "h5" if what == "out-of-core" else str(rng.choice(FORMATS))


def _quota(rng, folder, ranks=1):
    """Files may not grow beyond some size, which may be enough."""
    what, kind = _drawn(rng)
    right, _ = answer(what, kind, _first(kind), ranks)
    place = Place(folder, kind, _first(kind), rng.random() < 0.5)
    room = int(rng.integers(0, int(1.3 * len(right))))
    if ranks == 1:
        status, err = alone(place, what, Meddling(room=room))
    else:
        status, err = launched(ranks, *place.words(what), {rank: {"room": room} for rank in range(ranks)}, folder)
    end = place.ended(status, err, lambda out: out == right)
    return end if end in GOOD else f"{end} ({what} {kind}, room for {room} of {len(right)})"


def _full(rng, folder):
    """A file system on which some room is left; a quota where none can be mounted."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        return _quota(rng, folder)
    try:
        what, kind = _drawn(rng)
        right, _ = answer(what, kind, _first(kind))
        place = Place(folder, kind, _first(kind), rng.random() < 0.5)
        left = int(rng.integers(0, int(1.3 * len(right)) + 8192))
        free = shutil.disk_usage(folder).free
        (folder / "filling").write_bytes(bytes(max(0, free - left)))
        place.before = place._files()
        end = place.ended(*alone(place, what, Meddling()), lambda out: out == right)
        return end if end in GOOD else f"{end} ({what} {kind}, {left} bytes are free for {len(right)})"
    finally:
        gc.collect()  # a scratch file without a name is closed with the traceback that refers to it
        subprocess.run(["umount", folder], check=True)


def _one_ranks_file(rng, folder):
    """Ranks work in folders of their own, as on nodes with disks of their own: one lacks the file, or has another."""
    (what, kind), ranks = _drawn(rng), int(rng.integers(2, 4))
    right, _ = answer(what, kind, _first(kind), ranks)
    odd, how = int(rng.integers(ranks)), str(rng.choice(["the same", "other rows", "shorter", "none", "a folder"]))
    places = []
    for rank in range(ranks):
        mine = folder / str(rank)
        mine.mkdir()
        places.append(Place(mine, kind, _first(kind), earlier=False))
    path = places[odd].path
    if how == "other rows":
        path.write_bytes(content(kind, int(rng.integers(1, 1 << 30))))
    elif how == "shorter":
        path.write_bytes(_first(kind)[: int(rng.integers(1, len(_first(kind))))])
    elif how != "the same":
        path.unlink()
        if how == "a folder":
            path.mkdir()
    told = {rank: {"folder": str(folder / str(rank))} for rank in range(ranks)}
    status, err = launched(ranks, *places[0].words(what), told, folder)
    end = places[0].ended(status, err, lambda out: out == right)
    alike = how == "the same" or (what == "convert" and odd > 0)  # rank 0 alone reads what is converted
    good = end == "refused" or (end == "answered" and alike)
    return end if good else f"{end} ({what} {kind}: rank {odd} of {ranks} has {how}; {err[-300:]})"


def _stopped(rng, folder, seconds=1.0):
    """A rank is stopped for a while, and goes on."""
    (what, kind), ranks = _drawn(rng), int(rng.integers(2, 4))
    right, moments = answer(what, kind, _first(kind))
    right, _ = answer(what, kind, _first(kind), ranks)
    place = Place(folder, kind, _first(kind), earlier=False)
    told = {int(rng.integers(ranks)): {"moment": int(rng.integers(moments)), "stop": seconds}}
    status, err = launched(ranks, *place.words(what), told, folder)
    end = place.ended(status, err, lambda out: out == right)
    return end if end == "answered" else f"{end} ({what} {kind}, {told}, {ranks} ranks)"


def _clock(rng, folder):
    """A clock that jumps by hours changes nothing, and ends no time limit."""
    what, kind = _drawn(rng)
    right, _ = answer(what, kind, _first(kind))
    place = Place(folder, kind, _first(kind), earlier=False)
    end = place.ended(*alone(place, what, Meddling(clock=int(rng.integers(1, 1 << 30)))), lambda out: out == right)
    return end if end == "answered" else f"{end} ({what} {kind})"


def _model_changes(rng, folder):
    """The model changes while it is read."""
    change, kind = str(rng.choice(list(CHANGES))), str(rng.choice(FORMATS))
    right, moments = answer("predict", kind, _first(kind))
    place = Place(folder, kind, _first(kind), rng.random() < 0.5)
    other, model = folder.parent / "other", folder / "model"
    other.write_bytes(_other_model())
    if change == "truncated":
        os.truncate(other, int(rng.integers(1, len(_other_model()))))
    told = {"moment": int(rng.integers(moments)), "change": change, "path": str(model), "content": str(other)}
    status, err = alone(place, "predict", Meddling(**told))
    if model.exists():
        place.before["model"] = model.read_bytes()
    else:
        del place.before["model"]
    end = place.ended(status, err, lambda out: out in (right, _other_answer(kind)))
    return end if end in GOOD else f"{end} ({change} at {told['moment']} of {moments})"


@functools.cache
def _other_model():
    return answer("svm", "csv", content("csv", 8))[0]


@functools.cache
def _other_answer(kind):
    with tempfile.TemporaryDirectory() as name:
        place = Place(Path(name), kind, _first(kind), earlier=False)
        (place.folder / "model").write_bytes(_other_model())
        assert alone(place, "predict", Meddling())[0] == 0
        return (place.folder / "out").read_bytes()


WORLDS = {
    "quota": _quota,
    "full": _full,
    "quota on ranks": lambda rng, folder: _quota(rng, folder, int(rng.integers(2, 4))),
    "one rank's file": _one_ranks_file,
    "stopped": _stopped,
    "clock": _clock,
    "model": _model_changes,
}
