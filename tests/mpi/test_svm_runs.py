"""SVMs of distributed rows: checkpoints, commands, and what is refused on all ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import inodes, names, same_part
from helpers.data import drawn_clouds, write_hdf5
from helpers.distributed import RANK, WORLD, R, even, refused_by_all
from helpers.svm_on_ranks import METHODS, NAMES, PARTITIONED, T_ROWS, N, methods, train

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from casvm import CASVC, SMOSVC, SVMModel, command, export_libsvm

pytestmark = pytest.mark.mpi(min_size=1)


# -- checkpoints and commands ------------------------------------------------------------------------


@methods
def test_checkpoint(name, folder):
    X, y = drawn_clouds(k=3)
    first = train(name, X, y, even(N), Communicator(WORLD), checkpoint=Checkpoint(folder / "kept"))
    WORLD.Barrier()
    before = inodes(folder / "kept")
    WORLD.Barrier()
    second = train(name, X, y, even(N), Communicator(WORLD), checkpoint=Checkpoint(folder / "kept"))
    WORLD.Barrier()
    assert inodes(folder / "kept") == before
    assert len(before) == 8
    for number, part in first.model.parts.items():
        same_part(second.model.parts[number], part, 0)
    np.testing.assert_array_equal(first.solver["seconds"], second.solver["seconds"])  # those of the first run


@pytest.fixture
def data(folder):
    """A file that every rank reads its share of."""
    if RANK == 0:
        write_hdf5(folder / "in.h5", train=drawn_clouds(k=3), test=drawn_clouds(T_ROWS, 1, k=3))
    WORLD.Barrier()
    return folder / "in.h5"


@pytest.mark.parametrize(
    ("name", "initial"),  # casvm alone reads at the root, and is there on every number of ranks
    [("casvm", "local"), ("casvm", "root"), *((name, "local") for name in PARTITIONED)],
)
def test_command(name, initial, data):
    """The report's counts are those of all ranks; only a root that deals rows out sends them."""
    folder = data.parent
    words = [str(data), "--partitions", str(R + 1), "--model", str(folder / "m.h5"), "--report", str(folder / "r.json")]
    words += ["--initial", initial] if name == "casvm" else []
    command.train(METHODS[name], Communicator(WORLD), [*words, "--quiet"])
    WORLD.Barrier()
    made = json.loads((folder / "r.json").read_text())
    T, u = drawn_clouds(T_ROWS, 1, k=3)
    got = SVMModel.load(folder / "m.h5").predict(T)
    assert (made["ranks"], made["partitions"], sum(made["partition_sizes"])) == (R, R + 1, N)
    assert (made["comm"]["train"]["bytes"], made["comm"]["train"]["messages"]) == (0, 0)
    assert (made["comm"]["partition"]["bytes"] == 0) == (R == 1 or (name == "casvm" and initial == "local"))
    assert made["metrics"]["accuracy"] == pytest.approx((got == u).mean())
    assert np.sum(made["metrics"]["confusion"]) == T_ROWS
    assert len(made["solver"]["busy_seconds"]) == R
    assert all(len(made["solver"][field]) == R + 1 for field in ("iterations", "n_support", "objective", "gap"))


# -- what is refused, on all ranks ---------------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
@methods
def test_fewer_parts_than_ranks(name):
    X, y = drawn_clouds()
    refused_by_all(
        lambda: train(name, X, y, even(N), Communicator(WORLD), partitions=R - 1), match="every rank needs a part"
    )
    model = CASVC(R - 1, partitioner=NAMES[name], comm=WORLD)
    refused_by_all(lambda: model.fit(X[even(N)], y[even(N)]), match="every rank needs a part")


@methods
def test_more_parts_than_rows(name):
    X, y = drawn_clouds(12)
    y[:] = np.arange(12) % 2
    refused_by_all(
        lambda: train(name, X, y, even(12), Communicator(WORLD), partitions=13), match="every part needs a row"
    )


@pytest.mark.mpi(min_size=2)
def test_rank_with_fewer_rows_than_parts():
    X, y = drawn_clouds(40)
    my = slice(0, 39) if RANK == 0 else slice(39, 40 if RANK == 1 else 39)
    refused_by_all(
        lambda: train("casvm", X, y, my, Communicator(WORLD), partitions=2 * R), match="of rank 1: every part"
    )


def test_one_class_everywhere():
    X, y = drawn_clouds(40)
    refused_by_all(lambda: CASVC(comm=WORLD).fit(X[even(40)], np.zeros(40)[even(40)]), match="one class only, 0.0")
    refused_by_all(lambda: CASVC(comm=WORLD).fit(X[even(40)], y[even(40)], np.zeros(40)[even(40)]), match="non-zero")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("what", ["nan", "negative weight", "features", "format", "weights", "one rank's C"])
def test_bad_rows_of_one_rank(what):
    (X, y), last = drawn_clouds(40), RANK == R - 1
    w, C = None, 1.0
    if what == "nan" and last:
        X[3, 1] = np.nan
    if what == "negative weight":
        w = np.full(40, -1.0 if last else 1.0)
    if what == "features" and last:
        X = X[:, :3]
    if what == "format" and last:
        X = sp.csr_matrix(X)
    if what == "weights" and last:
        w = np.ones(40)
    if what == "one rank's C" and last:
        C = -1.0
    message = {"nan": "NaN", "negative weight": "negative weights", "one rank's C": "C: not the same"}
    message = message.get(what, "not the same on all ranks|differ")
    refused_by_all(lambda: CASVC(comm=WORLD, C=C).fit(X, y, w), match=message)


@pytest.mark.mpi(min_size=2)
def test_bad_rows_to_predict_of_one_rank():
    X, y = drawn_clouds(40)
    model = CASVC(comm=WORLD, random_state=0).fit(X, y)
    for call in (model.predict, model.decision_function):
        refused_by_all(lambda call=call: call(X[:, : 3 if RANK == 1 else 4]), match="features")


@pytest.mark.mpi(min_size=2)
def test_model_of_other_ranks():
    X, y = drawn_clouds(60)
    model = train("cpsvm", X, y, partitions=4).model
    with pytest.raises(InputError, match="load it on the ranks"):
        model.predict(X, WORLD)


@pytest.mark.mpi(min_size=2)
def test_exact_solver_stays_alone():
    """SMOSVC does not know of other ranks, and gives each its own model."""
    X, y = drawn_clouds(30, seed=RANK)
    y[:2] = 0, 1
    assert SMOSVC().fit(X, y).model_.sizes.tolist() == [30]


@pytest.mark.mpi(min_size=2)
def test_libsvm_is_for_one_rank(data, folder):
    words = [str(data), "--libsvm", str(folder / "l.model")]
    refused_by_all(lambda: command.train(METHODS["casvm"], Communicator(WORLD), words), match="--libsvm")
    WORLD.Barrier()
    assert names(folder) == ["in.h5"]


def test_each_rank_exports_its_parts(folder):
    """By the function, as the parts lie."""
    X, y = drawn_clouds()
    model = train("fcfssvm", X, y, even(N), Communicator(WORLD)).model
    written = export_libsvm(model, folder / "l.model")
    WORLD.Barrier()
    assert [path.name for path in written] == [f"l.{p:06d}.model" for p in sorted(model.parts)]
    assert names(folder) == [f"l.{p:06d}.model" for p in range(6)]
