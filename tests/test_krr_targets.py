"""Many targets: each column as if it were alone, with one factorisation; estimators, files, models, what is refused."""

from __future__ import annotations

import pickle

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import close, refusal
from helpers.commands import predicted, reported, run
from helpers.data import as_csr, changed, formats, write_csv, write_hdf5
from helpers.references import ridge
from sklearn.metrics import r2_score, root_mean_squared_error
from sklearn.preprocessing import StandardScaler

from cacore.comm import Communicator
from cacore.data.dataset import Dataset
from cacore.io.checkpoint import Checkpoint
from cacore.linalg import lapack
from cacore.metrics import regression_metrics
from cakrr import BKRR, BKRR2, DCKRR, DKRR, KKRR, KKRR2, KRRModel, TwoLevelKRR, bkrr2, kkrr3, twolevel
from cakrr.options import RidgeOptions
from cakrr.solver import refine

COARSE = {"centers": [15, 30], "coarse_sigma": 3.0, "coarse_lam": 1e-4}
PAIR = {"sigma": 1.5, "lam": 1e-3, "random_state": 0}


def rows(n=120, seed=0, csr=False):
    """Three targets of very different size."""
    X = np.random.default_rng(seed).normal(size=(n, 4)) * [1, 5, 1, 0.1] + [0, 9, 0, 3]
    Y = np.c_[np.sin(X[:, 0]), 1e4 + 1e3 * np.cos(X[:, 1]) * X[:, 2], 1e-3 * X[:, 3] ** 2]
    return as_csr(X, csr, 0.7), Y


def reference(X, Y, T, weights=None):
    """scikit-learn's KernelRidge of all rows and targets."""
    w = np.ones(len(Y)) if weights is None else weights
    scaler, mean = StandardScaler(with_mean=not sp.issparse(X)).fit(X, sample_weight=weights), np.average(Y, 0, w)
    model = ridge(1.5, 1e-3 * w.sum()).fit(scaler.transform(X), Y - mean, sample_weight=weights)
    return model.predict(scaler.transform(T)) + mean


def by_column(got, expected, tolerance=1e-8):
    assert got.shape == expected.shape
    for one, other in zip(got.T, expected.T, strict=True):
        close(one, other, tolerance)


@formats
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("cls", [BKRR2, DKRR])
def test_is_kernel_ridge(cls, dtype, weighted, csr):
    (X, Y), (T, _) = rows(csr=csr), rows(40, 1, csr)
    weights = np.random.default_rng(2).uniform(0.1, 2, len(Y)) if weighted else None
    model = cls(**PAIR, dtype=dtype).fit(X, Y, weights)
    by_column(model.predict(T), reference(X, Y, T, weights), 1e-8 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("route", ["nearest", "soft", "all"])
@pytest.mark.parametrize("cls", [BKRR2, KKRR2, DCKRR, BKRR, KKRR, TwoLevelKRR])
def test_each_target_as_if_alone(cls, route, tmp_path):
    """Also saved and pickled."""
    (X, Y), (T, _), more = rows(), rows(40, 1), COARSE | {"centers": 20} if cls is TwoLevelKRR else {}
    model = cls(3, **PAIR, **more, route=route).fit(X, Y)
    if route == "soft":  # k and t are those of all targets together
        model.model_.route, model.model_.soft = "nearest", None
        got = model.model_.predict(T)
    else:
        got = model.predict(T)
        model.model_.save(tmp_path / "model.h5")
        for again in (KRRModel.load(tmp_path / "model.h5"), pickle.loads(pickle.dumps(model)).model_):
            by_column(again.predict(T), got, 1e-13)
    alone = cls(3, **PAIR, **more, route="nearest" if route == "soft" else route)
    by_column(got, np.stack([alone.fit(X, y).predict(T) for y in Y.T], axis=1))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["nearest", "soft", "all", "loo", "twolevel", "dkrr"])
