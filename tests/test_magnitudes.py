"""Features of any size: the answer is that of ordinary features, or a line that refuses them; never another answer."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from helpers.checks import refusal
from sklearn.datasets import make_moons
from sklearn.svm import SVC

from asygcd import AsyGCDSVC
from cacore.comm import Communicator
from cacore.data.standardize import Standardizer
from cacore.errors import InputError
from cacore.svm.problem import numeric_gamma
from cakrr import BKRR2, DKRR, TwoLevelKRR
from casvm import CASVC, SMOSVC, CascadeSVC, DisSMOSVC
from partition import FCFS, BalancedKMeans, KBalance, KMeans

# Powers of two: then features and gamma are scaled without rounding, and answers agree to the last bits.
SIZES = [2.0**-400, 2.0**-100, 2.0**-66, 2.0**64, 2.0**100, 2.0**400]
TOO_MUCH = [1e-160, 1e155, 1e300]
SVMS = {
    "SMOSVC": SMOSVC(),
    "DisSMOSVC": DisSMOSVC(),
    "CASVC": CASVC(3, partitioner="kmeans", random_state=0),
    "CascadeSVC": CascadeSVC(2, random_state=0),
    "AsyGCDSVC": AsyGCDSVC(threads=1, random_state=0, max_iter=10**6),
}
PARTITIONERS = [KMeans, FCFS, BalancedKMeans, KBalance]


def moons():
    """So many rows that kernel values are in single precision where they can be."""
    X, y = make_moons(2300, noise=0.2, random_state=0)
    return X - X.mean(axis=0), y


def trained(name, X, y, **parameters):
    return SVMS[name].__class__(**{**SVMS[name].get_params(), "C": 10.0, **parameters}).fit(X, y)


@pytest.fixture(scope="module")
def ordinary():
    """Decisions of each SVM about features of ordinary size."""
    X, y = moons()
    return {name: trained(name, X, y, gamma=1.0).decision_function(X[:200]) for name in SVMS}


def test_the_ordinary_answer(ordinary):
    X, y = moons()
    reference = SVC(C=10.0, gamma=1.0).fit(X, y).decision_function(X[:200])
    np.testing.assert_allclose(ordinary["SMOSVC"], reference, atol=0.01)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SVMS)
def test_svm(name, size, ordinary):
    X, y = moons()
    got = trained(name, size * X, y, gamma=1.0 / size**2).decision_function(size * X[:200])
    np.testing.assert_allclose(got, ordinary[name], atol=0.02)  # single and double precision end elsewhere


@pytest.mark.parametrize("size", [2.0**-66, 2.0**64])
def test_svm_sparse(size, ordinary):
    X, y = moons()
    got = trained("SMOSVC", sp.csr_matrix(size * X), y, gamma=1.0 / size**2).decision_function(
        sp.csr_matrix(size * X[:200])
    )
    np.testing.assert_allclose(got, ordinary["SMOSVC"], atol=0.02)


@pytest.mark.parametrize("size", SIZES)
def test_gamma_scale(size):
    X, _ = moons()
    ours, reference = (numeric_gamma(Z, "scale", Communicator()) for Z in (size * X, X))
    assert ours == pytest.approx(reference / size**2, rel=1e-12)


@pytest.mark.parametrize("rows", [np.zeros((5, 2)), np.full((5, 2), 1e-200), sp.csr_matrix((5, 2))])
def test_gamma_scale_of_equal_numbers(rows):
    """Gamma "scale" of constant rows is that of scikit-learn."""
    assert numeric_gamma(rows, "scale", Communicator()) == 1.0


@pytest.mark.parametrize("size", TOO_MUCH)
@pytest.mark.parametrize("name", SVMS)
def test_svm_refuses(name, size):
    X, y = moons()
    message = refusal(lambda: trained(name, size * X, y, gamma="scale"), match="standardise the features")
    assert ("so squares underflow" in message) == (size < 1)


@pytest.mark.parametrize("name", SVMS)
def test_one_row_that_is_huge(name):
    """It is nobody's neighbour; the others' decisions are as if it were not there."""
    X, y = moons()
    Z = np.vstack([X, [[1e25, 0.0]]])
    labels = np.append(y, 0)
    got = trained(name, Z, labels, gamma=1.0)
    assert got.score(X, y) > 0.95
    far = got.decision_function(np.array([[-1e25, 0.0], [1e30, 1e30]]))
    assert np.isfinite(far).all()
    assert far[0] == pytest.approx(far[1]) or name == "CASVC"  # another part has another bias


@pytest.mark.parametrize("name", SVMS)
def test_rows_to_predict_that_are_too_large(name):
    X, y = moons()
    model = trained(name, X, y, gamma=1.0)
    refusal(lambda: model.predict(np.array([[1e200, 0.0]])), match="row 0, feature 0 is 1e+200")
    single = trained(name, X.astype(np.float32), y, gamma=1.0)
    refusal(
        lambda: single.predict(np.array([[0.0, 1.0], [0.0, -1e25]], np.float32)), match="row 1, feature 1 is -1e+25"
    )


@pytest.mark.parametrize("gamma", [1e12, 1e18, 1e30])
@pytest.mark.parametrize("name", ["SMOSVC", "AsyGCDSVC"])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_gamma_so_large_that_rows_are_like_themselves_only(name, gamma, offset):
    """K is the identity, also where it comes of matrix products."""
    X = np.random.default_rng(0).normal(size=(300, 100)) + offset
    y = np.arange(300) % 2
    model = trained(name, X, y, gamma=gamma, C=1.0)
    assert model.score(X, y) == 1.0
    np.testing.assert_allclose(np.abs(model.dual_coef_), 1.0, rtol=1e-3)
    np.testing.assert_allclose(np.abs(model.decision_function(X)), 1.0, rtol=1e-3)


# -- ridge regression -------------------------------------------------------------------------------


def curve():
    X = np.random.default_rng(0).normal(size=(600, 3))
    return X, np.sin(X[:, 0]) + X[:, 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("standardize", [False, True])
@pytest.mark.parametrize("make", [BKRR2, DKRR])
def test_ridge(make, standardize, size):
    X, y = curve()

    def predicted(by):
        model = make(sigma=1.5 if standardize else 1.5 * by, lam=1e-6, standardize=standardize, random_state=0)
        return model.fit(by * X, y).predict(by * X)

    np.testing.assert_allclose(predicted(size), predicted(1.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "size"), [("float64", 1e-160), ("float64", 1e155), ("float32", 1e-20), ("float32", 1e19)]
)
@pytest.mark.parametrize("make", [BKRR2, DKRR])
def test_ridge_refuses(make, dtype, size):
    X, y = curve()
    model = make(sigma=size, lam=1e-4, standardize=False, dtype=dtype, random_state=0)
    message = refusal(lambda: model.fit(size * X, y), match="standardise the features")
    assert ("or use float64" in message) == (dtype == "float32")


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_ridge_standardises_what_single_precision_cannot_square(size):
    X, y = curve()
    model = BKRR2(sigma=1.5, lam=1e-4, dtype="float32", random_state=0)
    np.testing.assert_allclose(model.fit(size * X, y).predict(size * X), model.fit(X, y).predict(X), atol=1e-3)


@pytest.mark.parametrize("coef0", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("degree", [400, 2 * 10**9])
@pytest.mark.parametrize(
    "make",
    [
        lambda **more: BKRR2(4, sigma=1.0, lam=1e-4, random_state=0, **more),
        lambda **more: BKRR2(4, sigma=1.0, lam=1e-4, dtype="float32", random_state=0, **more),
        lambda **more: BKRR2(4, sigma=1.0, lam=np.logspace(-8, 1, 14), random_state=0, **more),
        lambda **more: BKRR2(4, sigma=(0.1, 1.0), lam=np.logspace(-8, 1, 14), select="loo", random_state=0, **more),
        lambda **more: DKRR(sigma=1.0, lam=1e-4, random_state=0, **more),
        lambda **more: TwoLevelKRR(4, centers=50, coarse_lam=1e-4, random_state=0, **more),
    ],
)
def test_ridge_of_kernel_values_that_overflow(make, degree, coef0):
    """The warnings of numpy are errors here."""
    X, y = curve()
    refusal(lambda: make(kernel="polynomial", degree=degree, coef0=coef0).fit(X, y))


@pytest.mark.parametrize("coef0", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("degree", [400, 2 * 10**9])
@pytest.mark.parametrize("name", SVMS)
def test_svm_of_kernel_values_that_overflow(name, degree, coef0):
    X, y = moons()
    more = {"kernel": "polynomial", "degree": degree, "coef0": coef0, "gamma": 5.0}
    refusal(lambda: trained(name, X, y, **more), match="scale the features, or use a smaller degree")


@pytest.mark.parametrize("name", SVMS)
def test_a_kernel_that_overflows_between_rows_only(name):
    """It is 0 of a row with itself, and infinite of two rows that point away from each other."""
    X = np.repeat([[1.0], [-1.0]], 1200, axis=0)
    y = np.arange(2400) % 2
    refusal(lambda: trained(name, X, y, kernel="polynomial", degree=10**6, coef0=-1.0, gamma=1.0), match="overflow")


@pytest.mark.parametrize("scale", [1e20, 1e200, 1e306])
@pytest.mark.parametrize("C", [1.0, 1e300])
def test_precomputed(scale, C):
    """Kernel values may be larger than features; what overflows is refused, and never a wrong answer."""
    X = moons()[0][:200]
    K, y = scale * (X @ X.T), X[:, 0] > 0
    try:
        model = SMOSVC(kernel="precomputed", C=C, max_iter=10**6).fit(K, y)
    except InputError as error:
        assert "overflows" in str(error)  # noqa: PT017 - not on all platforms
    else:
        assert np.isfinite(model.dual_coef_).all()
        assert model.score(K, y) > 0.8


@pytest.mark.parametrize("update", ["owned", "atomic", "stochastic"])
def test_kernel_values_times_c_that_overflow(update):
    X, y = (part[:200] for part in moons())
    model = AsyGCDSVC(kernel="linear", C=1e20, update=update, threads=2, max_iter=10**6)
    refusal(lambda: model.fit(1e149 * X, y), match="rounding of its values hides the solution")


@pytest.mark.parametrize(("size", "dtype"), [(1e160, "float64"), (1.7e308, "float64"), (1e31, "float32")])
@pytest.mark.parametrize("make", [BKRR2, DKRR, TwoLevelKRR])
def test_targets_that_are_too_large(make, size, dtype):
    X, y = moons()
    y = np.where(np.arange(len(y)) == 1234, size, y)
    message = refusal(lambda: make(dtype=dtype, lam=[1e-3, 1e-2]).fit(X, y), match="row 1,234, the target is")
    assert message.endswith("scale the targets")
    refusal(lambda: make().fit(X[:200], 1e-160 * y[:200]), match="so squares underflow: scale the targets")


# -- statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 1e38), ("float32", 1e-38), ("float64", 1e140), ("float64", 1e-140)]
)
def test_standardized(dtype, size, form):
    X = np.random.default_rng(0).uniform(-1, 1, (500, 2)).astype(dtype)
    Z = form(X * X.dtype.type(size))
    ours = Standardizer.fit(Z, Communicator())
    got, reference = ours.apply(Z), Standardizer.fit(form(X), Communicator()).apply(form(X))
    np.testing.assert_allclose(
        *(rows.toarray() if sp.issparse(rows) else rows for rows in (got, reference)), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("form", [np.array, sp.csr_matrix])
@pytest.mark.parametrize(("size", "word"), [(1e160, "large"), (1.7e308, "large"), (1e-160, "small"), (1e-300, "small")])
def test_a_variance_that_is_no_number(size, word, form):
    X = np.random.default_rng(0).uniform(-1, 1, (50, 3)) * [1, size, 1]
    refusal(lambda: Standardizer.fit(form(X), Communicator()), match=f"feature 1: its numbers are too {word}")


@pytest.mark.parametrize("make", [lambda: CASVC(2, standardize=True), lambda: AsyGCDSVC(standardize=True), BKRR2])
def test_standardize_refuses(make):
    X, y = moons()
    refusal(
        lambda: make().fit(X[:100] / np.abs(X).max() * 1.5e308, y[:100]), match="feature 0: its numbers are too large"
    )


# -- partitions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [2.0**-100, 2.0**-66, 2.0**50])
@pytest.mark.parametrize("make", PARTITIONERS)
def test_partitions(make, size, dtype):
    """The same parts, bit by bit."""
    X = moons()[0].astype(dtype)
    ours, reference = (make(5, random_state=0).fit(X * X.dtype.type(by)) for by in (size, 1.0))
    np.testing.assert_array_equal(ours.labels_, reference.labels_)
    np.testing.assert_array_equal(ours.centers_, reference.centers_ * size)


@pytest.mark.parametrize("make", PARTITIONERS)
def test_partitions_refuse(make):
    X, _ = moons()
    refusal(lambda: make(5, random_state=0).fit(1e155 * X), match="may overflow in float64")


@pytest.mark.parametrize("size", [1e19, 2e-19])
@pytest.mark.parametrize("name", SVMS)
def test_no_warning_of_numpy(name, size):
    X, y = (part[:300] for part in moons())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained(name, size * X, y, gamma="scale")
