"""The rest of the family: distributed against serial, to 1e-8; what training sends; checkpoints of several ranks."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import close, inodes, names
from helpers.data import smooth as rows
from helpers.distributed import RANK, WORLD, R, by_one, dataset, even, refused_by_all
from scipy.spatial.distance import cdist

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cakrr import KRRModel, bkrr, bkrr2, bkrr3, kkrr, kkrr3, twolevel
from cakrr.methods.task import RidgeTask
from cakrr.options import RidgeOptions

pytestmark = pytest.mark.mpi(min_size=1)

COARSE = {"centers": (12, 20), "coarse_sigma": (1.0, 3.0), "coarse_lam": (1e-5, 1e-3)}
METHODS = {
    "kkrr": (kkrr.METHOD, {}),
    "bkrr": (bkrr.METHOD, {}),
    "kkrr3": (kkrr3.METHOD, {}),
    "bkrr3": (bkrr3.METHOD, {}),
    "twolevel": (twolevel.METHOD, COARSE),
    "soft": (bkrr2.METHOD, {"route": "soft"}),
    "loo": (bkrr2.METHOD, {"select": "loo"}),
    "soft loo": (bkrr2.METHOD, {"route": "soft", "select": "loo"}),
}
methods = pytest.mark.parametrize("name", METHODS)
UNCHOSEN = [name for name in METHODS if "loo" not in name]
SOME = ["bkrr", "kkrr3", "twolevel", "soft", "loo"]  # each rule of the validation rows once
PAIRS = {"sigma": (0.5, 1.5), "lam": (1e-5, 1e-2)}


def train(name, X, y, my=slice(None), comm=None, test=None, dtype=np.float64, weights=None, **options):
    """On this rank's rows `my` of all ranks', or all rows on one rank; a rank that is stopped does not stop others."""
    method, more = METHODS[name]
    given = RidgeOptions(**{"partitions": 5, "seed": 2, **more, **options})
    result = RidgeTask.train(method, dataset(X, y, my, dtype, weights), given, comm or Communicator(), test)
    result.model.comm = comm
    return result


def answers(model, T, t, comm=None):
    """Predictions by route, or an oracle's errors."""
    if model.route == "oracle":
        return {"oracle": model.oracle(T, t, comm)}
    return model.predict_routes(T, comm)


def same_choice(result, serial, rtol):
    """The same setting, from the same errors."""
    one, other = result.model, serial.model
    assert (one.sigma, one.lam, one.route) == (other.sigma, other.lam, other.route)
    assert list(result.params) == list(serial.params)
    assert result.params == pytest.approx(serial.params, rel=1e-6)
    assert len(result.grid) == len(serial.grid)
    for row, expected in zip(result.grid, serial.grid, strict=True):
        assert list(row) == list(expected)
        assert [key for key in row if row[key] is None] == [key for key in row if expected[key] is None]
        for key, value in expected.items():
            assert value is None or row[key] == pytest.approx(value, rel=rtol)


def all_equal(comm, result, serial, T, t, our, everywhere, tolerance=1e-8):
    got = {route: everywhere(values) for route, values in answers(result.model, T[our], t[our], comm).items()}
    expected = answers(serial.model, T, t)
    same_choice(result, serial, 1e-8 if tolerance < 1e-7 else 1e-4)  # the grid in single precision is not refined
    assert list(got) == list(expected)
    for route, values in expected.items():
        close(got[route], values, tolerance)


@pytest.mark.parametrize("name", UNCHOSEN)
def test_fixed_pair_csr(name, mine, everywhere):
    (X, y), (T, t), comm = rows(csr=True), rows(41, seed=1, csr=True), Communicator(WORLD)
    result = train(name, X, y, mine(157), comm, sigma=(1.5,), lam=(1e-3,))
    serial = by_one(train, name, X, y, sigma=(1.5,), lam=(1e-3,))
    all_equal(comm, result, serial, T, t, mine(41), everywhere)
    assert bool(result.grid) == (name == "twolevel")  # which always has a coarse model to choose


def grids_agree(name, my, our, everywhere, csr=False):
    (X, y), (T, t), comm = rows(csr=csr), rows(41, seed=1, csr=csr), Communicator(WORLD)
    result, serial = train(name, X, y, my, comm, **PAIRS), by_one(train, name, X, y, **PAIRS)
    all_equal(comm, result, serial, T, t, our, everywhere)
    assert len(result.grid) == 4 * (8 if name == "twolevel" else 1)
    assert ("soft_k" in result.params) == (result.model.route == "soft")


