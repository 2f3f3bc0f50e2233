"""Least squares by a tree of triangles, beside LAPACK's gelsy and gelsd and the normal equations."""

import numpy as np
import pytest
import scipy.linalg

from cacore.comm import Communicator
from cacore.errors import InputError
from cacore.io.checkpoint import Checkpoint
from cacore.linalg import tsqr
from cacore.linalg.tsqr import bounds, leaves_of, merges, messages, owners, sent_bytes

ALONE = Communicator(None)
M, T, N = 24, 2, 3000


def problem(condition, n=N, seed=0):
    """A of this condition number, right sides near its span, and the exact coefficients."""
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(n, M)))
    V, _ = np.linalg.qr(rng.normal(size=(M, M)))
    A = U * np.geomspace(1, 1 / condition, M) @ V.T
    c = rng.normal(size=(M, T))
    return A, A @ c + 1e-3 * rng.normal(size=(n, T)), c


def blocks(rows, leaves, step=100):
    border = bounds(len(rows), leaves)

    def of(leaf, skipped):
        for lo in range(border[leaf] + skipped * step, border[leaf + 1], step):
            yield rows[lo : min(lo + step, border[leaf + 1])]

    return of


def folded(A, B, leaves, **more):
    step = more.pop("step", 100)
    return tsqr.tsqr(blocks(np.hstack([A, B]), leaves, step), A.shape[1], B.shape[1], leaves, ALONE, **more)


@pytest.mark.parametrize("condition", [1e0, 1e4, 1e8, 1e11, 1e14])
def test_beside_lapack(condition):
    """Residuals as LAPACK's, and coefficients within what the condition allows, which normal equations square."""
    A, B, _ = problem(condition)
    found = folded(A, B, 16)
    c = found.solve()
    for driver in ("gelsy", "gelsd"):
        expected = scipy.linalg.lstsq(A, B, cond=1e-16, lapack_driver=driver)[0]
        # Wedin: the error is bounded by eps cond, and eps cond^2 times the residual.
        allowed = 1e-14 * condition * (1 + condition * 1e-3) * np.abs(expected).max()
        assert np.abs(c - expected).max() <= allowed
        # A c is rounded by eps |c|, which is as large as the condition number.
        residual, rounding = np.linalg.norm(A @ expected - B, axis=0), 1e-15 * np.linalg.norm(expected)
        np.testing.assert_allclose(np.linalg.norm(A @ c - B, axis=0), residual, rtol=1e-12, atol=rounding)
    np.testing.assert_allclose(np.sqrt(np.diagonal(found.s.T @ found.s)), residual, rtol=1e-12, atol=rounding)
    assert found.rows == N
    assert found.condition() == pytest.approx(np.linalg.cond(A, 2), rel=20)


def test_digits_that_normal_equations_lose():
    """With exact targets, coefficients lose eps cond; normal equations lose eps cond^2, and fail from 1e8 on."""
    for condition, least in ((1e4, 1e2), (1e7, 1e4)):
        A, _, c = problem(condition)
        B = A @ c
        mine = np.abs(folded(A, B, 8).solve() - c).max()
        assert mine <= 1e-13 * condition
        normal = np.abs(np.linalg.solve(A.T @ A, A.T @ B) - c).max()
        assert normal > least * mine


def test_bits_do_not_depend_on_blocks():
    A, B, _ = problem(1e6)
    one = folded(A, B, 8)
    for step in (1, 97, 3000):
        other = folded(A, B, 8, step=step)
        assert (one.R.tobytes(), one.q.tobytes(), one.s.tobytes()) == (
            other.R.tobytes(), other.q.tobytes(), other.s.tobytes())  # fmt: skip


def test_fewer_rows_than_columns_and_empty_leaves():
    A, B, _ = problem(1.0, n=40)
    found = folded(A[:10], B[:10], 4)
    np.testing.assert_allclose(found.R.T @ found.R, A[:10].T @ A[:10], atol=1e-13)
    with pytest.raises(InputError, match="column 10 is a combination"):
        found.solve()
    none = folded(A[:0], B[:0], 2)
    assert none.rows == 0
    assert not none.R.any()


