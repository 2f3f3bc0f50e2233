"""A metric learned on several ranks: that of one process with the same parts, and what its rounds send."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.checks import close, near, scalapack_is_missing
from helpers.data import ripples
from helpers.distributed import RANK, WORLD, R, by_one, dataset, even, refused_by_all

from cacore.comm import Communicator
from cacore.io import Dataset
from cacore.io.checkpoint import Checkpoint
from cakrr import BKRR2, bkrr2, dckrr, dkrr, twolevel
from cakrr.options import RidgeOptions
from casvm import CASVC, cpsvm, dcsvm, dissmo
from casvm.options import SVMOptions

pytestmark = pytest.mark.mpi(min_size=1)

D = 4
COARSE = {"centers": (12, 20), "coarse_sigma": (2.0,), "coarse_lam": (1e-4,)}
RIDGE = {"bkrr2": (bkrr2.METHOD, {"partitions": 5}), "soft": (bkrr2.METHOD, {"partitions": 5, "route": "soft"}),
         "dckrr": (dckrr.METHOD, {"partitions": 5}), "twolevel": (twolevel.METHOD, {"partitions": 5, **COARSE}),
         "dkrr": (dkrr.METHOD, {})}  # fmt: skip
SVM = {"cpsvm": (cpsvm.METHOD, {"partitions": 5}), "dcsvm": (dcsvm.METHOD, {"partitions": 4}),
       "dissmo": (dissmo.METHOD, {})}  # fmt: skip


def ridge(name, X, y, my=slice(None), comm=None, **options):
    """In the metric of at most two rounds."""
    method, more = RIDGE[name]
    given = RidgeOptions(**{"sigma": (1.5, 3.0), "lam": (1e-4, 1e-2), "metric_rounds": 2, "seed": 2, **more, **options})
    return method(dataset(X, y, my), given, comm)


@pytest.fixture(autouse=True)
def _scalapack(request):
    exact = "dkrr" in request.node.name or "exact" in request.node.name
    if exact and R > 1 and scalapack_is_missing():
        pytest.skip("no ScaLAPACK")


@pytest.mark.parametrize(
    ("name", "metric"), [*zip(RIDGE, ["full", "diagonal", "full", "diagonal", "full"], strict=True)]
)
def test_ridge(name, metric, mine, everywhere):
    (X, y), (T, _), comm = ripples(), ripples(41, 1), Communicator(WORLD)
    got = ridge(name, X, y, mine(157), comm, metric=metric)
    values = everywhere(got.model.predict(T[mine(41)]))
    serial = by_one(ridge, name, X, y, metric=metric)
    close(np.array(got.errors), np.array(serial.errors), 1e-5)
    close(got.model.standardizer.root, serial.model.standardizer.root, 1e-6)
    assert (got.model.sigma, got.model.lam) == (serial.model.sigma, serial.model.lam)
    close(values, serial.model.predict(T), 1e-5)
    assert len({root.tobytes() for root in WORLD.allgather(got.model.standardizer.root)}) == 1


@pytest.mark.parametrize(("name", "metric"), [("bkrr2", "diagonal"), ("dkrr", "full")])
def test_csr(name, metric, everywhere):
    (X, y), (T, _), comm = ripples(csr=True), ripples(41, 1, True), Communicator(WORLD)
    got = ridge(name, X, y, even(157), comm, metric=metric)
    values = everywhere(got.model.predict(T[even(41)]))
    serial = by_one(ridge, name, X, y, metric=metric)
    close(np.array(got.errors), np.array(serial.errors), 1e-5)
    close(values, serial.model.predict(T), 1e-5)


@pytest.mark.parametrize("name", [name for name in RIDGE if name != "dkrr"])
@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_what_training_sends(name, metric):
    """One Allreduce of d x d numbers, or d, a round, beside what training sends without a metric."""
    X, y = ripples(80)
    comm = Communicator(WORLD)
    got = ridge(name, X, y, even(80), comm, metric=metric, metric_rounds=3)
    numbers, rounds = D * D if metric == "full" else D, len(got.errors) - 1
    sums, messages = rounds * numbers, rounds
    if name == "twolevel":  # and the coarse model's sums: of the most centres, then, every round, of the chosen number
        M = got.params["centers"]
        sums, messages = sums + 20 * 23 + 2 + rounds * (M * (M + 3) + 2), messages + rounds + 1
    ranks = R if R > 1 else 0
    assert comm.totals()[0]["train"] == {"bytes": 8 * ranks * sums, "messages": ranks * messages}


def test_what_the_exact_method_sends(tuned):
    """An Allreduce of the gradients at the sample: of 72 learning rows, or of 10."""
    (X, y), sent = ripples(80), []
    for count in (72, 10):
        comm = Communicator(WORLD)
        tuned(metric_sample=lambda _, count=count: count)
        ridge("dkrr", X, y, even(80), comm, metric="full", metric_rounds=1)
        sent.append(comm.totals()[0]["train"])
    assert sent[0]["messages"] == sent[1]["messages"]
    assert sent[0]["bytes"] - sent[1]["bytes"] == (8 * R * 62 * D if R > 1 else 0)


@pytest.mark.parametrize(("name", "metric"), [("cpsvm", "full"), ("dissmo", "full"), ("dcsvm", "diagonal")])
def test_svm(name, metric, mine, everywhere):
    (X, y), (T, _), comm = ripples(83), ripples(41, 1), Communicator(WORLD)
    method, more = SVM[name]
    options = SVMOptions(**more, C=10.0, gamma=0.3, tol=1e-6, metric=metric, metric_rounds=1, seed=2)
    got = method(Dataset(X[mine(83)].copy(), y[mine(83)] > 0), options, comm)
    values = everywhere(got.model.decision_function(T[mine(41)]))
    serial = by_one(method, Dataset(X.copy(), y > 0), options)
    near(got.errors, serial.errors, 1e-12)
    roots = [one.model.standardizer and one.model.standardizer.root for one in (got, serial)]
    assert (roots[0] is None) == (roots[1] is None)
    if roots[0] is not None:
        close(roots[0], roots[1], 1e-3 if name == "dissmo" else 1e-5)
    close(values, serial.model.decision_function(T), 1e-2 if name == "dissmo" else 1e-4)


def test_estimators(mine, everywhere):
    """With rows of weight 0, which may be all that a rank has."""
    (X, y), (T, _), my = ripples(), ripples(41, 1), mine(157)
    weights = (np.arange(157) % 5 > 0) * 1.0
    if R > 1:
        weights[even(157) if RANK == 1 else slice(0, 0)] = 0.0
        weights = np.minimum.reduce(WORLD.allgather(weights))
    for make, given, target in (
        (BKRR2, {"sigma": 2.0}, y),
        (CASVC, {"partitioner": "kmeans", "C": 10.0, "gamma": 0.3, "tol": 1e-6}, y > 0),
    ):
        given = {"n_parts": 5, "random_state": 0, "metric": "full", "metric_rounds": 1, **given}
        model = make(**given, comm=WORLD).fit(X[my], target[my], weights[my])
        got = everywhere(model.predict(T[mine(41)]))
        serial = by_one(make(**given).fit, X, target, weights)
        close(model.metric_, serial.metric_, 1e-5)
        close(model.feature_importances_, serial.feature_importances_, 1e-5)
        close(got.astype(float), serial.predict(T).astype(float), 1e-5)


def test_auto(everywhere):
    (X, y), (T, _), comm = ripples(), ripples(41, 1), Communicator(WORLD)
    got = ridge("bkrr2", X, y, even(157), comm, kernel="auto")
    values = everywhere(got.model.predict(T[even(41)]))
    serial = by_one(ridge, "bkrr2", X, y, kernel="auto")
    assert got.model.like == serial.model.like
    close(values, serial.model.predict(T))
    assert comm.totals()[0]["train"] == {"bytes": 0, "messages": 0}


@pytest.mark.parametrize("name", ["bkrr2", "dkrr", "cpsvm"])
def test_checkpoint(name, folder):
    """Another run of the same command ends with the same bits, and trains nothing anew."""
    X, y = ripples(80)
    runs = []
    for _ in range(2):
        kept, comm = Checkpoint(folder / "kept"), Communicator(WORLD)
        if name in RIDGE:
            runs.append(ridge(name, X, y, even(80), comm, metric="full", checkpoint=kept))
        else:
            options = SVMOptions(partitions=5, C=10.0, metric="full", metric_rounds=2, checkpoint=kept)
            runs.append(cpsvm.METHOD(Dataset(X[even(80)].copy(), y[even(80)] > 0), options, comm))
        WORLD.Barrier()
        files = sorted(path.stat().st_ino for path in folder.rglob("*.npz"))
    assert runs[0].errors == runs[1].errors
    np.testing.assert_array_equal(*(run.model.standardizer.root for run in runs))
    assert files == sorted(path.stat().st_ino for path in folder.rglob("*.npz"))


def test_refused():
    X, y = ripples(40)
    wide = np.random.default_rng(0).normal(size=(12, 5000))
    options = RidgeOptions(partitions=5, metric="full")
    refused_by_all(bkrr2.METHOD, dataset(wide, y[:12]), options, Communicator(WORLD), match="5,000 features require")
    alone = np.zeros(40)
    alone[35] = RANK == 0  # which is held out
    options = SVMOptions(partitions=R, metric="full", validation_fraction=0.97)
    refused_by_all(
        cpsvm.METHOD, Dataset(X.copy(), alone), options, Communicator(WORLD), match="but those held out to judge it"
    )


@pytest.mark.parametrize(("name", "dtype"), [("soft", "float64"), ("twolevel", "float32"), ("dkrr", "float64")])
def test_scalings_and_divisions(name, dtype, mine, everywhere):
    """Normal scores, and the mean of three divisions: those of one process."""
    (X, y), (T, _), comm = ripples(), ripples(41, 1), Communicator(WORLD)
    X, T = np.exp(3 * X).astype(dtype), np.exp(3 * T).astype(dtype)
    more = {"scaling": "auto"} if name == "dkrr" else {"scaling": "auto", "divisions": 3}
    got, serial = ridge(name, X, y, mine(157), comm, **more), by_one(ridge, name, X, y, **more)
    assert got.params["scaling"] == serial.params["scaling"] == "quantile"
    near(got.model.standardizer.quantiles, serial.model.standardizer.quantiles, 1e-6 if dtype == "float32" else 1e-12)
    close(everywhere(got.model.predict(T[mine(41)])), serial.model.predict(T), 1e-3 if dtype == "float32" else 1e-6)


@pytest.mark.parametrize(("name", "dtype"), [("soft", "float64"), ("twolevel", "float32"), ("dkrr", "float64")])
def test_levels(name, dtype, mine, everywhere):
    """Columns for values that some ranks do not have: those of one process."""
    (X, y), (T, _), comm = ripples(), ripples(41, 1), Communicator(WORLD)
    for rows in (X, T):
        rows[:, 1] = np.sort(np.round(2 * rows[:, 1]))
    X, T = X.astype(dtype), T.astype(dtype)
    got, serial = (
        ridge(name, X, y, mine(157), comm, scaling="levels"), by_one(ridge, name, X, y, scaling="levels")
    )  # fmt: skip
    levels = serial.model.standardizer.levels
    assert len(levels.feature) > X.shape[1]
    np.testing.assert_array_equal(got.model.standardizer.levels.feature, levels.feature)
    np.testing.assert_array_equal(got.model.standardizer.levels.value, levels.value)
    near(got.model.standardizer.scale, serial.model.standardizer.scale, 1e-6 if dtype == "float32" else 1e-12)
    close(everywhere(got.model.predict(T[mine(41)])), serial.model.predict(T), 1e-3 if dtype == "float32" else 1e-6)


def test_lengths(mine, everywhere):
    """Length scales: those of one process, from one Allreduce of d + 3 numbers an evaluation."""
    (X, y), (T, _), comm = ripples(), ripples(41, 1), Communicator(WORLD)
    got = ridge("bkrr2", X, y, mine(157), comm, metric="lengths")
    serial = by_one(ridge, "bkrr2", X, y, metric="lengths")
    close(got.model.standardizer.root, serial.model.standardizer.root, 1e-5)
    close(everywhere(got.model.predict(T[mine(41)])), serial.model.predict(T), 1e-5)
    evaluations, left = divmod(comm.totals()[0]["train"]["bytes"], R * 8 * (X.shape[1] + 3))
    assert (evaluations > 0, left) == (R > 1, 0)


@pytest.mark.parametrize("name", ["cpsvm", "dissmo"])
def test_lengths_of_classes(name, mine, everywhere, tuned):
    """The ranks share four pieces of the sample; the scales are those of one process."""
    tuned(scales_rows=30)
    (X, y), (T, _), comm = ripples(), ripples(41, 1), Communicator(WORLD)
    method, more = SVM[name]
    options = SVMOptions(C=10.0, metric="lengths", standardize=True, seed=2, **more)
    got = method(dataset(X, y > 0, mine(157)), options, comm)
    serial = by_one(method, dataset(X, y > 0), options)
    close(got.model.standardizer.root, serial.model.standardizer.root, 1e-5)
    close(got.errors, serial.errors, 1e-5)
    assert len({root.tobytes() for root in WORLD.allgather(got.model.standardizer.root)}) == 1
    decided, alone = got.model.decision_function(T[mine(41)], WORLD), serial.model.decision_function(T)
    close(everywhere(decided), alone, 2e-3)