@methods
def test_grid(name, mine, everywhere):
    grids_agree(name, mine(157), mine(41), everywhere)


@pytest.mark.parametrize("name", SOME)
def test_grid_csr(name, everywhere):
    grids_agree(name, even(157), even(41), everywhere, csr=True)


@pytest.mark.parametrize("name", UNCHOSEN)
def test_grid_judged_by_test_rows(name, everywhere):
    (X, y), (T, t), comm = rows(), rows(41, seed=1), Communicator(WORLD)
    result = train(name, X, y, even(157), comm, dataset(T, t, even(41)), select="test", **PAIRS)
    serial = by_one(train, name, X, y, test=dataset(T, t), select="test", **PAIRS)
    all_equal(comm, result, serial, T, t, even(41), everywhere)
    assert all(row["validation_mse"] is None for row in result.grid)


@pytest.mark.parametrize("name", SOME)
def test_float32(name, everywhere):
    """Standardised, and judged, in single precision; solved to double."""
    (X, y), (T, t), comm = rows(), rows(41, seed=1), Communicator(WORLD)
    one = {"sigma": (1.5,), "lam": (1e-2,), "dtype": np.float32}
    one |= {"centers": (12,), "coarse_sigma": (3.0,), "coarse_lam": (1e-3,)}
    result, serial = train(name, X, y, even(157), comm, **one), by_one(train, name, X, y, **one)
    T = T.astype(np.float32)
    all_equal(comm, result, serial, T, t, even(41), everywhere, 1e-6)
    assert 0 < result.residual.max() < 1e-11


def city(A, B):
    return np.exp(-cdist(A, B, "cityblock") / 1.5)


OTHERS = [("bkrr", "laplacian"), ("loo", "matern52"), ("soft", "l1"), ("twolevel", "l1"), ("twolevel", "rational"),
          ("bkrr", "wendland2_product")]  # fmt: skip


@pytest.mark.parametrize(("name", "kernel"), [*OTHERS, ("twolevel", city)])
def test_other_kernels(name, kernel, everywhere):
    (X, y), (T, t), comm = rows(), rows(41, seed=1), Communicator(WORLD)
    given = {"kernel": kernel, "degree": 2, "lam": (1e-4, 1e-2)}
    given |= {"coarse_sigma": None} if callable(kernel) else {"sigma": (1.5,)}
    result, serial = train(name, X, y, even(157), comm, **given), by_one(train, name, X, y, **given)
    all_equal(comm, result, serial, T, t, even(41), everywhere)


@pytest.mark.parametrize("name", SOME)
def test_weights(name, everywhere):
    (X, y), (T, t), comm = rows(), rows(41, seed=1), Communicator(WORLD)
    given = {"sigma": (0.5, 1.5), "lam": (1e-3,), "weights": np.random.default_rng(4).uniform(0.5, 3, 157)}
    result, serial = train(name, X, y, even(157), comm, **given), by_one(train, name, X, y, **given)
    all_equal(comm, result, serial, T, t, even(41), everywhere)


def test_many_lambdas(everywhere):
    """By the band and the eigenvalues, which few lambdas do not reach."""
    (X, y), (T, t) = rows(), rows(41, seed=1)
    for name in ("loo", "bkrr"):
        comm, lam = Communicator(WORLD), tuple(np.geomspace(1e-6, 1e-1, 13))
        result = train(name, X, y, even(157), comm, sigma=(1.5,), lam=lam)
        serial = by_one(train, name, X, y, sigma=(1.5,), lam=lam)
        all_equal(comm, result, serial, T, t, even(41), everywhere)


# -- what is sent ------------------------------------------------------------------------------


@methods
def test_training_sends(name):
    """Nothing, but for the coarse models' one Allreduce: (M + 3) M numbers a sigma, and 2 sums of weights."""
    X, y = rows(80)
    comm = Communicator(WORLD)
    train(name, X, y, even(80), comm, **PAIRS)
    traffic, _ = comm.totals()
    ranks = R if name == "twolevel" and R > 1 else 0
    M, sigmas = max(COARSE["centers"]), len(COARSE["coarse_sigma"])
    assert traffic["train"] == {"bytes": 8 * ranks * (sigmas * (M + 3) * M + 2), "messages": ranks}


