"""Features far away from 0, as Unix times: the right answer in double precision, and one line in single precision."""

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import near, refusal

from asygcd import AsyGCDSVC
from cacore.comm import Communicator
from cacore.data.resolution import Moments
from cacore.errors import InputError
from cacore.io import load
from cacore.io.loading import load_in_file
from cacore.io.table import LABELS, RowsRequest
from cakrr import BKRR2, DKRR, BKRR2Classifier, TwoLevelKRR
from casvm import CASVC, CASVR, SMOSVC, SMOSVR, CascadeSVC, SMOOneClassSVM

RIDGE = [DKRR(sigma=1.5, lam=1e-4), BKRR2(2, sigma=1.5, lam=1e-4), TwoLevelKRR(2, centers=50, coarse_lam=1e-4)]
SVMS = [
    SMOSVC(gamma=0.5), CASVC(2, gamma=0.5), CASVC(2, gamma=0.5, standardize=True), CascadeSVC(2, gamma=0.5),
    AsyGCDSVC(gamma=0.5), AsyGCDSVC(gamma=0.5, standardize=True), SMOSVR(gamma=0.5), CASVR(2, standardize=True),
    CASVC(2, gamma=0.5, standardize=True, metric="diagonal"),
]  # fmt: skip


def far(offset, n=300):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    return X + np.array([0.0, offset, 0.0]), np.sin(X[:, 0]) + X[:, 1]


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("offset", [1e3, 1e7, 1e8, 1.7e9])
@pytest.mark.parametrize("made", RIDGE[:2])
def test_ridge(made, offset, standardize):
    X, y = far(offset)
    made.set_params(standardize=standardize, dtype="float64", random_state=0)
    assert made.fit(X, y).score(X, y) > 0.99
    single = made.set_params(dtype="float32")
    if offset < 1e5:
        assert single.fit(X, y).score(X, y) > 0.99
    else:
        message = refusal(lambda: single.fit(X, y), match="feature 1: its mean is ")
        assert "numbers of type float32 are " in message


@pytest.mark.parametrize("made", [*RIDGE, BKRR2Classifier(2, sigma=1.5, lam=1e-4)])
def test_frames_and_lists(made):
    """The columns' names are told, and rounding is looked at before it is done."""
    pd = pytest.importorskip("pandas")
    X, y = far(1.7e9)
    target = (y > 0).astype(int) if hasattr(made, "predict_proba") else y
    made.set_params(dtype="float32")
    refusal(lambda: made.fit(pd.DataFrame(X, columns=["a", "time", "c"]), target), match="feature 1 (time): ")
    refusal(lambda: made.fit(X.tolist(), target), match="feature 1: ")


@pytest.mark.parametrize("made", SVMS, ids=lambda made: type(made).__name__)
def test_arrays_in_single_precision(made):
    X, y = far(1e7)
    target = y if hasattr(made, "epsilon") else (y > 0).astype(int)
    refusal(lambda: made.fit(X.astype(np.float32), target), match="feature 1: its mean is 1e+07")
    near = X - np.array([0.0, 1e7 - 1e3, 0.0])
    assert made.fit(near.astype(np.float32), target).score(near, target) > 0.85


@pytest.mark.parametrize(
    "made", [*SVMS, SMOOneClassSVM(gamma=0.5), DKRR(sigma=1.5)], ids=lambda made: type(made).__name__
)
def test_sparse_rows_for_a_model_of_dense_ones(made):
    """The same numbers have the same answers, however they are stored."""
    X, y = far(7.0, 100)
    made.fit(X, np.where(y > 0, 1, -1))
    answers = getattr(made, "decision_function", made.predict)
    near(answers(sp.csr_matrix(X)), answers(X), 1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e8, -1.7e9])
def test_a_column_of_one_number(value):
    """It says nothing, and is no reason to refuse the others."""
    X, y = far(0.0)
    X = np.column_stack([X, np.full(len(X), value), value + 1e-16 * np.abs(value) * np.arange(len(X))])
    for dtype in ("float32", "float64"):
        assert DKRR(sigma=1.5, lam=1e-4, dtype=dtype, random_state=0).fit(X, y).score(X, y) > 0.99


@pytest.mark.parametrize("form", ["csv", "h5", "npz", "npy", "parquet", "out-of-core"])
def test_files(form, tmp_path):
    """A training file is looked at before it is rounded; rows to predict are not, nor are test rows."""
    X, y = far(1.7e9)
    path = tmp_path / f"rows.{'h5' if form == 'out-of-core' else form}"
    if path.suffix == ".csv":
        np.savetxt(path, np.c_[X, y], delimiter=",", header="a,time,c,y", comments="", fmt="%.17g")
    elif path.suffix == ".npz":
        np.savez(path, X=X, y=y)
    elif path.suffix == ".npy":
        np.save(path, np.c_[X, y])
    elif path.suffix == ".parquet":
        pd = pytest.importorskip("pandas")
        pd.DataFrame(np.c_[X, y], columns=["a", "time", "c", "y"]).to_parquet(path)
    else:
        with h5py.File(path, "w") as file:
            file["X"], file["y"] = X, y

    def read(dtype, training):
        if form == "out-of-core":
            request = RowsRequest(np.dtype(dtype), wanted=LABELS, training=training)
            return load_in_file(path, Communicator(), request, tmp_path)
        return load(path, Communicator(), dtype, training=training)

    read("float64", True), read("float32", False)
    message = refusal(lambda: read("float32", True), match="use float64 (--dtype float64)")
    assert message.startswith(str(path))
    assert ("feature 1 (time): " if form in ("csv", "parquet") else "feature 1: ") in message


def test_test_rows_are_not_looked_at(tmp_path):
    X, y = far(0.0)
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["train/X"], file["train/y"] = X, y
        file["test/X"], file["test/y"] = far(1.7e9)
    assert load(tmp_path / "rows.h5", Communicator(), "float32", training=True)["test"].n == 300


def test_spread_in_blocks():
    """Mean and deviation of blocks are those of all rows, also where the mean is far away."""
    X, _ = far(1e8, 1000)
    whole, blocks = Moments(3), Moments(3)
    whole.add(X)
    for lo in range(0, 1000, 37):
        blocks.add(X[lo : lo + 37])
    blocks.add(X[:0])
    messages = set()
    for spread in (whole, blocks):
        with pytest.raises(InputError) as error:
            spread.check("float32", Communicator())
        messages.add(str(error.value))
        spread.check("float64", Communicator())
    assert len(messages) == 1
    assert f"deviation {X[:, 1].std():.3g}, " in messages.pop()