def test_one_column_and_more_rows_than_a_block():
    a = np.random.default_rng(0).normal(size=(5000, 1))
    found = folded(a, 3 * a, 4, step=700)
    assert found.solve()[0, 0] == pytest.approx(3, rel=1e-14)


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("leaves", [1, 2, 8, 32])
def test_tree(leaves, ranks):
    """Every leaf has one owner, every node is merged once by the owner of its first leaf, and bytes follow."""
    owner = owners(leaves, ranks)
    assert (np.diff(owner) >= 0).all()
    assert 0 <= owner[0] <= owner[-1] < ranks
    counts = np.bincount(owner, minlength=ranks)
    assert counts.max() - counts.min() <= 1
    every = list(merges(leaves, ranks))
    assert len(every) == leaves - 1
    if ranks & (ranks - 1) == 0 and ranks <= leaves:
        assert messages(leaves, ranks) == ranks - 1
    assert sent_bytes(5, leaves, ranks, shared=False) == (8 * 15 + 64) * messages(leaves, ranks)


def test_number_of_leaves():
    assert [leaves_of(n, 100) for n in (0, 199, 399, 400, 3199, 3200, 10**9)] == [1, 1, 1, 2, 8, 16, 1024]


class BrokenError(RuntimeError):
    pass


@pytest.mark.parametrize("least", [tsqr.BLOCK, 10], ids=["square in a block", "blocks in a square"])
def test_continues_after_any_block(least, tmp_path, tuned):
    """A block fails; the run continues there, and ends with the same bits."""
    tuned(tsqr_block=least)
    A, B, _ = problem(1e3)
    rows, asked = np.hstack([A, B]), []
    whole, given = folded(A, B, 4), blocks(rows, 4)

    def failing(leaf, skipped):
        asked.append((leaf, skipped))
        for number, block in enumerate(given(leaf, skipped), skipped):
            if (leaf, number) == stop:
                raise BrokenError("no file")
            yield block

    for stop in ((0, 0), (2, 3), (3, 7)):
        with pytest.raises(InputError, match=rf"share {stop[0]}, block {stop[1]} \(rank 0\): BrokenError: no file"):
            tsqr.tsqr(failing, M, T, 4, ALONE, checkpoint=Checkpoint(tmp_path))
    assert asked == [(0, 0), (0, 0), (1, 0), (2, 0), (2, 3), (3, 0)]
    stop = None
    found = tsqr.tsqr(failing, M, T, 4, ALONE, checkpoint=Checkpoint(tmp_path))
    assert asked[-1] == (3, 7)
    assert found.R.tobytes() == whole.R.tobytes()
    assert found.s.tobytes() == whole.s.tobytes()
    assert found.rows == N
    again = tsqr.tsqr(failing, M, T, 4, ALONE, checkpoint=Checkpoint(tmp_path))
    assert len(asked) == 7  # nothing is folded again
    assert again.R.tobytes() == whole.R.tobytes()


def test_saves_between_blocks(tmp_path, monkeypatch):
    A, B, _ = problem(1e3)
    saved = []
    monkeypatch.setattr(Checkpoint, "put", lambda self, name, **arrays: saved.append((name, arrays["at"].tolist())))
    folded(A, B, 2, checkpoint=Checkpoint(tmp_path), seconds=-1.0, step=500)
    assert saved[:3] == [("tsqr-rank000000", [0, taken, 500 * taken, 500 * taken % 1024]) for taken in (1, 2, 3)]
    assert len(saved) == 7  # after each of six blocks, and at the end


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.ones((3, M + T + 1)), "shape is (3, 27), and 26 columns were expected"),
        (np.ones(M + T), "shape is (26,)"),
        (np.where(np.arange(M + T) == 7, np.nan, 1.0)[None], "row 0, column 7 is nan"),
        (np.full((2, M + T), -np.inf), "row 0, column 0 is -inf"),
    ],
)
def test_bad_blocks(bad, message):
    def given(leaf, skipped):
        yield np.ones((4, M + T))
        yield bad

    with pytest.raises(InputError) as caught:
        tsqr.tsqr(given, M, T, 1, ALONE)
    assert message in str(caught.value)
    assert str(caught.value).startswith("rows, share 0, block 1 (rank 0): ")