def test_coarse_sums_of_different_sizes():
    """By default the wide kernel has fewer centres; more than there are rows are not used."""
    X, y = rows(80)
    default = dict.fromkeys(COARSE)
    for settings, Ms in (({"centers": (9,), "coarse_sigma": (1.0, 2.0, 4.0)}, [9, 9, 9]), ({}, [80, 80])):
        comm = Communicator(WORLD)
        train("twolevel", X, y, even(80), comm, sigma=(1.5,), lam=(1e-3,), **{**default, **settings})
        expected = R * 8 * (sum((M + 3) * M for M in Ms) + 2) if R > 1 else 0
        assert comm.totals()[0]["train"]["bytes"] == expected


# -- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "csr"), [("twolevel", False), ("twolevel", True), ("soft", True), ("bkrr", False)])
def test_model_file(name, csr, folder, everywhere):
    """Saved by all ranks it loads on one without MPI, and the other way round."""
    (X, y), (T, _), comm = rows(csr=csr), rows(41, seed=1, csr=csr), Communicator(WORLD)
    given = {"sigma": (1.5,), "lam": (1e-3,)}
    model = train(name, X, y, even(157), comm, **given).model
    model.save(folder / "many.h5")
    serial = by_one(train, name, X, y, **given).model
    if RANK == 0:
        serial.save(folder / "one.h5")
    WORLD.Barrier()
    got = everywhere(model.predict(T[even(41)]))
    loaded = KRRModel.load(folder / "one.h5", comm)
    back = everywhere(loaded.predict(T[even(41)]))
    halves = WORLD.Split(RANK % 2, RANK)
    of_half = KRRModel.load(folder / "many.h5", halves).predict(T)  # each half of the ranks by itself
    halves.Free()
    alone = KRRModel.load(folder / "many.h5")
    close(alone.predict(T), got, 1e-13)
    close(of_half, got, 1e-13)
    close(back, serial.predict(T), 1e-13)
    assert sum(WORLD.allgather(len(loaded.parts))) == len(alone.parts) == 5
    assert (alone.soft is None) == (name == "bkrr")
    assert (alone.coarse is None) == (name != "twolevel")
    assert names(folder) == ["many.h5", "one.h5"]


@pytest.mark.parametrize("name", ["kkrr3", "bkrr3"])
def test_oracle_models_are_not_saved(name, folder):
    X, y = rows()
    model = train(name, X, y, even(157), Communicator(WORLD), lam=(1e-3,)).model
    with pytest.raises(InputError, match=f"{name} is an oracle"):
        model.save(folder / "m.h5")
    assert names(folder) == []


@pytest.mark.parametrize("name", ["kkrr3", "bkrr3"])
def test_oracle_models_do_not_predict(name):
    X, y = rows()
    model = train(name, X, y, even(157), Communicator(WORLD), lam=(1e-3,)).model
    with pytest.raises(InputError, match=f"{name} is an oracle"):
        model.predict(X[even(157)])


# -- checkpoints -------------------------------------------------------------------------------


class KilledError(Exception):
    """The run stops here."""


def stopping(when, after):
    """A progress that ends every rank's run after so many parts (or pairs) of its own, between two collective calls."""

    def progress(what, total):
        done = [0]

        def advance(steps=0, _=None):
            if what == GRID and steps:
                return  # work inside a part, of which nothing is kept until it is done
            done[0] += 1
            if what == when and done[0] == min(after, total):
                raise KilledError

        return advance

    return progress


GRID, SOFT, TRAINING = "choosing sigma and lambda", "choosing the soft route", "training"
STOPS = [("bkrr", GRID, 1), ("bkrr", TRAINING, 2), ("bkrr3", GRID, 2), ("loo", GRID, 1), ("twolevel", GRID, 1),
         ("twolevel", SOFT, 2), ("twolevel", TRAINING, 1)]  # fmt: skip