def test_the_choice_adds_errors_over_variances(name, weighted):
    X, Y = rows()
    weights = np.random.default_rng(2).uniform(0.1, 2, len(Y)) if weighted else np.ones(len(Y))
    given = {"sigma": [0.5, 2.0], "lam": [1e-5, 1e-2], "random_state": 0}
    if name == "dkrr":
        cls = DKRR
    elif name == "twolevel":
        cls, given = TwoLevelKRR, given | COARSE | {"n_parts": 3}
    else:
        cls, given = BKRR2, given | {"n_parts": 3} | ({"select": "loo"} if name == "loo" else {"route": name})
    column = "loo_mse" if name == "loo" else "validation_mse"

    def errors(y):
        return np.array([row[column] for row in cls(**given).fit(X, y, weights if weighted else None).grid_])

    variance = np.average((Y - np.average(Y, 0, weights)) ** 2, 0, weights)
    expected = np.mean([errors(y) / one for y, one in zip(Y.T, variance, strict=True)], axis=0)
    np.testing.assert_allclose(errors(Y), expected, rtol=1e-6)
    np.testing.assert_allclose(errors(np.c_[Y, np.full(len(Y), 0.1)]), expected * 3 / 4, rtol=1e-6)  # a constant one
    np.testing.assert_array_equal(errors(Y[:, :1]), errors(Y[:, 0]))  # one column is one target


def test_one_column_stays_a_column():
    X, Y = rows()
    one, flat = BKRR2(3, **PAIR).fit(X, Y[:, :1]).predict(X), BKRR2(3, **PAIR).fit(X, Y[:, 0]).predict(X)
    assert one.shape == (120, 1)
    np.testing.assert_array_equal(one[:, 0], flat)


def test_score_is_scikit_learns():
    X, Y = rows()
    Y = np.c_[Y, np.ones(120)]
    model = BKRR2(3, **PAIR).fit(X, Y)
    P, w = model.predict(X), np.random.default_rng(0).uniform(size=120)
    assert model.score(X, Y, w) == pytest.approx(r2_score(Y, P, sample_weight=w), rel=1e-12)
    said = regression_metrics(Y, P + 1, Communicator())
    assert said["rmse"] == pytest.approx(root_mean_squared_error(Y, P + 1), rel=1e-12)
    assert said["r2"] == pytest.approx(r2_score(Y, P + 1), rel=1e-9)


def test_a_checkpoint_is_of_its_targets(tmp_path):
    X, Y = rows()
    options = {"partitions": 3, "sigma": (1.0, 2.0), "lam": (1e-3,), "centers": (20,), "route": "soft"}

    def train(Y):
        kept = RidgeOptions(**options, checkpoint=Checkpoint(tmp_path / "kept"))
        return twolevel.METHOD(Dataset(X.copy(), Y), kept).model.predict(X)

    first = train(Y)
    (tmp_path / "kept" / "part-000001.npz").unlink()
    np.testing.assert_array_equal(train(Y), first)
    refusal(train, Y[:, ::-1].copy(), match="another run: training rows")


def test_conjugate_gradients_of_columns():
    """A column of zeros, one that is solved at once, and others; none disturbs another."""
    rng = np.random.default_rng(0)
    A, Y = np.diag(np.arange(1.0, 31)), rng.normal(size=(30, 4))
    Y[:, 1], Y[:, 2] = 0, np.eye(30)[3]
    X, residual = refine.conjugate_gradients(lambda V: A @ V, lambda V: V, Y)
    close(X, Y / np.arange(1.0, 31)[:, None], 1e-10)
    assert residual <= 1e-11
    for j in (0, 3):
        alone, _ = refine.conjugate_gradients(lambda v: A @ v, lambda v: v, Y[:, j])
        close(X[:, j], alone, 1e-12)


def test_products_are_added():
    rng = np.random.default_rng(0)
    A, B, C = rng.normal(size=(7, 2)), rng.normal(size=(7, 5)), rng.normal(size=(2, 5))
    expected = C + A.T @ B
    lapack.add_product(A, B, C)
    close(C, expected, 1e-14)
    with pytest.raises(ValueError, match="C-contiguous"):
        lapack.add_product(A.T.copy().T, B, C)
    with pytest.raises(ValueError, match="of shape"):
        lapack.add_product(A, B[:6], C)


# -- what is refused ---------------------------------------------------------------------------


def test_bad_targets():
    X, Y = rows()
    bad = Y.copy()
    bad[7, 2] = np.nan
    refusal(BKRR2().fit, X, bad, match="NaN")
    refusal(BKRR2().fit, X, Y[:, :0], match="there is no target")
    refusal(BKRR2().fit, X, Y[:, None], match="dim 3")
    refusal(BKRR2().fit, X, np.full(Y.shape, "spam"), match="BKRR2Classifier has classes")
    refusal(BKRR2().fit, X, sp.csr_matrix(Y), match="sparse targets")
    refusal(kkrr3.METHOD, Dataset(X.copy(), Y), RidgeOptions(), match="takes a single target")
    refusal(bkrr2.METHOD, Dataset(X.copy(), Y[:, :0]), RidgeOptions(), match="there is no target")


