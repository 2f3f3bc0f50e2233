"""Ranks that are given different things: all of them refuse, in one line that names the thing, its values and ranks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.data import write_hdf5
from helpers.distributed import RANK, WORLD, R, labelled
from helpers.failing import every_rank_raises, rows
from sklearn.exceptions import NotFittedError

from cacore.comm import Communicator, require_same
from cacore.comm.alike import canonical
from cacore.errors import InputError
from cacore.io import load
from cakrr import BKRR2, DKRR, BKRR2Classifier, TwoLevelKRR
from casvm import CASVC, CASVR, CascadeSVC, DCFilterSVC, DisSMOSVC, DisSMOSVR
from casvm.casvm import casvm
from casvm.model.svm_model import SVMModel
from casvm.options import SVMOptions
from partition import KBalance, KMeans

LAST = RANK == R - 1

pytestmark = pytest.mark.mpi(min_size=2, max_size=3)


def differ(name, first, last):
    others = "rank 0" if R == 2 else f"ranks 0-{R - 2}"
    return f"{name}: not the same on all ranks ({first} on {others}, {last} on rank {R - 1}); give every rank the same"


# Estimator, parameter, its values on the last rank and on the others, and how a message shows them.
PARAMETERS = [
    (DisSMOSVC, "C", 1e4, 1.0, "10000", "1"),
    (DisSMOSVC, "kernel", "linear", "gaussian", "'linear'", "'gaussian'"),
    (DisSMOSVC, "class_weight", {1: 10}, None, "{1: 10}", "None"),
    (DisSMOSVC, "gamma", 0.5, "scale", "0.5", "'scale'"),
    (CascadeSVC, "kernel", "l1", "gaussian", "'l1'", "'gaussian'"),
    (CascadeSVC, "C", -1.0, 0.5, "-1", "0.5"),
    (DCFilterSVC, "tol", 1e-4, 1e-3, "0.0001", "0.001"),
    (CASVC, "gamma", [1.0, 2.0], [1, 3], "[1, 2]", "[1, 3]"),
    (CASVC, "n_parts", 3, 4, "3", "4"),
    (DisSMOSVR, "C", 2.5, 0.1, "2.5", "0.1"),
    (CASVR, "epsilon", "grid", 0.1, "'grid'", "0.1"),
    (BKRR2, "sigma", 2.0, 1.0, "2", "1"),
    (BKRR2, "calibrate", "loo", 0.5, "'loo'", "0.5"),
    (BKRR2Classifier, "n_parts", 2, 3, "2", "3"),
    (TwoLevelKRR, "centers", 20, 30, "20", "30"),
    (DKRR, "solver", "cg", "cholesky", "'cg'", "'cholesky'"),
    (KBalance, "n_parts", 3, 4, "3", "4"),
]


def test_parameters():
    X, y, labels = rows()
    for kind, name, last, others, shown, of_others in PARAMETERS:
        given = {name: last if LAST else others}
        if kind is KBalance:
            message = every_rank_raises(InputError, lambda given=given: KBalance(**given).fit(X, comm=WORLD))
        else:
            target = labels if kind.__name__.endswith(("SVC", "Classifier")) else y
            fit = kind(**given, comm=WORLD).fit
            message = every_rank_raises(InputError, lambda fit=fit, target=target: fit(X, target))
        assert message == differ(name, of_others, shown), kind


def test_parameters_with_parameters():
    X, _, y = rows()
    own = KMeans(n_parts=4) if LAST else KBalance(n_parts=4)
    message = every_rank_raises(InputError, lambda: CASVC(partitioner=own, comm=WORLD).fit(X, y))
    assert message == differ("partitioner", "partition.estimators.KBalance", "partition.estimators.KMeans")
    own = KBalance(n_parts=R + LAST)
    message = every_rank_raises(InputError, lambda: CASVC(partitioner=own, comm=WORLD).fit(X, y))
    assert message == differ("partitioner__n_parts", str(R), str(R + 1))


def test_calls():
    """Another class, another method of it, an estimator that is not fitted, another model."""
    X, y, labels = rows()
    given = {"gamma": 0.5, "comm": WORLD}
    one, other = DisSMOSVC(**given).fit(X, labels), CASVC(**given, n_parts=R, random_state=0).fit(X, labels)
    ridge = BKRR2(n_parts=R, random_state=0, comm=WORLD, calibrate=0.3).fit(X, y)
    unlike = [
        (lambda: (CASVC if LAST else DisSMOSVC)(**given).fit(X, labels), "call", "DisSMOSVC.fit", "CASVC.fit"),
        (lambda: (other if LAST else one).predict(X), "call", "DisSMOSVC.predict", "CASVC.predict"),
        (lambda: (one.decision_function if LAST else one.predict)(X), "call", "DisSMOSVC.predict",
         "DisSMOSVC.decision_function"),
        (lambda: one.fit(X, labels) if LAST else one.predict(X), "call", "DisSMOSVC.predict", "DisSMOSVC.fit"),
        (lambda: one.score(X, labels) if LAST else one.predict(X), "call", "DisSMOSVC.predict", "DisSMOSVC.score"),
        (lambda: ridge.score(X, y) if LAST else ridge.predict(X), "call", "BKRR2.predict", "BKRR2.score"),
        (lambda: ridge.predict(X, return_std=LAST), "return_std", "False", "True"),
        (lambda: ridge.predict_interval(X, 0.9 if LAST else 0.8), "coverage", "0.8", "0.9"),
        (lambda: (DisSMOSVC(**given) if LAST else one).predict(X), "fitted", "True", "False"),
        (lambda: one.model_.scores(X, WORLD) if LAST else one.model_.pair_decisions(X, WORLD), "call",
         "SVMModel.pair_decisions", "SVMModel.scores"),
    ]  # fmt: skip
    for work, name, first, last in unlike:
        assert every_rank_raises(InputError, work) == differ(name, first, last)
    with pytest.raises(NotFittedError):
        DisSMOSVC(**given).predict(X)
    again = CASVC(**given, n_parts=R, random_state=1).fit(X, labels)
    mixed = again if LAST else other
    assert every_rank_raises(InputError, lambda: mixed.predict(X)).startswith("model: not the same on all ranks")
    pickled = pickle.loads(pickle.dumps(one.model_))  # as one rank may have it from a file
    kept = pickled if LAST else one.model_
    np.testing.assert_array_equal(kept.predict(X, WORLD), one.predict(X))


def test_rows():
    X, _, y = rows()
    text = np.where(y > 0, "up", "down")
    unlike = [
        (lambda: CASVC(comm=WORLD).fit(X[:, :2] if LAST else X, y), "features of X", "3", "2"),
        (lambda: BKRR2(comm=WORLD).fit(sp.csr_matrix(X) if LAST else X, y), "X", "dense", "CSR"),
        (lambda: DisSMOSVC(comm=WORLD).fit(X.astype("f4") if LAST else X, y), "type of X", "float64", "float32"),
        (lambda: CASVR(comm=WORLD).fit(X, y, np.ones(60) if LAST else None), "sample_weight given", "False", "True"),
        (lambda: CASVC(comm=WORLD).fit(X, text if LAST else y), "labels", "numbers", "text"),
        (lambda: BKRR2(comm=WORLD).fit(X, np.c_[y, y] if LAST else y), "shape of a row's target", "[]", "[2]"),
        (lambda: casvm(labelled(X, y), SVMOptions(C=2.0 if LAST else 1.0), WORLD), "C", "1", "2"),
    ]  # fmt: skip
    for work, name, first, last in unlike:
        assert every_rank_raises(InputError, work) == differ(name, first, last)


def test_files(folder):
    X, _, y = rows()
    path = write_hdf5(folder / f"{RANK}.h5", train=(X, y)) if RANK else write_hdf5(folder / "0.h5", train=(X, y))
    message = every_rank_raises(InputError, lambda: load(path, Communicator(WORLD)))
    assert message.startswith("data file: not the same on all ranks (")
    path = folder / ("there is none" if LAST else "0.h5")
    message = every_rank_raises(InputError, lambda: load(path, Communicator(WORLD)))
    assert "there is none: No such file or directory" in message
    for C in (1.0, 2.0):
        CASVC(C=C, gamma=0.5, n_parts=R, random_state=0, comm=WORLD).fit(X, y).model_.save(folder / f"C{C:g}.h5")
    path = folder / ("C1.h5" if LAST else "C2.h5")
    message = every_rank_raises(InputError, lambda: SVMModel.load(path, WORLD))
    assert message.startswith("model file: not the same on all ranks (")
    models = [SVMModel.load(folder / name, WORLD) for name in ("C1.h5", "C2.h5")]
    message = every_rank_raises(InputError, lambda: models[int(LAST)].predict(X))
    assert message.startswith("model: not the same on all ranks (")


def test_names_of_files_to_write(folder):
    X, _, y = rows()
    path = folder / f"{LAST}.h5"
    for estimator in (CASVC(n_parts=R, random_state=0, comm=WORLD), DKRR(lam=1e-3, sigma=1.0, comm=WORLD)):
        estimator.fit(X, y)
        for save in (estimator.save, estimator.model_.save):
            message = every_rank_raises(InputError, lambda save=save: save(path))
            assert message.startswith("path: not the same on all ranks (")
    assert list(folder.iterdir()) == []


def test_harmless_differences_between_ranks_are_accepted(tuned):
    """States of random numbers, of which rank 0's counts; ways to write the same; threads that some ranks share."""
    X, _, y = rows()
    tuned(threads=None if LAST else 1)
    tuned(set_threads=lambda count: None)
    drawn = np.random.RandomState(RANK) if RANK else None
    given = {"C": (1, 1.0)[RANK % 2], "gamma": (0.5, np.float64(0.5))[RANK % 2], "random_state": drawn}
    fitted = CASVC(**given, n_parts=R, comm=WORLD).fit(X.tolist() if LAST else X, y)
    assert len(fitted.predict(X)) == len(X)


def test_messages():
    def refused(facts):
        return every_rank_raises(InputError, lambda: require_same(facts, Communicator(WORLD)))

    assert "(RANK" not in refused({"same": "x" * 1000, "rank": RANK})
    assert refused({"rank": RANK}).count("on rank ") == min(R, 3)
    assert refused({"one": 1} if LAST else {"one": 1, "two": 2}) == differ("two", "2", "not given")
    long = refused({"many": np.arange(1000) + LAST})
    assert "array of int64, shape (1000,) [" in long
    assert len(refused({"kernel": "σ" * 5000 + str(RANK)})) < 500


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [(1, 1.0, True), (1, np.float32(1), True), (1, True, False), ("1", 1, False), ([1, 2], np.array([1, 2]), True),
     ({1: 2, "a": 3}, {"a": 3.0, 1: 2}, True), (np.arange(200), np.arange(200) + 1, False),
     (lambda a, b: 0.5, lambda a, b: 0.7, False), (KBalance(3), KBalance(3, random_state=None), True),
     (KBalance(3), KBalance(4), False), (float("nan"), np.nan, True), (2**60, 2**60 + 1, False)],
)  # fmt: skip
def test_equal_values(one, other, equal):
    assert (canonical(one) == canonical(other)) is equal