@pytest.mark.parametrize(("name", "when", "after"), STOPS)
def test_resumed(name, when, after, folder, everywhere):
    """A run that was stopped goes on from its pieces, and ends with the same bits as one that was not."""
    (X, y), (T, t), my = rows(), rows(41, seed=1), even(157)
    given = {**PAIRS, "partitions": 9}
    first, again, whole = (Communicator(WORLD) for _ in range(3))
    checkpoint = Checkpoint(folder / "kept")
    with pytest.raises(KilledError):
        train(name, X, y, my, first, checkpoint=checkpoint, progress=stopping(when, after), **given)
    WORLD.Barrier()
    left = inodes(folder, "kept/*.npz")
    WORLD.Barrier()
    resumed = train(name, X, y, my, again, checkpoint=Checkpoint(folder / "kept"), **given)
    undisturbed = train(name, X, y, my, whole, **given)
    WORLD.Barrier()
    ended = inodes(folder, "kept/*.npz")
    assert R <= len(left) < len(ended)
    assert left == {name: ended[name] for name in left}  # taken up, not computed again
    assert resumed.grid == undisturbed.grid
    assert resumed.params == undisturbed.params
    T, t = T[even(41)], t[even(41)]
    got, expected = answers(resumed.model, T, t, again), answers(undisturbed.model, T, t, whole)
    for route, values in expected.items():
        np.testing.assert_array_equal(got[route], values)
    for part, model in undisturbed.model.parts.items():
        np.testing.assert_array_equal(resumed.model.parts[part].alpha, model.alpha)


def test_nothing_is_summed_again(folder):
    """The coarse model of a finished run is read by every rank."""
    X, y = rows()
    for sent in (R if R > 1 else 0, 0):
        comm = Communicator(WORLD)
        checkpoint = Checkpoint(folder / "kept")
        train("twolevel", X, y, even(157), comm, sigma=(1.5,), lam=(1e-3,), checkpoint=checkpoint)
        assert comm.totals()[0]["train"]["messages"] == sent


def test_damaged_pieces(folder):
    """All ranks refuse the first, whoever has read it, before anyone works."""
    kept, comm = Checkpoint(folder / "kept"), Communicator(WORLD)
    kept.open({}, comm)
    if RANK == 0:
        for number in range(3, 9):
            (folder / "kept" / f"part-00000{number}.npz").touch()
    refused_by_all(kept.open, {}, comm, match="part-000003.npz: damaged; remove it")


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["bkrr", "twolevel"])
def test_checkpoint_of_another_number_of_ranks(name, folder):
    X, y = rows()
    given = {"sigma": (1.5,), "lam": (1e-3,)}
    if RANK == 0:
        train(name, X, y, checkpoint=Checkpoint(folder / "kept"), **given)
    WORLD.Barrier()
    before = inodes(folder, "kept/*.npz")

    def again():
        train(name, X, y, even(157), Communicator(WORLD), checkpoint=Checkpoint(folder / "kept"), **given)

    refused_by_all(again, match=f"a checkpoint of 1 rank, and this run has {R}; run the same command on 1 rank")
    assert inodes(folder, "kept/*.npz") == before


@pytest.mark.mpi(min_size=2)
def test_rows_split_in_another_way(folder):
    """The same ranks and the same rows: the pieces are those of the parts, wherever the rows were read."""
    X, y = rows()
    given = {"sigma": (1.5,), "lam": (1e-3,)}
    for my in (even(157), slice(0, 157) if RANK == 1 else slice(0, 0)):
        comm = Communicator(WORLD)
        train("bkrr", X, y, my, comm, checkpoint=Checkpoint(folder / "kept"), **given)
        WORLD.Barrier()
    assert len(inodes(folder, "kept/*.npz")) == 5


@pytest.mark.parametrize("csr", [False, True])
def test_refined(csr, mine, everywhere, folder):
    """Iterations from the coarse model are those of one rank; a second run takes them from the checkpoint."""
    (X, y), (T, _) = rows(csr=csr), rows(41, seed=1, csr=csr)
    one = {"centers": 20, "coarse_sigma": (1.5,), "coarse_lam": (1e-3,), "sigma": (1.0,), "lam": (1e-2,), "refine": 3}
    comm = Communicator(WORLD)
    result = train("twolevel", X, y, mine(157), comm, **one)
    got = everywhere(result.model.predict(T[mine(41)], comm))
    close(got, by_one(train, "twolevel", X, y, **one).model.predict(T), 1e-5)
    for _ in range(2):
        kept = train("twolevel", X, y, mine(157), comm, **one, checkpoint=Checkpoint(folder / "kept"))
        np.testing.assert_array_equal(everywhere(kept.model.predict(T[mine(41)], comm)), got)