# -- files and commands ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("targets")
    (X, Y), (T, U) = rows(), rows(40, 1)
    write_hdf5(folder / "rows.h5", train=(X, Y), test=(T, U))
    np.savez(folder / "rows.npz", x_train=X, y_train=Y, x_test=T, y_test=U)
    for name, (A, B) in (("train.csv", (X, Y)), ("test.csv", (T, U))):
        np.savetxt(folder / name, np.c_[A, B], "%.17g", ",", header="a,b,c,d,A,B,C", comments="")
    return folder


@pytest.mark.parametrize("words", [["rows.h5"], ["rows.npz"], ["train.csv", "--test", "test.csv", "--target", "A,B,C"]])
def test_commands(words, files, tmp_path):
    words = [files / word if "." in word else word for word in words]
    made = reported(
        "cakrr.bkrr2", [*words, "--partitions", "3", "--sigma", "1.5", "--lambda", "1e-3", "--model",
        tmp_path / "m.h5"], tmp_path,
    )  # fmt: skip
    (X, Y), (T, U) = rows(), rows(40, 1)
    expected = BKRR2(3, sigma=1.5, lam=1e-3, random_state=0).fit(X, Y)
    assert made["params"]["targets"] == 3
    assert made["metrics"]["rmse"] > 0
    run("cakrr.predict", [tmp_path / "m.h5", words[2 if len(words) > 1 else 0], "-o", tmp_path / "p.csv", "--quiet"])
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "prediction 0,prediction 1,prediction 2"
    by_column(np.loadtxt(lines[1:], delimiter=","), KRRModel.load(tmp_path / "m.h5").predict(T), 1e-15)
    assert expected.predict(T).shape == U.shape


def test_files_with_one_column(tmp_path):
    """Are files of one target."""
    X, Y = rows()
    write_hdf5(tmp_path / "one.h5", train=(X, Y[:, :1]))
    run("cakrr.bkrr2", [tmp_path / "one.h5", "--sigma", "1", "--model", tmp_path / "m.h5", "--quiet"])
    run("cakrr.predict", [tmp_path / "m.h5", tmp_path / "one.h5", "-o", tmp_path / "p.csv", "--quiet"])
    assert len(predicted(tmp_path / "p.csv")) == 120


def test_what_commands_refuse(files, tmp_path, refuses):
    h5, csv = files / "rows.h5", files / "train.csv"
    for program in ("casvm.casvm", "asygcd"):
        refuses(program, [h5], "one label or target per row is needed", tmp_path)
    refuses("casvm.casvm", [csv, "--target", "A,B"], "2 columns, but one is needed here", tmp_path)
    refuses("cakrr.kkrr3", [h5], "takes a single target", tmp_path)
    refuses("cakrr.bkrr2", [csv, "--target", "A,A"], "named twice", tmp_path)
    refuses("cakrr.bkrr2", [csv, "--target", "A", "--test", files / "rows.npz"], "", tmp_path)
    nan = changed(tmp_path / "nan.h5", h5, "train/y", (7, 2), np.nan) or tmp_path / "nan.h5"
    refuses("cakrr.bkrr2", [nan], "row 7, target 2 is nan", tmp_path)
    write_csv(tmp_path / "one.csv", *(lambda X, Y: (X, Y[:, 0]))(*rows()))
    refuses("cakrr.bkrr2", [tmp_path / "one.csv", "--test", h5], "3 targets per row, but 1 in", tmp_path)


def test_a_model_of_other_sizes_is_refused(tmp_path):
    X, Y = rows()
    model = BKRR2(2, **PAIR).fit(X, Y).model_
    for part in model.parts.values():
        part.alpha = part.alpha[:, :2]
    model.save(tmp_path / "odd.h5")
    refusal(KRRModel.load, tmp_path / "odd.h5", match="t is 3")
    with h5py.File(tmp_path / "odd.h5") as file:
        assert file["parts/000000/alpha"].shape == (60, 2)
