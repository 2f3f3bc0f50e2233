"""Support vector regression on rows of many ranks: exact, with a model in pieces, and in parts."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import near
from helpers.data import FORMS, as_csr
from helpers.distributed import RANK, WORLD, R, by_one, dataset, even, refused_by_all
from sklearn.svm import SVR

from cacore.comm import Communicator
from casvm import CASVR, SMOSVR, DisSMOSVR, SVRModel, export_libsvm, import_libsvm, oneclass
from casvm.options import ValueOptions
from partition import KMeans

pytestmark = pytest.mark.mpi(min_size=1)

N, FEW = 157, 79  # no multiples of any number of ranks
PARAMS = {"C": 2.0, "epsilon": 0.1, "gamma": 0.5}


def rows(csr=False, dtype=np.float64, n=N):
    rng = np.random.default_rng(0)
    X = as_csr(rng.normal(size=(n, 3)).astype(dtype), csr, 0.4)
    y = np.sin(2 * np.asarray(X.sum(axis=1)).ravel()) + 0.2 * rng.normal(size=n)
    return X, y.astype(np.float64), rng.choice([0.0, 0.5, 1.0, 2.0], n)


def uneven(n):
    """This rank's rows, of which the first rank has none where there are several."""
    if R == 1:
        return slice(0, n)
    rank = WORLD.rank - 1
    return slice(0, 0) if rank < 0 else slice(n * rank // (R - 1), n * (rank + 1) // (R - 1))


@pytest.mark.parametrize(("csr", "dtype"), FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("block", [even, uneven])
def test_as_libsvm_solves_it(csr, dtype, block):
    """Rounds of 16 rows, so that there are many; with weights."""
    X, y, weights = rows(csr, dtype, FEW)
    mine = block(FEW)
    model = DisSMOSVR(**PARAMS, tol=1e-6, working_set=16, comm=WORLD)
    model.fit(X[mine], y[mine], sample_weight=weights[mine])
    reference = by_one(SVR(**PARAMS, tol=1e-7).fit, X.astype(np.float64), y, sample_weight=weights)
    near(model.predict(X[mine]), reference.predict(X[mine].astype(np.float64)) if mine.stop > mine.start else [], 1e-4)
    near(model.intercept_, reference.intercept_, 1e-4)
    support = np.concatenate(WORLD.allgather(model.support_))
    assert (np.diff(support) > 0).all()
    assert (weights[support] > 0).all()
    assert len(support) == model.sizes_.sum()
    beta = np.concatenate(WORLD.allgather(model.dual_coef_[0]))
    dense = X.toarray() if csr else X
    K = np.exp(-0.5 * ((dense[support][:, None].astype(np.float64) - dense[support]) ** 2).sum(axis=2))
    assert model.objective_ == pytest.approx(
        y[support] @ beta - 0.5 * beta @ K @ beta - 0.1 * np.abs(beta).sum(), rel=1e-6
    )
    alone = by_one(DisSMOSVR(**PARAMS, tol=1e-6).fit, X, y, sample_weight=weights)
    assert model.objective_ == pytest.approx(alone.objective_, rel=1e-6)
    near(model.score(X[mine], y[mine]), alone.score(X, y), 1e-4)


def test_saved_by_many_and_loaded_by_one(folder):
    X, y, _ = rows(n=FEW)
    mine = even(FEW)
    model = DisSMOSVR(**PARAMS, standardize=True, comm=WORLD).fit(X[mine], y[mine])
    predicted = model.predict(X[mine])
    model.save(folder / "m.h5")
    near(SVRModel.load(folder / "m.h5").predict(X)[mine], predicted, 1e-12)
    near(type(model).load(folder / "m.h5", WORLD).predict(X[mine]), predicted, 1e-12)


def test_refused_by_all_ranks():
    X, y, _ = rows()
    mine = even(N)
    refused_by_all(DisSMOSVR(epsilon=-1, comm=WORLD).fit, X[mine], y[mine], match="epsilon = -1: ")
    refused_by_all(DisSMOSVR(kernel="precomputed", comm=WORLD).fit, X[mine], y[mine], match="kernel = 'precomputed'")
    gap = np.where(np.arange(N) == N - 1, np.nan, y)  # on the last rank
    refused_by_all(DisSMOSVR(comm=WORLD).fit, X[mine], gap[mine], match="y.*NaN")
    fit = DisSMOSVR(comm=WORLD).fit
    refused_by_all(lambda: fit(X[mine], y[mine], np.zeros(mine.stop - mine.start)), match="every weight is zero")


PARTITIONERS = ("kmeans", "bkm", "fcfs", "kbalance", KMeans(n_parts=7))
P = 7  # no multiple of any number of ranks but 1


@pytest.mark.parametrize("partitioner", PARTITIONERS, ids=str)
def test_parts_as_one_process_trains_them(partitioner):
    X, y, weights = rows(dtype=np.float32)
    mine = even(N)
    params = {**PARAMS, "partitioner": partitioner, "random_state": 0, "tol": 1e-5}
    for route, n_divisions in (("nearest", 1), ("soft", 2), ("all", 1)):
        some = CASVR(P, route=route, n_divisions=n_divisions, comm=WORLD, **params).fit(
            X[mine], y[mine], sample_weight=weights[mine]
        )
        alone = CASVR(P, route=route, n_divisions=n_divisions, **params)
        alone = by_one(alone.fit, X, y, sample_weight=weights)
        near(some.predict(X[mine]), alone.predict(X)[mine], 1e-4)
        np.testing.assert_array_equal(some.sizes_, alone.sizes_)
        near(some.centers_, alone.centers_, 1e-6)
        near(some.solver_["objective"], alone.solver_["objective"], 1e-4)
        near(some.score(X[mine], y[mine]), alone.score(X, y), 1e-4)
    assert alone.sizes_.sum() == np.count_nonzero(weights)


@pytest.mark.parametrize("route", ["nearest", "soft"])
def test_parts_that_overlap(route):
    """Each part's regression is that of its own rows and the nearest others; the route knows nothing of the others."""
    X, y, _ = rows()
    mine, params = even(N), {**PARAMS, "partitioner": "kmeans", "random_state": 0, "tol": 1e-6, "route": route}
    model = CASVR(P, overlap=0.5, **params, comm=WORLD).fit(X[mine], y[mine])
    apart = by_one(CASVR(P, **params).fit, X, y)
    near(model.centers_, apart.centers_, 1e-9)
    squares = ((X[:, None] - model.centers_) ** 2).sum(axis=2)
    own = squares.argmin(axis=1)
    for part, one in model.model_.parts.items():
        others = np.flatnonzero(own != part)
        closer = squares[others, part] - squares[others, own[others]]
        added = others[np.argsort(closer)[: round(0.5 * apart.sizes_[part])]]
        learned = np.sort(np.concatenate([np.flatnonzero(own == part), added]))
        assert model.sizes_[part] == len(learned)
        near(
            one.predict(X, model.model_.kernel), SMOSVR(**PARAMS, tol=1e-6).fit(X[learned], y[learned]).predict(X), 1e-4
        )
    if route == "soft":
        assert model.model_.soft.t == pytest.approx(apart.model_.soft.t, rel=1e-9)
    else:
        alone = by_one(CASVR(P, overlap=0.5, **params).fit, X, y)
        near(model.predict(X[mine]), alone.predict(X)[mine], 1e-4)


def test_each_part_is_a_regression_of_its_rows():
    """Random parts: the rows of a rank, of which a part has its support vectors' numbers."""
    X, y, _ = rows()
    mine = even(N)
    comm = Communicator(WORLD)
    model = CASVR(R, **PARAMS, tol=1e-6, partitioner="random", comm=comm).fit(X[mine], y[mine])
    own = SMOSVR(**PARAMS, tol=1e-6).fit(X[mine], y[mine])
    near(model.model_.parts[RANK].predict(X, model.model_.kernel), own.predict(X), 1e-5)
    np.testing.assert_array_equal(model.support_ - mine.start, own.support_)
    mean = np.mean(WORLD.allgather(own.predict(X)), axis=0)
    near(model.predict(X[mine]), mean[mine], 1e-5)


@pytest.mark.parametrize("partitioner", ["random", "kmeans"])
def test_training_sends_nothing(partitioner):
    X, y, _ = rows()
    mine = even(N)
    comm = Communicator(WORLD)
    CASVR(P, **PARAMS, partitioner=partitioner, random_state=0, comm=comm).fit(X[mine], y[mine])
    totals = comm.totals()[0]
    assert totals["train"]["bytes"] == 0
    assert partitioner == "kmeans" or totals["partition"]["bytes"] == 0


def test_parts_saved_by_many_and_loaded_by_one(folder):
    X, y, _ = rows(csr=True)
    mine = even(N)
    model = CASVR(P, **PARAMS, partitioner="kmeans", route="soft", standardize=True, random_state=0, comm=WORLD)
    predicted = model.fit(X[mine], y[mine]).predict(X[mine])
    model.save(folder / "m.h5")
    near(SVRModel.load(folder / "m.h5").predict(X)[mine], predicted, 1e-12)
    near(SVRModel.load(folder / "m.h5", WORLD).predict(X[mine]), predicted, 1e-12)
    if R > 1:
        refused_by_all(lambda: model.save(folder / "n.h5") if RANK else model.predict(X[mine]), match="call: not the")


def test_parts_refused_by_all_ranks():
    X, y, _ = rows()
    mine = even(N)
    for more, match in (
        ({"n_parts": N + 1, "partitioner": "kmeans"}, f"{N + 1} parts of {N} rows: every part needs a row"),
        ({"partitioner": "spectral"}, "partitioner 'spectral': choose one of "),
        ({"route": "best"}, "route = 'best'"),
    ):
        refused_by_all(CASVR(**more, comm=WORLD).fit, X[mine], y[mine], match=match)


def test_pieces_are_not_exported_one_by_one(folder):
    X, y, _ = rows(n=FEW)
    mine = even(FEW)
    model = DisSMOSVR(**PARAMS, working_set=16, comm=WORLD).fit(X[mine], y[mine]).model_
    if R > 1:
        with pytest.raises(ValueError, match="several ranks hold pieces of the model: save it, load it on one rank"):
            export_libsvm(model, folder / f"{RANK}.model")
    model.save(folder / "m.h5")
    export_libsvm(SVRModel.load(folder / "m.h5"), folder / f"{RANK}.model")
    near(import_libsvm(folder / f"{RANK}.model", 3).predict(X)[mine], model.predict(X[mine], WORLD), 1e-9)


@pytest.mark.parametrize(("gamma", "exact"), [(0.3, True), (60.0, True), (0.3, False)])
def test_nu_bounds_the_share_of_outliers(gamma, exact):
    """Of all ranks' rows, also where the bias is agreed between ranks that each have a part of the kernel matrix."""
    n = 601
    X, mine = np.random.default_rng(0).normal(size=(n, 3)), even(n)
    for nu in (0.3, 0.01):
        how = {"exact": True} if exact else {"partitions": max(3, R)}
        options = ValueOptions(nu=nu, gamma=gamma, standardize=False, **how)
        model = oneclass.METHOD(dataset(X[mine], np.zeros(len(X[mine]))), options, Communicator(WORLD)).model
        outliers = model.predict(X[mine], WORLD) < 0
        assert WORLD.allreduce(np.count_nonzero(outliers)) <= nu * n
